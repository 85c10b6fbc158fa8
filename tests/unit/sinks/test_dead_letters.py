"""Poison records as rows of their dead-letter topic, and the count of dropped records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from clonos.errors import SpecError
from clonos.formats.poison import POISON, DropCount, _attempt, _Sums
from clonos_sinks.kafka.dead_letters import DeadLetters
from clonos_sinks.kafka.rows import Row, check_schema, rows_of

LETTER: dict[str, Any] = {
    "key": b"k",
    "value": b"\xff",
    "headers": [{"key": "h", "value": None}],
    "timestamp": 1_700_000_000_123_000,
    "topic": "orders",
    "partition": 2,
    "offset": 7,
    "error": "DecodeError",
    "message": "ä",
    "dead_letters": "orders.dead",
}


def batch(poison: list[dict[str, Any] | None]) -> pa.RecordBatch:
    values = pa.array([f"v{n}".encode() for n in range(len(poison))], pa.binary())
    return pa.RecordBatch.from_arrays(
        [values, pa.array(poison, to_arrow_type(POISON, timezone="UTC"))], names=["value", "poison"]
    )


def rows(batches: list[pa.RecordBatch], letters: DeadLetters) -> list[Row]:
    return [row for batch in letters.ordinary(iter(batches)) for row in rows_of(batch, "out")]


def test_poison_record_is_published_unchanged_with_its_cause() -> None:
    letters = DeadLetters("job", 3)
    published = rows(
        [batch([None, LETTER, None]), batch([None]), batch([{**LETTER, "headers": None, "key": None}])], letters
    )
    causes = (
        ("clonos.error.topic", b"orders"),
        ("clonos.error.partition", b"2"),
        ("clonos.error.offset", b"7"),
        ("clonos.error.class", b"DecodeError"),
        ("clonos.error.message", "ä".encode()),
        ("clonos.error.job", b"job"),
        ("clonos.error.epoch", b"3"),
    )
    assert published == [
        Row("out", None, b"v0", None, None, None),
        Row("orders.dead", b"k", b"\xff", None, (("h", None), *causes), 1_700_000_000_123),
        Row("out", None, b"v2", None, None, None),
        Row("out", None, b"v0", None, None, None),
        Row("orders.dead", None, b"\xff", None, causes, 1_700_000_000_123),
    ]
    assert letters.count == 2


def test_dead_letters_keep_the_order_of_rows() -> None:
    """A job may send its own rows to the dead-letter topic; they and the poison records keep their order."""
    poison = [LETTER, LETTER, None, None, LETTER, None]
    letters = [record and {**record, "value": f"p{n}".encode()} for n, record in enumerate(poison)]
    published = rows([batch(letters), batch([LETTER])], DeadLetters("job", 0))
    assert [row.value for row in published] == [b"p0", b"p1", b"v2", b"v3", b"p4", b"v5", b"\xff"]


def test_batch_without_poison_column_is_unchanged() -> None:
    plain = pa.RecordBatch.from_arrays([pa.array([b"v"])], names=["value"])
    assert list(DeadLetters("job", 0).ordinary(iter([plain]))) == [plain]


def test_poison_column_of_another_type_is_refused() -> None:
    def schema(kind: T.DataType) -> T.StructType:
        return T.StructType([T.StructField("value", T.BinaryType()), T.StructField("poison", kind)])

    check_schema(schema(POISON), default_topic="t")
    for wrong in (T.StructType(POISON.fields[1:]), T.StringType()):
        with pytest.raises(SpecError, match="'poison'"):
            check_schema(schema(wrong), default_topic="t")


class Sums:
    """An accumulator in the driver."""

    def __init__(self) -> None:
        self.value: dict[str, int] = {}

    def add(self, more: dict[str, int]) -> None:
        self.value = _Sums().addInPlace(self.value, more)


def test_drops_of_a_failed_attempt_are_not_counted() -> None:
    count = DropCount()
    sums = Sums()
    count._sums = sums  # type: ignore[assignment]
    sums.add({_attempt("q", 1, "a"): 3})
    sums.add({_attempt("q", 1, "b"): 4})
    sums.add({_attempt("q", 1, "b"): 2, _attempt("other", 1, "b"): 9})
    assert count.take("q", 1, "b") == 6
    assert count.take("q", 2, "b") == 0
    assert sums.value == {_attempt("other", 1, "b"): 9}
