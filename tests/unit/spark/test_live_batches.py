"""Python functions in live queries: no row waits for a later batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from clonos.causal.epoch_scope import EpochScope
from clonos.log.records import EpochIdentity, Owner
from clonos.spark.live_batches import batch_by_batch, each_batch

IDENTITY = EpochIdentity("j", "clonos.j.log", "q", 3, Owner(1, 1, "a"), replay=False)
LIVE = EpochScope(IDENTITY, 0, 0, "0", (), {}, {}, {}, live_since_ns=time.monotonic_ns())
ROWS = StructType().add("word", StringType()).add("n", LongType())


def reluctant(batches: Iterator[Any]) -> Iterator[Any]:
    """Returns a batch when it has the next one."""
    kept = None
    for batch in batches:
        if kept is not None:
            yield kept
        kept = batch
    if kept is not None:
        yield kept


def halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 1)
        yield batch.slice(1)


@pytest.mark.parametrize("function", [reluctant, halves, lambda batches: batches])
def test_the_rows_of_a_batch_are_returned_before_the_next_one_is_read(function: Any) -> None:
    read: list[int] = []
    calls: list[int] = []
    returned = 0

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1, 6):
            assert returned == sum(read)
            read.append(number)
            yield pa.RecordBatch.from_pydict({"n": list(range(number))})

    def evaluate(task: int, batches: Iterator[Any]) -> Iterator[Any]:
        calls.append(task)
        yield from function(batches)

    for result in batch_by_batch(evaluate, LIVE, on_iterators=True)(7, batches()):
        returned += result.num_rows
    assert returned == 15
    assert calls == [7] * (5 if function is reluctant else 1)


def test_an_empty_result_follows_those_of_each_batch_which_all_have_one_schema() -> None:
    def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(batches))
        for word in rows["word"].to_pylist():
            column = pa.array([word], pa.large_string()) if word == "b" else pa.array([word])
            yield pa.RecordBatch.from_arrays([column, pa.nulls(1)], names=["word", "n"])
        yield rows.to_batches()[0].slice(0, 0)

    def in_pandas(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.concat(list(batches)).assign(n=1)
        yield pd.DataFrame()

    words = [pa.RecordBatch.from_pydict({"word": [word], "n": [0]}) for word in "abc"]
    arrow = list(each_batch(in_arrow, ROWS, pandas=False)(iter(words)))
    assert [batch.num_rows for batch in arrow] == [1, 0] * 3
    assert len({str(batch.schema) for batch in arrow}) == 1
    frames = [batch.to_pandas() for batch in words]
    pandas = list(each_batch(in_pandas, ROWS, pandas=True)(iter(frames)))
    assert [len(frame) for frame in pandas] == [1, 0] * 3
    assert {tuple(frame.columns) for frame in pandas} == {("word", "n")}


@pytest.mark.parametrize("returned", [None, 7, [7]])
def test_what_is_no_batch_reaches_the_check_of_pyspark(returned: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"word": ["a"], "n": [0]})
    first = next(each_batch(lambda _: returned, ROWS, pandas=False)(iter([batch])))
    assert first == (None if returned is None else 7)
