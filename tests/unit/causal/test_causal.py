"""Causal services outside a job, and in a task without Spark."""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import stamina

import clonos
from clonos.carried_errors import CarriedError, uncarry
from clonos.causal import derived, scope
from clonos.causal.epoch_scope import COMPUTED, JOB_ENVIRONMENT, PROPERTY, EpochScope, decode_scope, encode_scope
from clonos.causal.scope import TaskScope, row_scope, task_scope
from clonos.causal.service import MAX_ANSWER_BYTES, Service
from clonos.causal.udf import _Rows
from clonos.errors import EpochFailed, OperatorRequired, ResultNotSerialisable, ServiceError, ServiceTimedOut
from clonos.log.records import Determinant, EpochIdentity, Owner

EPOCH = EpochScope(
    EpochIdentity("j", "clonos.j.log", "q", 3, Owner(1, 1, "a"), replay=False),
    timestamp_ms=1_700_000_000_123,
    seed=42,
    depth="full",
    log_partitions=(1, 2),
    start_offsets={1: 0, 2: 0},
    claim_offsets={1: 5, 2: 5},
    params={"city": "Berlin"},
)


class FakeRecorder:
    """Holds the recorded determinants of a task in memory: those queued and those flushed."""

    def __init__(self, *_args: object) -> None:
        self.queued: list[Determinant] = []
        self.written: list[Determinant] = []
        self.bytes = 0

    def add(self, entry: Determinant) -> None:
        self.queued.append(entry)

    def flush(self) -> None:
        self.written += self.queued
        self.bytes += 10 * len(self.queued)
        self.queued = []


@pytest.fixture(autouse=True)
def _no_kafka_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scope, "Recorder", FakeRecorder)
    stamina.set_testing(True, attempts=10, cap=True)
    yield
    stamina.set_testing(False)


def task(operator: str = "op", number: int = 0, *, wrapped: bool = True, **changes: Any) -> TaskScope:
    of_identity = {name: changes.pop(name) for name in list(changes) if hasattr(EPOCH.identity, name)}
    identity = msgspec.structs.replace(EPOCH.identity, **of_identity)
    return TaskScope(msgspec.structs.replace(EPOCH, identity=identity, **changes), operator, number, wrapped=wrapped)


def recorder(scope: TaskScope) -> FakeRecorder:
    recorder = scope._recorder
    assert isinstance(recorder, FakeRecorder)
    return recorder


