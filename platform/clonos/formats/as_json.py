"""The format JSON, with or without the Schema Registry's wire format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyspark.sql.types import StructType

from clonos.causal import exact
from clonos.errors import SpecError
from clonos.formats.codec import Decode, Encode
from clonos.formats.registry import Pins, SchemaSource, header, split
from clonos.formats.shape import json_decoder, python_type

# What msgspec makes of NaN and infinity, among other values.
_SUSPECT: Final = re.compile(rb'null|"(?:nan|-?inf)"')


@dataclass(frozen=True)
class Json:
    """The format JSON: each record is a JSON object in UTF-8.

    Binary is base64, decimals are numbers or text, dates and timestamps are ISO 8601 text. Fields that the Spark schema
    does not name are left out.

    Args:
        framed: Records start with the registry's magic byte and a schema id. The id is not looked up, because the Spark
            schema decides.
        registry: The registry's URL, for encoding framed records; default ``CLONOS_REGISTRY__URL``.
        json_schema: The JSON Schema to register, for encoding framed records.

    Example::

        orders = ctx.decode(ctx.source("orders"), Json(), schema="id long not null, amount double")
    """

    framed: bool = False
    registry: str | None = None
    json_schema: str | None = None

    def reader(self, schema: StructType | None, pins: Pins) -> JsonReader:
        """Use the job's `schema`, which is required, for decoding (see `Format.reader`); `pins` is not used."""
        if schema is None:
            raise SpecError("JSON records need a schema.", hint="pass schema='id long, …' to ctx.decode.")
        python_type(schema)
        return JsonReader(schema, self.framed)

    def writer(self, subject: str | None, pins: Pins) -> JsonWriter:
        """Register the JSON Schema under `subject`, if records are framed: if they start with a schema id."""
        if not self.framed:
            return JsonWriter(b"")
        text = self.json_schema
        if text is None or subject is None:
            raise SpecError("Encoding framed JSON needs json_schema= and subject=.")
        url = pins.url(self.registry, format_name="Framed JSON")
        return JsonWriter(header(pins.register(subject, url, "JSON", text)))


@dataclass(frozen=True)
class JsonReader:
    """Decodes JSON records in a Spark task."""

    spark_type: StructType
    framed: bool  # whether records start with the registry's magic byte and a schema id
    registry: None = None

    def open(self, schemas: SchemaSource) -> Decode:
        """Return the function that decodes a record's bytes to a dict (see `Reader.open`)."""
        decode = json_decoder(self.spark_type)
        if self.framed:
            return lambda value: decode(split(value)[1])
        return decode


@dataclass(frozen=True)
class JsonWriter:
    """Encodes JSON records in a Spark task."""

    start: bytes  # the first bytes of a record: magic byte and schema id; empty unless framed

    def open(self) -> Encode:
        """Return the function that encodes a dict as a record's bytes (see `Writer.open`)."""
        encode = msgspec.json.Encoder().encode

        def write(record: dict[str, Any]) -> bytes:
            try:
                body = encode(record)
            except (TypeError, ValueError):
                for name, value in record.items():
                    _encodable(encode, name, value)
                raise
            if _SUSPECT.search(body) is not None and _infinite(record):
                _finite(record)
            return self.start + body

        return write


def _encodable(encode: Callable[[Any], bytes], name: str, value: object) -> None:
    try:
        encode({name: value})
    except (TypeError, ValueError) as error:
        raise exact.Unfit(value, f"a value that JSON has ({error})", f".{name}") from None


def _infinite(value: object) -> bool:
    """Whether NaN or infinity is somewhere in `value`."""
    if type(value) is float:
        return not math.isfinite(value)
    if type(value) is dict:
        return any(map(_infinite, value.values())) or any(map(_infinite, value))
    return type(value) is list and any(map(_infinite, value))


def _finite(value: object) -> None:
    """Refuse NaN and infinity, which msgspec writes as null, or as text if they are keys."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise exact.Unfit(value, "a finite number, because JSON has no other")
    elif isinstance(value, dict):
        for key, item in value.items():
            _finite(key)
            exact.at(f".{key}", _finite, item)
    elif isinstance(value, list):
        exact.items(_finite)(value)
