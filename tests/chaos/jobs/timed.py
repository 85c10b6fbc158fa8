"""A stateful processor with timers that appends a line to a file at each call."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

import clonos

CALLS = Path(os.environ.get("CLONOS_HOME", "."), "calls")
DUE_MS = 20_000


def called(what: str) -> None:
    with CALLS.open("a") as calls:
        calls.write(what + "\n")


class Timed(StatefulProcessor):
    """Emits a key when its timer is due."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        called("rows")
        self.seen.update((sum(1 for _ in rows),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + DUE_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        called("timer")
        yield Row(value=key[0])


@clonos.job(name="timed")
def timed(ctx: clonos.JobContext) -> None:
    lines = ctx.source(ctx.params["input"]).select(F.col("value").cast("string").alias("value"))
    due = lines.groupBy("value").transformWithState(Timed(), "value string", "append", "processingTime")
    ctx.sink(due, topic=ctx.params["output"], name="timed")
