"""Converts poison records to ordinary rows for their dead-letter topic.

The rows are the same in a replay: headers name job and epoch, never an attempt or the current time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
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
    """Converts the poison records of one lane (rows whose column ``poison`` is not null) to rows for their
    dead-letter topic.
    """

    def __init__(self, job: str, epoch: int) -> None:
        self._job = job
        self._epoch = epoch
        self.count = 0  # number of poison records so far

    def ordinary(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Replace each row with a poison record by its dead-letter row, and drop the column ``poison``.

        The order of rows does not change, because a job may send its own rows to the dead-letter topic too.
        """
        for batch in batches:
            if COLUMN not in batch.schema.names:
                yield batch
                continue
            poison = batch.column(COLUMN)
            rest = batch.drop_columns([COLUMN])
            if poison.null_count == len(poison):
                yield rest
                continue
            start = 0
            for poisonous, run in groupby(poison.is_valid().to_pylist()):
                length = sum(1 for _ in run)
                if poisonous:
                    letters = [self._letter(record) for record in poison.slice(start, length).to_pylist()]
                    self.count += length
                    yield pa.RecordBatch.from_pylist(letters, schema=_SCHEMA)
                else:
                    yield rest.slice(start, length)
                start += length

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
