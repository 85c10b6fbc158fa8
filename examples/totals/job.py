"""Orders to a table with the total of each customer. Each order counts once, also when the driver is killed."""

from pyspark.sql import functions as F

import clonos
from clonos.formats import Json


@clonos.job(name="totals", spark_conf={"spark.sql.shuffle.partitions": "2"})
def totals(ctx: clonos.JobContext) -> None:
    orders = ctx.decode(ctx.source(ctx.params["orders"]), Json(), schema="customer string, cents long")
    of_customer = orders.groupBy("record.customer").agg(
        F.count("*").alias("orders"), F.sum("record.cents").alias("cents")
    )
    # After groupBy all rows of a customer are in one lane, as the key of an upsert requires.
    ctx.sink(of_customer, connector="sql", connection="shop", table="totals", key=["customer"], mode="update")
