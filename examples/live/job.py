"""A risk for each payment within milliseconds: a live query with a function in Python.

Spark's tasks read all the time, and each result becomes visible in a small transaction, exactly once. After a crash the
job continues behind the newest of them: nothing is computed or published again.

Run it with ``clonos run examples/live/job.yaml``; the parameters name the topics.
"""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import clonos

PAYMENT = "payment string, card string, cents long"


@F.udf(LongType(), useArrow=True)
def risk(card: str, cents: int) -> int:
    """A score from 0 to 99."""
    return (cents // 100 + 7 * int(card[1:])) % 100


@clonos.job(name="live", params={"payments": "payments", "scored": "scored"}, trigger={"mode": "live"})
def live(ctx: clonos.JobContext) -> None:
    """Build the query."""
    payments = ctx.source(ctx.params["payments"]).withColumn(
        "payment", F.from_json(F.col("value").cast("string"), PAYMENT)
    )
    source = F.struct("topic", "partition", "offset").alias("source")
    scored = F.to_json(F.struct(source, "payment.*", risk("payment.card", "payment.cents").alias("risk")))
    ctx.sink(payments.select("key", scored.alias("value")), topic=ctx.params["scored"], name="scored")