def replaying(first: TaskScope, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> TaskScope:
    """The same task in a replay, with the determinants of `first` in the log."""
    log = {entry.key: entry for entry in [*recorder(first).written, *recorder(first).queued]}
    monkeypatch.setattr(scope, "worker_kafka", lambda: None)
    monkeypatch.setattr(scope, "recorded_answers", lambda *_: log)
    return task(replay=True, **changes)


# Outside a job.


def test_services_work_outside_a_job() -> None:
    before = dt.datetime.now(dt.UTC)
    assert before <= clonos.now() <= clonos.clock("x") <= dt.datetime.now(dt.UTC)
    assert clonos.epoch() == -1
    assert 0 <= clonos.random() < 1
    assert clonos.random("k") != clonos.random("k")
    assert clonos.rng("k").random() != clonos.rng("k").random()
    assert clonos.uuid4().version == 4

    @clonos.service(timeout=5, retries=1, concurrency=2)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert double.name.endswith("double")


def test_missing_parameter_error_names_the_option() -> None:
    with pytest.raises(KeyError, match=r"-p colour="):
        clonos.param("colour")
    assert clonos.param("colour", "red") == "red"


def test_param_reads_the_drivers_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_driver_params", {})
    derived.set_driver_params({"a": "1"})
    assert clonos.param("a") == "1"
    derived.set_driver_params({})
    assert clonos.param("a", "default") == "default"


# Derived.


def draws(scope: TaskScope, key: object) -> tuple[float, float, uuid.UUID]:
    with task_scope(scope), row_scope(0):
        return clonos.random(key), clonos.rng(key).random(), clonos.uuid4(key)


def test_derived_services_read_the_epoch() -> None:
    with task_scope(task()):
        assert clonos.now() == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
        assert clonos.epoch() == 3
        assert clonos.param("city") == "Berlin"
        with pytest.raises(KeyError, match="colour"):
            clonos.param("colour")


@pytest.mark.parametrize("key", ["k", 1, 1.5, b"k", ("t", 0, 17), None, {"b": 1, "a": 2}, dt.date(2024, 1, 1)])
def test_draws_repeat_in_a_replay(key: object) -> None:
    assert draws(task(), key) == draws(task(), key)
    assert draws(task(replay=False), key)[2].version == 4


def test_keyed_draw_depends_on_everything_but_the_task() -> None:
    base = draws(task(), "k")
    assert draws(task(number=1), "k") == base
    others = [
        draws(task(), "other"),
        draws(task("other"), "k"),
        draws(task(epoch=4), "k"),
        draws(task(seed=43), "k"),
        draws(task(query="r"), "k"),
    ]
    for index in range(3):
        assert len({values[index] for values in [base, *others]}) == 6
    assert base[0] != base[1]


def test_different_keys_have_different_draws() -> None:
    keys: list[object] = ["1", 1, b"1", ("1",), ("1", "1"), None]
    assert len({draws(task(), key)[2] for key in keys}) == len(keys)


def test_draw_without_a_key_depends_on_the_position() -> None:
    def row(number: int, index: int) -> list[float]:
        with task_scope(task(number=number)), row_scope(index):
            return [clonos.random(), clonos.random()]

    assert row(0, 5) == row(0, 5)
    assert len({*row(0, 5), *row(0, 6), *row(1, 5)}) == 6


def test_random_is_uniform_in_the_unit_interval() -> None:
    with task_scope(task()):
        numbers = [clonos.random(key) for key in range(2000)]
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    assert abs(sum(numbers) / 2000 - 0.5) < 0.05


def test_epoch_scope_survives_encoding() -> None:
    assert decode_scope(encode_scope(EPOCH)) == EPOCH


# Recorded.


def counted(answer: Callable[..., Any] = lambda *a, **k: len(a), **options: Any) -> tuple[Service[..., Any], list[Any]]:
    calls: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return answer(*args, **kwargs)

    options.setdefault("name", f"s{time.monotonic_ns()}")
    return clonos.service(**options)(function), calls


def slowly(function: Callable[[int], int], seconds: float) -> Callable[[int], int]:
    """`function`, after a pause that differs between rows."""

    def pausing(x: int) -> int:
        time.sleep(seconds * (x % 3))
        return function(x)

    return pausing


def test_equal_arguments_share_one_call() -> None:
    ask, calls = counted()
    with task_scope(task()) as current:
        assert [ask("a"), ask("b"), ask("a")] == [1, 1, 1]
    assert calls == [("a",), ("b",)]
    assert current.recorded == 2
    assert len(recorder(current).queued) == 2


def test_equal_arguments_share_one_call_across_threads() -> None:
    ask, calls = counted(lambda *_: time.sleep(0.02), concurrency=8)
    with task_scope(task()), ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(contextvars.copy_context().run, ask, "same") for _ in range(8)]:
            future.result()
    assert len(calls) == 1


def test_another_task_calls_again() -> None:
    ask, calls = counted()
    for number in (0, 1):
        with task_scope(task(number=number)):
            ask("a")
    assert len(calls) == 2


def test_answers_belong_to_the_service_name() -> None:
    (first, _), (second, _) = counted(lambda: "a", name="first"), counted(lambda: "b", name="second")
    with task_scope(task()):
        assert (first(), second()) == ("a", "b")


def test_replay_reads_answers_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, calls = counted(lambda *_: time.monotonic_ns())
    first = task()
    with task_scope(first):
        answers = [ask(i) for i in range(3)]
    second = replaying(first, monkeypatch)
    with task_scope(second):
        assert [ask(i) for i in reversed(range(4))][1:] == answers[::-1]
    assert len(calls) == 4
    assert (second.recorded, second.replayed) == (1, 3)


def test_sharing_depth_zero_records_nothing() -> None:
    ask, calls = counted()
    with task_scope(task(depth="0")) as current:
        ask("a")
        ask("a")
    assert len(calls) == 1
    assert (current.recorded, recorder(current).written) == (0, [])


def test_answers_are_written_by_flush() -> None:
    ask, _ = counted()
    with task_scope(task()) as current:
        ask("a")
        assert recorder(current).written == []
        current.flush()
        assert len(recorder(current).written) == 1


