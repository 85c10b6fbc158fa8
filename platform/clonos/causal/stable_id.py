"""Ids that depend on columns only, so that they agree between sinks, jobs and after a restore."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F

NAMESPACE: Final = UUID("50f1ac57-5799-5508-8d86-8d4910de2d0d")
"""The namespace of the ids: ``uuid5(NAMESPACE_URL, "https://clonos")``."""


def stable_id(*columns: Column | str) -> Column:
    """Return a UUID that depends on the values of `columns` only (version 5, RFC 9562).

    Against `uuid4` neither the query, the epoch nor the operator matters: two sinks compute the same id for a record,
    and so does a job after a restore from a savepoint.

    Args:
        columns: Columns of text or numbers that identify the row, such as its position in the source.

    Returns:
        The id as text. Outside Spark, this computes the same id::

            uuid.uuid5(clonos.causal.stable_id.NAMESPACE, json.dumps([str(part) for part in parts],
                                                                     separators=(",", ":"), ensure_ascii=False))

    Example::

        orders.withColumn("id", clonos.stable_id("topic", "partition", "offset"))
    """
    parts = [(F.col(column) if isinstance(column, str) else column).cast("string") for column in columns]
    name = F.to_json(F.array(*parts)).cast("binary")
    digest = F.sha1(F.concat(F.lit(NAMESPACE.bytes), name))

    def digits(start: int, count: int) -> Column:
        return F.substring(digest, start, count)

    # RFC 9562: version 5 in the 13th digit, variant 10 in the upper two bits of the 17th.
    variant = F.substring(F.lit("89ab"), F.conv(digits(17, 1), 16, 10).cast("int") % 4 + 1, 1)
    return F.concat_ws(
        "-",
        digits(1, 8),
        digits(9, 4),
        F.concat(F.lit("5"), digits(14, 3)),
        F.concat(variant, digits(18, 3)),
        digits(21, 12),
    )
