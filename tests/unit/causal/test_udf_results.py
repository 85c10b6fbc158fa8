"""Results of UDFs that do not fit their declared type."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import FloatType, StructField, StructType

import clonos
from clonos.carried_errors import CarriedError, uncarry
from clonos.causal.operator_task import OperatorTask
from clonos.causal.udf import _run
from clonos.causal.vectorised import _fitting
from clonos.errors import JobCodeError, SpecError


def results(function: Any, arrow_type: pa.DataType, *rows: Any) -> list[Any]:
    batches: Iterator[tuple[pa.Array, ...]] = iter([(pa.array(rows),)])
    arrays = _run(function, "shout", ("row",), batches, arrow_type, struct=False, counters=SimpleNamespace())
    return [item.to_pylist() for item in arrays]


def test_a_lone_surrogate_is_named_with_its_udf_and_row() -> None:
    with pytest.raises(CarriedError) as raised:
        results(lambda row: "\ud800" if row == "bad" else row, pa.string(), "good", "bad", "good")
    error = uncarry(str(raised.value))
    assert type(error) is JobCodeError
    assert "shout" in error.what
    assert r"'\ud800'" in error.what
    assert "('bad')" in error.what


def test_a_value_of_another_type_is_named() -> None:
    with pytest.raises(CarriedError) as raised:
        results(lambda row: {"a": row}, pa.int64(), 1)
    error = uncarry(str(raised.value))
    assert type(error) is JobCodeError
    assert "{'a': 1}" in error.what


def test_a_number_above_64_bits_is_named() -> None:
    with pytest.raises(CarriedError, match="does not fit the type int64"):
        results(lambda row: row << 70, pa.int64(), 1)


def invalid(*values: bytes) -> pa.Array:
    """Text as Spark sends it: `cast("string")` keeps bytes that are not UTF-8."""
    array = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(array), array.buffers()[1], array.buffers()[2])


@pytest.mark.parametrize(
    ("column", "names", "shown"),
    [
        (invalid(b"ok", b"bad-\xff"), "t of row 1", r"b'bad-\xff' is not valid UTF-8"),
        (pa.StructArray.from_arrays([invalid(b"ok", b"\xff")], ["m"]), "t.m of row 1", r"b'\xff' is not valid UTF-8"),
        (pa.ListArray.from_arrays([0, 1, 2], invalid(b"ok", b"\xff")), "t[0] of row 1", r"b'\xff'"),
        (pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", "UTC")), "t of row 1", "253402300800000000"),
        (pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()), "t of row 1", "2932897"),
    ],
)
def test_values_that_python_cannot_hold_are_named(column: pa.Array, names: str, shown: str) -> None:
    batches = iter([(pa.array(["a", "b"]), column)])
    with pytest.raises(CarriedError) as raised:
        list(
            _run(lambda *row: row, "shout", ("k", "t"), batches, pa.string(), struct=False, counters=SimpleNamespace())
        )
    error = uncarry(str(raised.value))
    assert type(error) is JobCodeError
    assert f"The UDF shout cannot read {names} of its task: " in error.what
    assert shown in error.what
    assert "make_valid_utf8" in error.hint


def test_a_batch_that_pandas_cannot_hold_is_named() -> None:
    def batches() -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"t": ["a", "b"]})
        yield pd.DataFrame({"t": invalid(b"bad-\xff").to_pandas()})

    with pytest.raises(CarriedError) as raised:
        list(OperatorTask("shout", SimpleNamespace()).stream(None, lambda frames: frames, batches()))
    error = uncarry(str(raised.value))
    assert type(error) is JobCodeError
    assert (
        "The operator shout cannot read its input after row 2 of its task: 'Unknown error: Wrapping bad" in error.what
    )


@pytest.mark.parametrize("struct", [False, True])
def test_a_number_of_pandas_above_32_bits_is_named(struct: bool) -> None:
    kind = StructType([StructField("f", FloatType())]) if struct else FloatType()
    series = pd.Series([1.5, math.inf, math.nan, 3.4e38])
    result = pd.DataFrame({"f": series}) if struct else series
    assert _fitting(result, kind, "shout") is result
    with pytest.raises(CarriedError, match=r"The UDF shout returned 1e\+300"):
        _fitting(result.replace(1.5, 1e300), kind, "shout")


@pytest.mark.parametrize("wrap", [clonos.udf("long"), clonos.pandas_udf("long"), clonos.operator])
def test_an_async_function_is_not_an_operator(wrap: Any) -> None:
    async def later(row: int) -> int:
        return row

    with pytest.raises(SpecError, match="later is an async def"):
        wrap(later)


PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "result", "named"),
    [
        (PAIR, (1.9, "x"), "a takes an integer of 64 bits, not 1.9"),
        (PAIR, [("a", 1.9), ("b", "x")], "a dict or a tuple of 2 fields"),
        (pa.list_(PAIR), [(1, "x"), (1.9, "x")], "[1].a takes an integer"),
        (pa.list_(pa.int64()), {1.9}, "a set has no order"),
        (pa.list_(pa.string()), {"a", "b"}, "a set has no order"),
        (pa.list_(pa.int64()), deque([1.9]), "[0] takes an integer"),
        (pa.list_(pa.int64()), {1.9: 0}.keys(), "a set has no order"),
        (pa.list_(pa.int64()), {0: 1.9}.values(), "[0] takes an integer"),
        (pa.map_(pa.int64(), pa.string()), {1.9: "x"}, "[1.9] takes an integer"),
        (pa.map_(pa.int64(), pa.string()), [(1.9, "x")], "[1.9] takes an integer"),
        (pa.map_(pa.int64(), pa.string()), {(1.9, "x")}, "takes a map"),
        (pa.map_(pa.string(), pa.int64()), [{"key": "k", "value": 1.9}], "takes a map"),
        (pa.map_(pa.string(), pa.list_(pa.string())), {"k": {"a"}}, "a set has no order"),
    ],
)
def test_a_container_whose_values_do_not_fit_is_named(kind: pa.DataType, result: Any, named: str) -> None:
    with pytest.raises(CarriedError) as raised:
        results(lambda row: result, kind, 1)
    error = uncarry(str(raised.value))
    assert type(error) is JobCodeError
    assert named in error.what


@pytest.mark.parametrize(
    ("kind", "result", "wanted"),
    [
        (PAIR, (2.0, "x"), {"a": 2, "b": "x"}),
        (PAIR, {"b": "x"}, {"a": None, "b": "x"}),
        (pa.list_(pa.int64()), range(2), [0, 1]),
        (pa.list_(pa.string()), ("a", None), ["a", None]),
        (pa.list_(pa.int64()), pd.Series([1, 2]), [1, 2]),
        (pa.map_(pa.int64(), pa.string()), {1: "x"}, [(1, "x")]),
        (pa.map_(pa.int64(), pa.string()), [(1, "x")], [(1, "x")]),
        (pa.map_(pa.string(), pa.string()), None, None),
    ],
)
def test_containers_that_fit_pass(kind: pa.DataType, result: Any, wanted: Any) -> None:
    assert results(lambda row: result, kind, 1) == [[wanted]]


def test_a_map_reaches_the_function_as_a_dict() -> None:
    column = pa.array([[("b", 1), ("a", 2)], None, []], pa.map_(pa.string(), pa.int64()))
    seen: list[Any] = []
    batches: Iterator[tuple[pa.Array, ...]] = iter([(column,)])
    list(_run(seen.append, "shout", ("m",), batches, pa.string(), struct=False, counters=SimpleNamespace()))
    assert seen == [{"b": 1, "a": 2}, None, {}]


def test_results_that_fit_pass() -> None:
    assert results(lambda row: row + 1, pa.int64(), 1, 2) == [[2, 3]]