def test_unwrapped_code_gets_only_keyed_draws() -> None:
    """A replay could not distinguish two plain UDFs of one task."""
    ask, calls = counted()
    with task_scope(task(wrapped=False)) as plain_udf:
        for call in (lambda: ask("a"), clonos.clock, clonos.random, clonos.rng, clonos.uuid4):
            with pytest.raises(CarriedError) as refused:
                call()
            carried = uncarry(str(refused.value))
            assert isinstance(carried, OperatorRequired)
            assert "clonos.operator" in carried.hint
        assert clonos.random("k") == clonos.random("k")
        assert clonos.epoch() == 3
    assert calls == []
    assert recorder(plain_udf).queued == []


def test_clock_is_read_once_for_equal_keys() -> None:
    with task_scope(task()):
        reading, again, other = clonos.clock("a"), clonos.clock("a"), clonos.clock("b")
    assert reading == again != other
    assert reading.tzinfo is not None
    assert abs((dt.datetime.now(dt.UTC) - reading).total_seconds()) < 60


class Verdict(msgspec.Struct):
    banned: bool
    at: dt.datetime


def test_answers_have_the_annotated_type_in_both_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    @clonos.service(name="typed")
    def judge(word: str) -> Verdict:
        return Verdict(word == "x", dt.datetime(2024, 1, 1, tzinfo=dt.UTC))

    @clonos.service(name="pair")
    def pair() -> tuple[int, uuid.UUID]:
        return (1, uuid.UUID(int=5, version=4))

    first = task()
    with task_scope(first):
        fresh = (judge("x"), pair())
    with task_scope(replaying(first, monkeypatch)):
        assert (judge("x"), pair()) == fresh
    assert isinstance(fresh[0], Verdict)
    assert fresh[1] == (1, uuid.UUID(int=5, version=4))


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Reading:
    colour: Colour
    price: decimal.Decimal
    id: uuid.UUID
    grid: list[list[int | None]]
    day: dt.date
    took: dt.timedelta
    raw: bytes
    verdict: Verdict
    more: dict[str, tuple[float, bool]] | None = None


