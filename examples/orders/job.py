"""Running totals per customer: a stateful job with timers, late orders and a sample.

Each order has one record in ``totals``: the number of the customer's orders so far, and their sum. Orders that arrive
long after newer orders of their customer count too. They are marked, and also published to ``late``. A random share is
also published to ``sample``. After a customer has not ordered for a while, a timer publishes a notice in ``inactive``.

A replay repeats state, timers and draws: timers use the time that Spark logged for the epoch, and draws follow from the
epoch's seed and the order's position in the source.

Run it with ``clonos run examples/orders/job.yaml``; the parameters name the topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

import clonos
from clonos.formats import Json

LATE_MS = 10_000
IDLE_MS = 3_000
SAMPLE_SHARE = 0.1

ORDER = "order string not null, customer string not null, cents long not null, at long not null"
RESULT = (
    "source struct<topic:string,partition:int,offset:long>, customer string, order string, cents long, "
    "orders long, total long, late boolean, sampled boolean, at long, epoch long"
)


class Accounts(StatefulProcessor):
    """One customer's account."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        # `newest` is the time of the newest order, `alarm` that of the timer; 0: none.
        self.account = handle.getValueState("account", "orders long, total long, newest long, alarm long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        now = timerValues.getCurrentProcessingTimeInMs()
        orders, total, newest, alarm = self.account.get() or (0, 0, 0, 0)
        for row in rows:
            orders += 1
            total += row.cents
            yield Row(
                source=Row(topic=row.topic, partition=row.partition, offset=row.offset),
                customer=row.customer,
                order=row.order,
                cents=row.cents,
                orders=orders,
                total=total,
                late=row.at < newest - LATE_MS,
                sampled=clonos.random((row.topic, row.partition, row.offset)) < SAMPLE_SHARE,
                at=now,
                epoch=clonos.epoch(),
            )
            newest = max(newest, row.at)
        if alarm:
            self.handle.deleteTimer(alarm)
        self.handle.registerTimer(now + IDLE_MS)
        self.account.update((orders, total, newest, now + IDLE_MS))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        orders, total, newest, _ = self.account.get() or (0, 0, 0, 0)
        self.account.update((orders, total, newest, 0))
        # A notice has no order.
        yield Row(
            source=None,
            customer=key[0],
            order=None,
            cents=None,
            orders=orders,
            total=total,
            late=None,
            sampled=None,
            at=timerValues.getCurrentProcessingTimeInMs(),
            epoch=clonos.epoch(),
        )


@clonos.job(
    name="orders",
    params={"orders": "orders", "totals": "totals", "late": "late", "sample": "sample", "inactive": "inactive"},
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
def orders(ctx: clonos.JobContext) -> None:
    """Build the query."""
    placed = ctx.decode(ctx.source(ctx.params["orders"]), Json(), schema=ORDER)
    results = (
        placed.select("topic", "partition", "offset", "record.*")
        .groupBy("customer")
        .transformWithState(clonos.operator(Accounts(), name="accounts"), RESULT, "append", "processingTime")
    )

    value = F.to_json(F.struct(*results.columns))
    conditions = {
        "totals": "order IS NOT NULL",
        "late": "late",
        "sample": "sampled",
        "inactive": "order IS NULL",
    }
    outputs = {
        ctx.params[name]: clonos.Output(value, key="customer", where=condition)
        for name, condition in conditions.items()
    }
    ctx.sink(clonos.fan_out(results, outputs), topic=ctx.params["totals"], name="totals")
