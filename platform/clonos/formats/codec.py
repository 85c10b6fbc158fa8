"""What a format is: a driver's half that settles schemas, and a task's half that reads and writes bytes.

The driver's half runs once, while the job function builds its columns; what it asks of a registry that may
answer otherwise another day is *pinned*. The task's half is pickled into the plan and holds no credentials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql.types import StructType

from clonos.formats.registry import Pins, SchemaSource

Decode = Callable[[bytes], Any]
Encode = Callable[[dict[str, Any]], bytes]


class Undecodable(Exception):
    """Bytes that are not what the format says: the record is poison."""


class Reader(Protocol):
    """A task's half of decoding; picklable.

    Attributes:
        spark_type: What a record becomes.
        registry: Where schemas of records are looked up; None: nowhere.
    """

    spark_type: StructType
    registry: str | None

    def open(self, schemas: SchemaSource) -> Decode:
        """A function from a record's bytes to a dict of `spark_type`; it raises what is wrong with them."""


class Writer(Protocol):
    """A task's half of encoding; picklable."""

    def open(self) -> Encode:
        """A function from a dict to a record's bytes."""


class Format(Protocol):
    """What `ctx.decode` and `ctx.encode` take."""

    def reader(self, schema: StructType | None, pins: Pins) -> Reader:
        """Settle what records are decoded to.

        Raises:
            SpecError: `schema` is needed, or cannot be decoded to.
            RegistryUnavailable: The registry did not answer.
        """

    def writer(self, subject: str | None, pins: Pins) -> Writer:
        """Settle how records are encoded, and register the schema where there is a registry.

        Raises:
            SpecError: Subject or schema is missing, or the registry refuses the schema.
            RegistryUnavailable: The registry did not answer.
        """