READING = Reading(
    Colour.RED,
    decimal.Decimal("1.50"),
    uuid.UUID(int=7, version=4),
    [[1, None], []],
    dt.date(2024, 2, 29),
    dt.timedelta(seconds=1.5),
    b"\x00\xff",
    Verdict(True, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Reading, READING),
        (Reading, dataclasses.replace(READING, more={"a": (1.5, True)})),
        (list[Reading], [READING]),
        (type(None), None),
        (int | None, None),
        (Colour, Colour.RED),
        (decimal.Decimal, decimal.Decimal("0.10")),
        (dt.datetime, dt.datetime(2024, 1, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)),
        (set[str], {"a", "b"}),
        (float, float("inf")),
        (dict[str, list[uuid.UUID]], {"a": [uuid.UUID(int=1, version=4)]}),
    ],
)
def test_answers_of_all_types_survive_a_replay(kind: Any, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant() -> Any:
        return answer

    constant.__annotations__["return"] = kind
    ask = clonos.service(name="constant")(constant)
    first = task()
    with task_scope(first):
        fresh = ask()
    with task_scope(replaying(first, monkeypatch)):
        replayed = ask()
    assert fresh == replayed == answer
    assert type(fresh) is type(replayed) is type(answer)


def test_annotated_type_survives_pickling_by_value() -> None:
    """cloudpickle includes the names that the code uses, but not those of annotations."""
    from pyspark import cloudpickle

    names: dict[str, Any] = {"clonos": clonos, "Verdict": Verdict, "__name__": "somewhere"}
    text = "from __future__ import annotations\n@clonos.service(name='v')\ndef judge(x: Unknown) -> Verdict: ..."
    exec(compile(text, "job.py", "exec"), names)
    back = cloudpickle.loads(cloudpickle.dumps(names["judge"]))  # type: ignore[no-untyped-call]
    assert back.result_type is Verdict


def test_new_answer_without_annotation_equals_the_replayed_one() -> None:
    ask, _ = counted(lambda: (1, {"a": (2,)}))
    with task_scope(task()):
        assert ask() == [1, {"a": [2]}]


def test_answer_that_cannot_be_encoded_is_refused() -> None:
    ask, _ = counted(lambda: object(), name="odd")
    with task_scope(task()) as current, pytest.raises(ResultNotSerialisable, match="odd returned a object") as failed:
        ask()
    assert "None, bool, int" in failed.value.hint
    assert recorder(current).queued == []


@pytest.mark.parametrize("record_errors", [False, True])
def test_an_answer_above_the_limit_of_a_record_names_service_and_size(record_errors: bool) -> None:
    ask, calls = counted(lambda: "x" * MAX_ANSWER_BYTES, name="verbose", retries=3, record_errors=record_errors)
    refused = pytest.raises(ResultNotSerialisable, match=r"verbose returned an answer of \d{7} bytes")
    with task_scope(task()) as current, refused as failed:
        ask()
    assert not failed.value.retry
    assert len(calls) == 1
    assert recorder(current).queued == []


@pytest.mark.parametrize("answer", [2**70, 1 << 64])
def test_integer_above_64_bits_is_refused(answer: int) -> None:
    ask, _ = counted(lambda: answer)
    with task_scope(task()), pytest.raises(ResultNotSerialisable):
        ask()


def test_answer_of_another_type_than_annotated_is_not_recorded() -> None:
    @clonos.service(name="mistyped")
    def mistyped() -> int:
        return "text"  # type: ignore[return-value]

    with task_scope(task()) as current, pytest.raises(ResultNotSerialisable, match="mistyped"):
        mistyped()
    assert recorder(current).queued == []


@pytest.mark.parametrize("argument", [object(), lambda: None, 2**70])
def test_arguments_that_cannot_be_encoded_are_refused(argument: object) -> None:
    ask, calls = counted()
    with task_scope(task()), pytest.raises(ResultNotSerialisable, match="arguments") as failed:
        ask(argument)
    assert "plain values" in failed.value.hint
    assert calls == []


def test_equal_arguments_of_different_types_share_one_call() -> None:
    import numpy as np

    ask, calls = counted(lambda *_, **__: 0)
    with task_scope(task()):
        ask({"a": 1, "b": {3, 1, 2}}, (1, 2))
        ask({"b": {2, 3, 1}, "a": np.int64(1)}, [1, 2])
        ask(x=1, y=2)
        ask(y=2, x=1)
    assert len(calls) == 2


def test_service_retries_after_a_failure() -> None:
    left = [2]

    def flaky(*_: object) -> str:
        if left[0]:
            left[0] -= 1
            raise ConnectionError("no")
        return "yes"

    ask, calls = counted(flaky, retries=2)
    with task_scope(task()):
        assert ask("a") == "yes"
    assert len(calls) == 3


def test_service_fails_after_the_last_retry() -> None:
    def fail() -> None:
        raise ConnectionError("connection refused")

    ask, calls = counted(fail, retries=2, name="down")
    with task_scope(task()) as current:
        with pytest.raises(ServiceError, match="down failed: ConnectionError: connection refused"):
            ask()
        assert len(calls) == 3
        assert recorder(current).queued == []
        with pytest.raises(ServiceError):
            ask()  # not recorded, so the service is called again
    assert len(calls) == 6


def test_replay_raises_a_recorded_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConnectionError("connection refused")

    ask, calls = counted(fail, record_errors=True)
    first = task()
    with task_scope(first):
        with pytest.raises(ServiceError) as fresh:
            ask()
        with pytest.raises(ServiceError):
            ask()
    with task_scope(replaying(first, monkeypatch)), pytest.raises(ServiceError) as replayed:
        ask()
    assert replayed.value.what == fresh.value.what
    assert len(calls) == 1


def test_timeout_raises_service_timed_out() -> None:
    released = threading.Event()
    ask, _ = counted(lambda: released.wait(60), timeout=2.0, name="slow")
    with task_scope(task()), pytest.raises(ServiceTimedOut, match=r"slow gave no answer in 2\.0 s"):
        ask()
    released.set()
    with task_scope(task()):
        assert ask() is True  # the next call does not wait for the hanging one


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_timeout_error_of_the_function_is_a_service_error(timeout: float | None) -> None:
    def fail() -> None:
        raise TimeoutError("socket")

    ask, _ = counted(fail, timeout=timeout)
    with task_scope(task()), pytest.raises(ServiceError, match="failed: TimeoutError: socket"):
        ask()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_concurrency_limits_parallel_calls(timeout: float | None) -> None:
    running, maximum, lock = [0], [0], threading.Lock()
    three = threading.Barrier(3)

    def busy(_: object) -> None:
        with lock:
            running[0] += 1
            maximum[0] = max(maximum[0], running[0])
        three.wait(60)
        with lock:
            running[0] -= 1

    ask, _ = counted(busy, concurrency=3, timeout=timeout)
    with task_scope(task()), ThreadPoolExecutor(12) as pool:
        for future in [pool.submit(contextvars.copy_context().run, ask, i) for i in range(12)]:
            future.result()
    assert maximum[0] == 3


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_service_may_call_another_service(timeout: float | None) -> None:
    """Calls with different arguments share no lock, in any thread."""
    inner, _ = counted(lambda x: x, name="inner", timeout=timeout)
    outer, _ = counted(lambda x: inner(x) + clonos.param("city"), name="outer", timeout=timeout)
    with task_scope(task()):
        assert [outer(str(i)) for i in range(200)] == [f"{i}Berlin" for i in range(200)]


def test_nested_services_in_threads_do_not_deadlock() -> None:
    inner, _ = counted(slowly(lambda x: x, 0.0005), name="inner2", concurrency=8)
    outer, _ = counted(lambda x: inner(x), name="outer2", concurrency=8)
    with task_scope(task()), ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(contextvars.copy_context().run, outer, i) for i in range(400)]
        assert [future.result(120) for future in futures] == list(range(400))


