"""Two stateful queries: a stream-stream join summed in windows, and a processor with timers.

Each query reads a fixed number of records per epoch, so that two runs have the same epochs.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

import clonos

SPELL_MS = 15_000


class Spells(StatefulProcessor):
    """Adds up the amounts of a key; a timer emits the sum of a spell and resets it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.sums = handle.getValueState("sums", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        n, total = self.sums.get() if self.sums.exists() else (0, 0)
        for row in rows:
            if n == 0:
                self.handle.registerTimer(row.at_ms + SPELL_MS)
            n, total = n + 1, total + row.amount
            yield Row(key=key[0], n=n, total=total, over=False)
        self.sums.update((n, total))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        n, total = self.sums.get()
        self.sums.clear()
        yield Row(key=key[0], n=n, total=total, over=True)


@clonos.job(name="stateful", spark_conf={"spark.sql.shuffle.partitions": "2"})
def stateful(ctx: clonos.JobContext) -> None:
    def read(topic: str) -> DataFrame:
        rows = ctx.source(ctx.params[topic], max_per_epoch=int(ctx.params["per_epoch"]))
        fields = F.from_json(F.col("value").cast("string"), "key string, at_ms long, amount long")
        return rows.select(fields.alias("it")).select("it.*").withColumn("at", F.timestamp_millis("at_ms"))

    def publish(frame: DataFrame, name: str, *columns: str) -> None:
        value = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("value")
        ctx.sink(frame.select("key", value), topic=ctx.params[name], name=name)

    orders = read("orders").withWatermark("at", "5 seconds").alias("o")
    payments = read("payments").withWatermark("at", "5 seconds").alias("p")
    soon = F.expr("o.key = p.key AND o.amount = p.amount AND p.at BETWEEN o.at AND o.at + INTERVAL 10 SECONDS")
    joined = orders.join(payments, soon, "left_outer").select("o.key", "o.at", "o.amount", F.col("p.at").alias("paid"))
    sums = joined.groupBy(F.window("at", "20 seconds"), "key").agg(
        F.count("*").alias("orders"), F.count("paid").alias("paid"), F.sum("amount").alias("total")
    )
    sums = sums.withColumn("begin", F.col("window.start").cast("long"))
    publish(sums, "sums", "key", "begin", "orders", "paid", "total")

    spells = (
        read("orders")
        .withWatermark("at", "5 seconds")
        .groupBy("key")
        .transformWithState(
            clonos.operator(Spells(), name="spells", order_by="at_ms"),
            "key string, n long, total long, over boolean",
            "append",
            "eventTime",
        )
    )
    publish(spells, "spells", "key", "n", "total", "over")
