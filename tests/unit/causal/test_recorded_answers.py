"""Recorded answers: which types a replay returns, and which answers and arguments are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from scopes import counted, recorder, replaying, task

import clonos
from clonos.causal.scope import task_scope
from clonos.causal.service import MAX_ANSWER_BYTES
from clonos.errors import ResultNotSerialisable, ServiceError
from clonos.formats import columns
from clonos.formats.registry import UnknownSchema

pytestmark = pytest.mark.usefixtures("fake_recorder")


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
    """cloudpickle includes the names that the code uses, but not names in annotations."""
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


def _deep() -> list[object]:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


def _mistyped() -> int:
    return "text"  # type: ignore[return-value]


@pytest.mark.parametrize("on_outage", ["wait", "record"])
@pytest.mark.parametrize(
    "function",
    [object, lambda: 2**70, lambda: "x" * MAX_ANSWER_BYTES, _mistyped, _deep],
    ids=["object", "integer", "size", "type", "depth"],
)
def test_an_answer_that_was_not_recorded_decides_no_output(function: Callable[[], object], on_outage: Any) -> None:
    """The function may catch the error; a later attempt may get an answer that can be recorded."""
    ask = clonos.service(name="odd", on_outage=on_outage)(function)
    with task_scope(task()) as current:
        with pytest.raises(ResultNotSerialisable):
            ask()
        with pytest.raises(ResultNotSerialisable):
            current.flush()


def test_the_failure_of_one_service_is_not_recorded_as_an_answer_of_another() -> None:
    def away() -> None:
        raise ConnectionError("away")

    failing, _ = counted(away, on_outage="fail")
    other, calls = counted(on_outage="record")
    with task_scope(task()) as current:
        for service in (failing, other):
            with pytest.raises(ServiceError, match="away"):
                service()
    assert (calls, recorder(current).queued) == ([], [])


@pytest.mark.parametrize("on_outage", ["wait", "fail", "record"])
def test_an_answer_above_the_limit_of_a_record_names_service_and_size(on_outage: str) -> None:
    ask, calls = counted(lambda: "x" * MAX_ANSWER_BYTES, name="verbose", retries=3, on_outage=on_outage)
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


@pytest.mark.parametrize(("live_since_ns", "times_asked"), [(0, 1), (1, 2)])
def test_an_unknown_schema_is_asked_for_again_by_the_next_batch_of_a_live_epoch(
    monkeypatch: pytest.MonkeyPatch, live_since_ns: int, times_asked: int
) -> None:
    asked: list[int] = []

    class Registry:
        registry = "http://registry"

        def open(self, schemas: Callable[[int], str]) -> Callable[[bytes], str]:
            return lambda _value: schemas(7)

        def schema(self, number: int, *, serialized: bool) -> str:
            asked.append(number)
            raise UnknownSchema(f"{number}, {serialized}")

    monkeypatch.setattr(columns, "registry_at", lambda _url: Registry())
    monkeypatch.setattr(columns, "open_task_scope", lambda _operator: task(live_since_ns=live_since_ns))
    decoding = columns._Decoding(Registry(), "decode")  # type: ignore[arg-type]
    for _ in range(2):
        assert len(decoding.decode([b"a", b"b"], pa.int64())[1]) == 2
        decoding.flush()
    assert len(asked) == times_asked