def test_service_survives_pickling() -> None:
    from pyspark import cloudpickle

    ask, _ = counted(lambda x: x + 1, name="far", timeout=3, retries=2, concurrency=4, record_errors=True)
    back = cloudpickle.loads(cloudpickle.dumps(ask))  # type: ignore[no-untyped-call]
    assert (back.name, back.timeout, back.retries, back.concurrency, back.record_errors) == ("far", 3, 2, 4, True)
    assert back(1) == 2


@pytest.mark.parametrize("concurrency", [1, 4])
def test_map_keeps_the_order_and_records_single_calls(concurrency: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, calls = counted(slowly(lambda x: x * 10, 0.01), concurrency=concurrency)
    first = task()
    with task_scope(first):
        assert ask.map(iter([1, 2, 3, 2, 1, 5])) == [10, 20, 30, 20, 10, 50]
    assert sorted(calls) == [(1,), (2,), (3,), (5,)]
    with task_scope(replaying(first, monkeypatch)):
        assert [ask(x) for x in (5, 3)] == [50, 30]
        assert ask.map([]) == []
    assert len(calls) == 4


def test_map_takes_an_iterable_for_each_argument() -> None:
    ask, calls = counted(lambda a, b: f"{a}{b}", concurrency=2)
    assert ask.map("ab", [1, 2]) == ["a1", "b2"]
    assert sorted(calls) == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="shorter"):
        ask.map("ab", [1])


