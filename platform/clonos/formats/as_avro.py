"""Avro records in the registry's wire format: magic byte, id of the writer's schema, Avro's binary encoding."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as T

from clonos.errors import SpecError
from clonos.formats.codec import Decode, Encode, Undecodable
from clonos.formats.registry import (
    Pins,
    Registry,
    SchemaSource,
    UnknownSchema,
    header,
    needed,
    new_schema,
    registry_at,
    split,
)
from clonos.formats.shape import converter

# Logical types that have a Spark type; what has another is read as the type below it.
_LOGICAL: Final[dict[str, T.DataType]] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}
_PRIMITIVE: Final[dict[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
    "fixed": T.BinaryType(),
    "enum": T.StringType(),
}


@dataclass(frozen=True)
class Avro:
    """Avro with a Schema Registry. The schema that a record was written with is looked up by the record's id.

    Which schema it is read as: `avsc`, or that of `subject` (its `version`, or the latest one at the time the
    job starts, which is then pinned), or the writer's own.

    Args:
        registry: The registry's address; default ``CLONOS_REGISTRY__URL``.
        avsc: An Avro schema as JSON text. Encoding registers it.
        subject: A subject of the registry.
        version: One version of `subject`.
    """

    registry: str | None = None
    avsc: str | None = None
    subject: str | None = None
    version: int | None = None

    def reader(self, schema: T.StructType | None, pins: Pins) -> AvroReader:
        """See `Format`."""
        url = pins.url(self.registry, format_name="Avro")
        text = (
            _resolved(self.avsc) if self.avsc else self._of_subject(self.subject, url, pins) if self.subject else None
        )
        if schema is None:
            if text is None:
                raise SpecError("Nothing says what Avro records become.", hint="pass schema=…, avsc=… or subject=….")
            schema = spark_type(text)
        converter(schema)
        return AvroReader(schema, url, text)

    def writer(self, subject: str | None, pins: Pins) -> AvroWriter:
        """See `Format`."""
        url = pins.url(self.registry, format_name="Avro")
        subject = subject or self.subject
        if subject is None:
            raise SpecError("Avro is encoded under no subject.", hint="pass subject='<topic>-value' to ctx.encode.")
        if self.avsc is None:
            number = self._number(subject, url, pins)
            return AvroWriter(_text_of(registry_at(url), number), header(number))
        text, name = self.avsc, subject
        resolved = _resolved(text)
        number = pins.ask(
            f"register {name}",
            url,
            lambda: int(registry_at(url).register(name, new_schema(text, "AVRO")).schema_id or 0),
            text=text,
        )
        return AvroWriter(resolved, header(number))

    def _of_subject(self, subject: str, url: str, pins: Pins) -> str:
        return _text_of(registry_at(url), self._number(subject, url, pins))

    def _number(self, subject: str, url: str, pins: Pins) -> int:
        def ask() -> int:
            try:
                return int(registry_at(url).version(subject, self.version).schema_id or 0)
            except UnknownSchema as error:
                raise SpecError(str(error)) from error

        return pins.ask(f"version {subject} {self.version or 'latest'}", url, ask)


@dataclass(frozen=True)
class AvroReader:
    """A task's half of decoding.

    Attributes:
        text: The reader's schema, self-contained; None: the writer's own.
    """

    spark_type: T.StructType
    registry: str
    text: str | None

    def open(self, schemas: SchemaSource) -> Decode:
        """See `Reader`."""
        import fastavro

        convert = converter(self.spark_type)
        reader = fastavro.parse_schema(json.loads(self.text)) if self.text else None
        writers: dict[int, Any] = {}

        def decode(value: bytes) -> Any:
            number, body = split(value)
            writer = writers.get(number)
            if writer is None:
                found = schemas(number)
                if found.schema_type not in (None, "AVRO"):
                    raise Undecodable(f"schema {number} is of type {found.schema_type}")
                text = _with_references(found, registry_at(self.registry))
                writer = writers[number] = fastavro.parse_schema(json.loads(text))
            stream = io.BytesIO(body)
            record = fastavro.schemaless_reader(stream, writer, reader)
            if stream.tell() != len(body):
                raise Undecodable(f"{len(body) - stream.tell()} bytes are left after the record")
            return convert(record)

        return decode


@dataclass(frozen=True)
class AvroWriter:
    """A task's half of encoding."""

    text: str
    start: bytes

    def open(self) -> Encode:
        """See `Writer`."""
        import fastavro

        schema = fastavro.parse_schema(json.loads(self.text))

        def encode(record: dict[str, Any]) -> bytes:
            out = io.BytesIO()
            out.write(self.start)
            # Fields that the schema does not have would be lost without a word otherwise.
            fastavro.schemaless_writer(out, schema, record, strict_allow_default=True)
            return out.getvalue()

        return encode


