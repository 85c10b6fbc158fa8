"""Results of UDFs that do not fit their declared type."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from clonos.carried_errors import CarriedError, uncarry
from clonos.causal.udf import _run
from clonos.errors import JobCodeError


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
    with pytest.raises(CarriedError, match="is no int64"):
        results(lambda row: row << 70, pa.int64(), 1)


def test_results_that_fit_pass() -> None:
    assert results(lambda row: row + 1, pa.int64(), 1, 2) == [[2, 3]]
