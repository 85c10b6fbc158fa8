"""Poison records as ordinary rows for their dead-letter topic.

Nothing here may differ in a replay: headers name job and epoch, never an attempt or a time of day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from clonos.formats.poison import COLUMN

PREFIX: Final = "clonos.error."
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class DeadLetters:
    """Turns the rows of one lane whose ``poison`` is not null into rows for their dead-letter topic.

    Attributes:
        count: How many there were so far.
    """

    def __init__(self, job: str, epoch: int) -> None:
        self._job = job
        self._epoch = epoch
        self.count = 0

    def ordinary(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`batches` without the column ``poison``; each is followed by one of the records that it held there."""
        for batch in batches:
            if COLUMN not in batch.schema.names:
                yield batch
                continue
            poison = batch.column(COLUMN)
            rest = batch.drop_columns([COLUMN])
            if poison.null_count == len(poison):
                yield rest
                continue
            yield rest.filter(poison.is_null())
            letters = [self._letter(one) for one in poison.drop_null().to_pylist()]
            self.count += len(letters)
            yield pa.RecordBatch.from_pylist(letters, schema=_SCHEMA)

    def _letter(self, poison: dict[str, Any]) -> dict[str, Any]:
        causes = {
            "topic": poison["topic"],
            "partition": poison["partition"],
            "offset": poison["offset"],
            "class": poison["error"],
            "message": poison["message"],
            "job": self._job,
            "epoch": self._epoch,
        }
        return {
            "topic": poison["dead_letters"],
            "key": poison["key"],
            "value": poison["value"],
            "headers": [
                *(poison["headers"] or ()),
                *({"key": PREFIX + name, "value": str(value).encode()} for name, value in causes.items()),
            ],
            "timestamp": poison["timestamp"],
        }