def _text_of(registry: Registry, number: int) -> str:
    try:
        found = registry.schema(number)
    except UnknownSchema as error:
        raise SpecError(f"{error} It was pinned.") from error
    if found.schema_type not in (None, "AVRO"):
        raise SpecError(f"The schema {number} is of type {found.schema_type}, not AVRO.")
    return _with_references(found, registry)


def _with_references(schema: Any, registry: Registry) -> str:
    """The schema's text with the schemas that it refers to written into it."""
    named: dict[str, Any] = {}

    def collect(one: Any) -> None:
        for reference in one.references or ():
            found = registry.version(reference.subject, reference.version).schema
            collect(found)
            named[reference.name] = json.loads(found.schema_str or "")

    collect(schema)
    return json.dumps(_plain(json.loads(schema.schema_str), named))


def _resolved(text: str) -> str:
    try:
        parsed = json.loads(text)
        with needed("Avro"):
            import fastavro
        fastavro.parse_schema(parsed)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"This is not an Avro schema: {type(error).__name__}: {error}") from error
    return json.dumps(_plain(parsed, {}))


def _plain(schema: Any, named: dict[str, Any]) -> Any:
    """`schema` with what `named` holds put in at its first use, and without logical types that Spark has not."""
    if isinstance(schema, str):
        return _plain(named.pop(schema), named) if schema in named else schema
    if isinstance(schema, list):
        return [_plain(one, named) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key != "logicalType"}
    logical = schema.get("logicalType")
    if logical == "decimal" or logical in _LOGICAL:
        made["logicalType"] = logical
    for key in ("type", "items", "values"):
        if key in made:
            made[key] = _plain(made[key], named)
    if "fields" in made:
        made["fields"] = [{**one, "type": _plain(one["type"], named)} for one in made["fields"]]
    return made


def spark_type(text: str) -> T.StructType:
    """The Spark type of records of an Avro schema.

    Raises:
        SpecError: It is no record, is recursive, or has a union of several types.
    """
    import fastavro

    named: dict[str, Any] = {}
    parsed: Any = fastavro.parse_schema(json.loads(text), named)
    made, _ = _spark(parsed, named, (), "the record")
    if not isinstance(made, T.StructType):
        raise SpecError("The Avro schema is not that of a record.", hint="wrap it in a record with one field.")
    return made


def _spark(schema: Any, named: dict[str, Any], inside: tuple[str, ...], where: str) -> tuple[T.DataType, bool]:
    if isinstance(schema, list):
        rest = [one for one in schema if one != "null"]
        if len(rest) != 1:
            raise SpecError(
                f"{where} is a union of several types.", hint="pass schema=… to ctx.decode with the type you expect."
            )
        made, nullable = _spark(rest[0], named, inside, where)
        return made, nullable or len(rest) < len(schema)
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema], False
        if schema not in named:
            raise SpecError(f"{where} is of the type {schema!r}, which the schema does not define.")
        return _spark(named[schema], named, inside, where)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return T.DecimalType(schema["precision"], schema.get("scale", 0)), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if kind == "record":
        name = schema["name"]
        if name in inside:
            raise SpecError(f"{where} is of the recursive type {name!r}.", hint="pass schema=… to ctx.decode.")
        fields = []
        for one in schema["fields"]:
            made, nullable = _spark(one["type"], named, (*inside, name), f"{where}.{one['name']}")
            fields.append(T.StructField(one["name"], made, nullable))
        return T.StructType(fields), False
    if kind == "array":
        item, nullable = _spark(schema["items"], named, inside, f"{where}[]")
        return T.ArrayType(item, nullable), False
    if kind == "map":
        item, nullable = _spark(schema["values"], named, inside, f"{where}{{}}")
        return T.MapType(T.StringType(), item, nullable), False
    if isinstance(kind, str) and kind in _PRIMITIVE:
        return _PRIMITIVE[kind], False
    return _spark(kind, named, inside, where)
