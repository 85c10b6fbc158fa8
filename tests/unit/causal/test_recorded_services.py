"""Recorded services in a task without Spark: shared calls, replays, retries, timeouts and concurrency."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scopes import counted, recorder, replaying, slowly, task

import clonos
from clonos.carried_errors import CarriedError, uncarry
from clonos.causal.scope import task_scope
from clonos.errors import OperatorRequired, ServiceError, ServiceTimedOut

pytestmark = pytest.mark.usefixtures("fake_recorder")


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

    ask, calls = counted(fail, retries=2, name="down", on_outage="fail")
    with task_scope(task()) as current:
        with pytest.raises(ServiceError, match="down failed: ConnectionError: connection refused"):
            ask()
        assert len(calls) == 3
        assert recorder(current).queued == []
    with task_scope(task()), pytest.raises(ServiceError):
        ask()  # not recorded, so the service is called again
    assert len(calls) == 6


def test_replay_raises_a_recorded_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConnectionError("connection refused")

    ask, calls = counted(fail, on_outage="record")
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

    ask, _ = counted(
        lambda x: x + 1, name="far", timeout=3, retries=2, concurrency=4, on_outage="record", outages=(KeyError,)
    )
    back = cloudpickle.loads(cloudpickle.dumps(ask))  # type: ignore[no-untyped-call]
    assert (back.name, back.timeout, back.retries, back.concurrency) == ("far", 3, 2, 4)
    assert (back.on_outage, back.outages) == ("record", (KeyError,))
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
    with task_scope(task()), pytest.raises(ZeroDivisionError):
        ask.map([3, 0, 1])


# Coroutines


def test_an_async_service_is_called_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is recorded, and a client of an event loop may be kept between calls."""
    loops = set()

    @clonos.service(concurrency=4)
    async def ask(word: str) -> dt.datetime:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return clonos.now() if word == "now" else dt.datetime.now(dt.UTC)

    first = task()
    with task_scope(first):
        answers = ask.map(["a", "b", "now"])
        assert answers[2] == clonos.now(), "the coroutine runs in the context of the call"
    assert len(loops) == 1
    second = replaying(first, monkeypatch)
    with task_scope(second):
        assert ask.map(["a", "b", "now"]) == answers
    assert (second.recorded, second.replayed) == (0, 3)


def test_an_async_service_may_call_another_one() -> None:
    @clonos.service
    async def inner(word: str) -> str:
        await asyncio.sleep(0)
        return word.upper()

    @clonos.service
    async def outer(word: str) -> str:
        return inner(word) + "!"

    with task_scope(task()) as current:
        assert outer("a") == "A!"
    assert current.recorded == 2


def test_an_async_service_is_cancelled_at_its_timeout() -> None:
    cancelled = threading.Event()

    @clonos.service(timeout=0.05, on_outage="fail")
    async def ask() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    with task_scope(task()), pytest.raises(ServiceTimedOut):
        ask()
    assert cancelled.wait(10)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError, ValueError),
        (TimeoutError, ServiceError),
        (SystemExit, RuntimeError),
        (KeyboardInterrupt, RuntimeError),
    ],
)
def test_a_failing_coroutine_is_a_failing_call(error: type[BaseException], raised: type[Exception]) -> None:
    """As for other services. The loop serves the next call, also after SystemExit."""

    @clonos.service(timeout=30, on_outage="fail")
    async def ask(fails: bool) -> str:
        if fails:
            raise error("no")
        return "yes"

    with task_scope(task()), pytest.raises(raised):
        ask(True)
    with task_scope(task()):
        assert ask(False) == "yes"


# Values of numpy and pandas


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(3), [0, 1, 2]),
        ({"score": np.float64(0.5), "labels": [np.int64(1), (np.int8(2),)]}, {"score": 0.5, "labels": [1, [2]]}),
        ({np.int64(1): np.array([[1.5]])}, {1: [[1.5]]}),
        (pd.Timestamp("2024-05-01T10:16Z"), dt.datetime(2024, 5, 1, 10, 16, tzinfo=dt.UTC)),
        (pd.NA, None),
        (pa.scalar(5), 5),
    ],
)
def test_answers_of_numpy_are_recorded(answer: object, plain: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `model.predict` returns them."""
    ask = clonos.service(lambda: answer)
    first = task()
    with task_scope(first):
        assert ask() == plain
    with task_scope(replaying(first, monkeypatch)):
        assert ask() == plain


def test_a_number_of_numpy_fits_the_annotation() -> None:
    @clonos.service
    def ask() -> int:
        return np.int64(3)  # type: ignore[return-value]

    with task_scope(task()):
        assert type(ask()) is int


def test_integers_of_pandas_are_plain_arguments() -> None:
    """A null beside an integer changes neither the argument nor the key of its answer."""
    ask, calls = counted(lambda *_: "a")
    with task_scope(task()) as current:
        ask.map(pd.Series([5, None], dtype="Int64"))
        ask.map(pd.Series([5]))
        ask(5)
    assert calls == [(5,), (None,)]
    assert [type(call[0]) for call in calls] == [int, type(None)]
    assert current.recorded == 2
