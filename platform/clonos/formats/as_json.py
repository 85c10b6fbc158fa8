"""JSON records."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from pyspark.sql.types import StructType

from clonos.errors import SpecError
from clonos.formats.codec import Decode, Encode
from clonos.formats.registry import Pins, SchemaSource, header, new_schema, registry_at, split
from clonos.formats.shape import json_decoder, python_type


@dataclass(frozen=True)
class Json:
    """JSON objects in UTF-8.

    Binary is base64, decimals are numbers or text, dates and timestamps are ISO 8601 text. Fields that the
    Spark schema does not name are left out.

    Args:
        framed: Records start with the registry's magic byte and a schema id. The id is not looked up: the
            Spark schema says what a record must be.
        registry: The registry's address; default ``CLONOS_REGISTRY__URL``. Only for encoding framed records.
        json_schema: The JSON Schema to register when framed records are encoded.
    """

    framed: bool = False
    registry: str | None = None
    json_schema: str | None = None

    def reader(self, schema: StructType | None, pins: Pins) -> JsonReader:
        """See `Format`."""
        if schema is None:
            raise SpecError("JSON does not say what it holds.", hint="pass schema='id long, …' to ctx.decode.")
        python_type(schema)
        return JsonReader(schema, self.framed)

    def writer(self, subject: str | None, pins: Pins) -> JsonWriter:
        """See `Format`."""
        if not self.framed:
            return JsonWriter(b"")
        text = self.json_schema
        if text is None or subject is None:
            raise SpecError("Framed JSON needs json_schema= and subject= to be encoded.")
        url = pins.url(self.registry, format_name="Framed JSON")
        number = pins.ask(
            f"register {subject}",
            url,
            lambda: int(registry_at(url).register(subject, new_schema(text, "JSON")).schema_id or 0),
            text=text,
        )
        return JsonWriter(header(number))


@dataclass(frozen=True)
class JsonReader:
    """A task's half of decoding."""

    spark_type: StructType
    framed: bool
    registry: None = None

    def open(self, schemas: SchemaSource) -> Decode:
        """See `Reader`."""
        decode = json_decoder(self.spark_type)
        if self.framed:
            return lambda value: decode(split(value)[1])
        return decode


@dataclass(frozen=True)
class JsonWriter:
    """A task's half of encoding."""

    start: bytes

    def open(self) -> Encode:
        """See `Writer`."""
        encode = msgspec.json.Encoder().encode
        return lambda record: self.start + encode(record)