def test_map_raises_the_first_failure() -> None:
    ask, _ = counted(lambda x: 1 // x, concurrency=4)
    with task_scope(task()), pytest.raises(ServiceError, match="ZeroDivisionError"):
        ask.map([3, 0, 1])


# Rows of a batch.


@contextmanager
def rows(function: Callable[..., Any], scope: TaskScope | None) -> Iterator[_Rows]:
    with _Rows(function, scope) as batch_rows:
        yield batch_rows


def test_parallel_rows_keep_their_order() -> None:
    ask, calls = counted(slowly(lambda x: x * 10, 0.01), concurrency=4)
    with rows(lambda x: (ask(x), clonos.random()), task()) as batch_rows:
        first = batch_rows.compute(0, [list(range(20))])
    with rows(lambda x: (ask(x), clonos.random()), task()) as batch_rows:
        again = batch_rows.compute(0, [list(range(10))]) + batch_rows.compute(10, [list(range(10, 20))])
    assert [answer for answer, _ in first] == [x * 10 for x in range(20)]
    assert first == again  # positions do not depend on the batches
    assert len(calls) == 40


def test_failing_row_fails_the_batch() -> None:
    ask, _ = counted(lambda x: 1 // x, concurrency=4)
    with rows(ask, task()) as batch_rows, pytest.raises(ServiceError, match="ZeroDivisionError"):
        batch_rows.compute(0, [[3, 2, 1, 0, 5]])


def test_rows_are_computed_outside_a_job() -> None:
    with rows(lambda a, b: a + b, None) as batch_rows:
        assert batch_rows.compute(0, [[1, 2], [3, 4]]) == [4, 6]


# The real recorder, with a fake producer.


class FailingProducer:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.sent: list[bytes] = []
        self._waiting: list[Callable[..., None]] = []

    def produce(
        self, _topic: str, value: bytes, _key: bytes | None, *, partition: int, on_delivery: Callable[..., None]
    ) -> None:
        assert partition in EPOCH.log_partitions
        self.sent.append(value)
        self._waiting.append(on_delivery)

    def poll(self, _timeout: float) -> None:
        for on_delivery in self._waiting:
            self.failures -= 1
            on_delivery(_Refused() if self.failures >= 0 else None, _ACKNOWLEDGED)
        self._waiting = []

    def purge(self) -> None:
        self._waiting = []


_ACKNOWLEDGED = SimpleNamespace(offset=lambda: 7)


class _Refused:
    def str(self) -> str:
        return "not enough replicas"


def test_flush_writes_unacknowledged_determinants_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later flush must include the entries that an earlier flush failed to write."""
    from clonos.causal import determinants
    from clonos.log.records import Determinants, decode

    producer = FailingProducer(failures=1)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    recorder.flush()
    assert producer.sent == []
    recorder.add(Determinant(b"k", b"v"))
    with pytest.raises(EpochFailed, match="not enough replicas"):
        recorder.flush()
    recorder.flush()
    recorder.flush()
    assert len(producer.sent) == 2
    record = decode(producer.sent[1], where="here")
    assert record == Determinants(EPOCH.identity.owner, "q", 3, "op", 5, (Determinant(b"k", b"v"),))
    assert recorder.bytes == len(producer.sent[1]), "only the acknowledged bytes count"


def test_determinants_acknowledged_without_an_offset_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka reports them as delivered if a later record of the producer was acknowledged."""
    from clonos.causal import determinants

    producer = FailingProducer(failures=0)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    monkeypatch.setattr(_ACKNOWLEDGED, "offset", lambda: None)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    recorder.add(Determinant(b"k", b"v"))
    with pytest.raises(EpochFailed, match="without an offset"):
        recorder.flush()


class SlowProducer(FailingProducer):
    """Acknowledges one record in twenty seconds, up to a number of records."""

    def __init__(self, acknowledged: int) -> None:
        super().__init__(0)
        self.now_s = 0.0
        self.left = acknowledged

    def poll(self, _timeout: float) -> None:
        self.now_s += 20.0
        if self.left and self._waiting:
            self.left -= 1
            self._waiting.pop(0)(None, _ACKNOWLEDGED)


@pytest.mark.parametrize("acknowledged", [4, 3])
def test_flush_waits_while_the_log_acknowledges(monkeypatch: pytest.MonkeyPatch, acknowledged: int) -> None:
    from clonos.causal import determinants

    producer = SlowProducer(acknowledged)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    monkeypatch.setattr(determinants, "time", SimpleNamespace(monotonic=lambda: producer.now_s))
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    for number in range(4):
        recorder.add(Determinant(bytes([number]), bytes(determinants._RECORD_BYTES + 1)))
    expected = pytest.raises(EpochFailed, match="no acknowledgement") if acknowledged < 4 else nullcontext()
    with expected:
        recorder.flush()
    assert len(producer.sent) == 4


def test_large_answers_are_split_into_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    from clonos.causal import determinants

    producer = FailingProducer(failures=0)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 0)  # type: ignore[arg-type,return-value]
    for number in range(10):
        recorder.add(Determinant(bytes([number]), b"x" * 200_000))
    recorder.flush()
    assert 2 <= len(producer.sent) <= 10
    assert max(map(len, producer.sent)) < 1024 * 1024


def test_an_operator_outside_the_epochs_of_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark computes the static side of a broadcast join before the epoch begins: nothing would record the answers."""
    task = SimpleNamespace(getLocalProperty=lambda name: None)
    monkeypatch.setattr(scope.TaskContext, "get", lambda: task)
    assert scope.open_task_scope("job.ask") is None
    monkeypatch.setenv(JOB_ENVIRONMENT, "orders")
    with pytest.raises(CarriedError, match=r"job\.ask runs outside of the epochs of the job orders"):
        scope.open_task_scope("job.ask")


@pytest.mark.parametrize(
    ("attempt", "computed", "words"),
    [(0, None, ""), (1, None, "repeated a task"), (0, "true", "lost rows")],
)
def test_a_task_that_computes_rows_again_fails_its_epoch(
    attempt: int, computed: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {PROPERTY: encode_scope(EPOCH), COMPUTED: computed}
    task = SimpleNamespace(getLocalProperty=properties.get, attemptNumber=lambda: attempt)
    monkeypatch.setattr(scope.TaskContext, "get", lambda: task)
    if not words:
        assert scope.current_epoch() == EPOCH
        return
    with pytest.raises(CarriedError, match=words) as raised:
        scope.open_task_scope("job.ask")
    assert type(uncarry(str(raised.value))) is EpochFailed
