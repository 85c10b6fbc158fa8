"""The benchmarks' stateful job: counts the records of each key, and stores ballast of a requested size.

A record whose key begins with ``f`` is not counted: its value is the number of bytes of state for its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues

import clonos

RESULT = "key string, number long, count long"


class Counter(StatefulProcessor):
    """One key's count."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Two states: the count, and ballast that only takes space."""
        self.count = handle.getValueState("count", "n long")
        self.ballast = handle.getValueState("ballast", "bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # type: ignore[override]  # noqa: N802, N803
        """Count them."""
        name = key[0]
        numbers = sorted(row.number for row in rows)
        if name.startswith("f"):
            # Bytes that no compression makes smaller, and the same in a replay.
            self.ballast.update((hashlib.shake_128(name.encode()).digest(numbers[-1]),))
            return
        (count,) = self.count.get() or (0,)
        for number in numbers:
            count += 1
            yield Row(key=name, number=number, count=count)
        self.count.update((count,))


@clonos.job(name="bench-stateful", params={"input": "in", "output": "out", "per_epoch": "2000"})
def stateful(ctx: clonos.JobContext) -> None:
    """Read, count, publish."""
    records = ctx.source(ctx.params["input"], max_per_epoch=int(ctx.params["per_epoch"]))
    counted = (
        records.select(
            F.col("key").cast("string").alias("key"), F.col("value").cast("string").cast("long").alias("number")
        )
        .groupBy("key")
        .transformWithState(clonos.operator(Counter(), name="counter"), RESULT, "append", "none")
    )
    value = F.concat_ws(" ", F.col("number"), F.col("count"))
    ctx.sink(
        counted.select(F.col("key").cast("binary"), value.cast("binary").alias("value")),
        topic=ctx.params["output"],
        name="out",
    )
