"""The interfaces of a format: `Format` for the driver, `Reader` and `Writer` for tasks (see `clonos.formats`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql.types import StructType

from clonos.formats.registry import Pins, SchemaSource

Decode = Callable[[bytes], Any]
Encode = Callable[[dict[str, Any]], bytes]


class Undecodable(Exception):
    """The bytes of a record do not follow the format, so it is a poison record."""


class Reader(Protocol):
    """Decodes records in Spark tasks. A `Format` creates it in the driver, and it must be picklable."""

    @property
    def spark_type(self) -> StructType:
        """Spark type of the decoded records."""

    @property
    def registry(self) -> str | None:
        """URL of the registry for the records' schemas; None: no registry."""

    def open(self, schemas: SchemaSource) -> Decode:
        """Prepare decoding, once per task.

        Args:
            schemas: Returns the schema with an id, from the Schema Registry.

        Returns:
            A function from a record's bytes to a dict of `spark_type`. Any exception that it raises makes the record a
                poison record.
        """


class Writer(Protocol):
    """Encodes records in Spark tasks. A `Format` creates it in the driver, and it must be picklable."""

    def open(self) -> Encode:
        """Prepare encoding, once per task.

        Returns:
            A function from a dict to a record's bytes.
        """


class Format(Protocol):
    """The interface of a format, the argument of `ctx.decode` and `ctx.encode`; for example `clonos.formats.Json`."""

    def reader(self, schema: StructType | None, pins: Pins) -> Reader:
        """Choose the schema for decoding, in the driver.

        Args:
            schema: Spark type of the records; None: the type of the format's own schema.
            pins: The Schema Registry's answers in the plan of an epoch in doubt; new answers are added.

        Returns:
            The reader, which is sent to the tasks.

        Raises:
            SpecError: `schema` is missing, or records cannot be decoded to it.
            RegistryUnavailable: The registry did not answer.
        """

    def writer(self, subject: str | None, pins: Pins) -> Writer:
        """Choose the schema for encoding, in the driver; with a Schema Registry, register it or look it up.

        Args:
            subject: Subject of the schema in the registry; None: not stated by the job.
            pins: The Schema Registry's answers in the plan of an epoch in doubt; new answers are added.

        Returns:
            The writer, which is sent to the tasks.

        Raises:
            SpecError: The subject or the schema is missing, or the registry refuses the schema.
            RegistryUnavailable: The registry did not answer.
        """
