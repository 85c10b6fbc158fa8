"""The format Avro, in the Schema Registry's wire format: magic byte, id of the writer's schema, Avro's binary
encoding.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as T

from clonos.causal import exact
from clonos.errors import SpecError
from clonos.formats.codec import Decode, Encode, Undecodable
from clonos.formats.registry import (
    Pins,
    Registry,
    SchemaKey,
    SchemaSource,
    UnknownSchema,
    header,
    needed,
    registry_at,
    split,
)
from clonos.formats.shape import converter, on_fresh_stack

# Logical types with a Spark type. Other logical types are read as their underlying type.
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


_MOST_DIGITS: Final = 38
# fastavro's compiled reader overflows the stack of the process at about 4,000 records inside each other.
_SHALLOW_BYTES: Final = 1000


@dataclass(frozen=True)
class Avro:
    """The format Avro, with a Schema Registry. The writer's schema is looked up by the id in the record.

    The reader's schema is `avsc`, or that of `subject` (`version`, or the latest version when the job starts, which is
    then pinned), or the writer's schema. Records are encoded with `avsc`, or else with the schema of the subject.

    Args:
        registry: The registry's URL; default ``CLONOS_REGISTRY__URL``.
        avsc: An Avro schema as JSON text. Encoding registers it.
        subject: A subject of the registry.
        version: A version of `subject`; None: the latest.

    Example::

        orders = ctx.decode(ctx.source("orders"), Avro(subject="orders-value"))
    """

    registry: str | None = None
    avsc: str | None = None
    subject: str | None = None
    version: int | None = None

    def reader(self, schema: T.StructType | None, pins: Pins) -> AvroReader:
        """Return a reader with the schema of `avsc`, or with the registered one of `subject` (see `Format.reader`).

        The Spark type of its rows is `schema`; None: the type that follows from the Avro schema.
        """
        url = pins.url(self.registry, format_name="Avro")
        text = _resolved(self.avsc) if self.avsc else None
        if text is None and self.subject:
            text = _text_of(registry_at(url), self._number(self.subject, url, pins))
        if schema is None:
            if text is None:
                raise SpecError("Decoding Avro needs a schema.", hint="pass schema=…, avsc=… or subject=….")
            schema = spark_type(text)
        converter(schema)
        return AvroReader(schema, url, text)

    def writer(self, subject: str | None, pins: Pins) -> AvroWriter:
        """Register the schema `avsc`, or look up the one of `subject` or the format's (see `Format.writer`)."""
        url = pins.url(self.registry, format_name="Avro")
        subject = subject or self.subject
        if subject is None:
            raise SpecError("Encoding Avro needs a subject.", hint="pass subject='<topic>-value' to ctx.encode.")
        if self.avsc is None:
            number = self._number(subject, url, pins)
            return AvroWriter(_text_of(registry_at(url), number), header(number))
        resolved = _resolved(self.avsc)
        return AvroWriter(resolved, header(pins.register(subject, url, "AVRO", self.avsc)))

    def _number(self, subject: str, url: str, pins: Pins) -> int:
        def look_up() -> int:
            try:
                return int(registry_at(url).version(subject, self.version).schema_id or 0)
            except UnknownSchema as error:
                raise SpecError(str(error)) from error

        return pins.ask(f"version {subject} {self.version or 'latest'}", url, look_up)


@dataclass(frozen=True)
class AvroReader:
    """Decodes Avro records in a Spark task."""

    spark_type: T.StructType  # Spark type of the decoded records
    registry: str  # the registry's URL
    text: str | None  # the reader's schema, self-contained; None: the writer's schema

    def open(self, schemas: SchemaSource) -> Decode:
        """Return the function that decodes a record's bytes to a dict (see `Reader.open`)."""
        import fastavro

        convert = converter(self.spark_type)
        reader = fastavro.parse_schema(json.loads(self.text)) if self.text else None
        writers: dict[SchemaKey, tuple[Any, bool]] = {}

        def decode(value: bytes) -> Any:
            number, body = split(value)
            writer = writers.get(number)
            if writer is None:
                schema = schemas(number)
                if schema.schema_type not in (None, "AVRO"):
                    raise Undecodable(f"schema {number} is of type {schema.schema_type}")
                text = _with_references(schema, registry_at(self.registry))
                parsed = fastavro.parse_schema(json.loads(text))
                writer = writers[number] = (parsed, _is_recursive(parsed, ()))
            parsed, recursive = writer
            return convert(_read(parsed, recursive, reader, body))

        return decode


def _read(writer: Any, recursive: bool, reader: Any, body: bytes) -> Any:
    """Read a record; a recursive one may be as deep as it has bytes."""
    from fastavro import _read_py, schemaless_reader

    stream = io.BytesIO(body)
    if recursive and len(body) > _SHALLOW_BYTES:
        # The reader in Python raises RecursionError: at the same depth, because it has a stack of its own.
        try:
            record = on_fresh_stack(lambda _: _read_py.schemaless_reader(stream, writer, reader), body)
        except RecursionError as error:
            raise Undecodable("is nested too deep") from error
    else:
        record = schemaless_reader(stream, writer, reader)
    if rest := stream.read():
        raise Undecodable(f"{len(rest)} bytes are left after the record")
    return record


def _is_recursive(schema: Any, inside: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        return schema in inside
    if isinstance(schema, list):
        return any(_is_recursive(branch, inside) for branch in schema)
    if schema["type"] == "record":
        return any(_is_recursive(field["type"], (*inside, schema["name"])) for field in schema["fields"])
    return any(_is_recursive(schema[key], inside) for key in ("items", "values") if key in schema)


@dataclass(frozen=True)
class AvroWriter:
    """Encodes Avro records in a Spark task."""

    text: str  # the schema as JSON text
    start: bytes  # the first bytes of a record: magic byte and schema id

    def open(self) -> Encode:
        """Return the function that encodes a dict as a record's bytes (see `Writer.open`)."""
        import fastavro

        named: dict[str, Any] = {}
        schema: Any = fastavro.parse_schema(json.loads(self.text), named)
        fit = _fit(schema, named, {})

        def encode(record: dict[str, Any]) -> bytes:
            out = io.BytesIO()
            out.write(self.start)
            fastavro.schemaless_writer(out, schema, fit(record), strict_allow_default=True)
            return out.getvalue()

        return encode


_FITS: Final[dict[str, exact.Fit]] = {
    "boolean": exact.boolean,
    "int": exact.integer(32),
    "long": exact.integer(64),
    "float": exact.single,
    "double": exact.double,
    "bytes": exact.binary,
    "string": exact.text,
}


def _fit(schema: Any, named: dict[str, Any], known: dict[str, exact.Fit]) -> exact.Fit:
    """Return the fit for values of a parsed schema.

    fastavro itself cuts 1.9 to an int, writes ints of more than 32 bits, and writes a naive datetime in the time zone
    of the machine. `known` holds the fits of named types, which may be recursive.
    """
    if isinstance(schema, list):
        return _fit_union(schema, named, known)
    if isinstance(schema, str):
        return _FITS.get(schema) or _null if schema not in named else _fit(named[schema], named, known)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return _fit_decimal(schema)
    if logical == "date":
        return exact.date
    if logical in _LOGICAL:
        return _fit_time(logical)
    if kind == "array":
        return exact.items(_fit(schema["items"], named, known))
    if kind == "map":
        return exact.entries(_fit(schema["values"], named, known))
    if kind == "enum":
        symbols = schema["symbols"]
        return _check(lambda value: isinstance(value, str) and value in symbols, f"one of {symbols}")
    if kind == "fixed":
        size = schema["size"]
        return _check(lambda value: isinstance(value, bytes) and len(value) == size, f"{size} bytes")
    if kind == "record":
        name = schema["name"]
        if name not in known:
            known[name] = lambda value: complete(value)  # for a record inside itself
            complete = _fit_record(schema, named, known)
        return known[name]
    return _fit(kind, named, known)


def _check(fits: Callable[[Any], bool], wanted: str) -> exact.Fit:
    def fit(value: Any) -> Any:
        if not fits(value):
            raise exact.Unfit(value, wanted)
        return value

    return fit


_null: Final = _check(lambda value: value is None, "null only")


def _fit_record(schema: Any, named: dict[str, Any], known: dict[str, exact.Fit]) -> exact.Fit:
    fields = {field["name"]: _fit(field["type"], named, known) for field in schema["fields"]}
    needed_names = [field["name"] for field in schema["fields"] if "default" not in field]

    def fit(record: Any) -> Any:
        if not isinstance(record, dict):
            raise exact.Unfit(record, "a record")
        fitted = {}
        for name, value in record.items():
            of_field = fields.get(name)
            if of_field is None:
                raise exact.Unfit(value, "no value, because the schema has no such field", f".{name}")
            fitted[name] = exact.at(f".{name}", of_field, value)
        if len(fitted) < len(fields):
            for name in needed_names:
                if name not in fitted:
                    raise exact.Unfit(None, "a value, because it has no default", f".{name}")
        return fitted

    return fit


def _fit_union(schema: list[Any], named: dict[str, Any], known: dict[str, exact.Fit]) -> exact.Fit:
    branches = [(_name(branch), _fit(branch, named, known)) for branch in schema]
    single = sum(name != "null" for name, _ in branches) == 1

    def fit(value: Any) -> Any:
        failures = []
        for name, of_branch in branches:
            try:
                fitted = of_branch(value)
            except exact.Unfit as error:
                failures.append(error)
            else:
                return fitted if single or fitted is None else (name, fitted)  # fastavro writes the named branch
        raise next((error for error in failures if error.wanted != "null only"), failures[0])

    return fit


def _name(branch: Any) -> str:
    return str(branch if isinstance(branch, str) else branch.get("name", branch["type"]))


def _fit_decimal(schema: Any) -> exact.Fit:
    precision, scale, size = schema["precision"], schema.get("scale", 0), schema.get("size")
    limit = 10**precision
    if size is not None:
        limit = min(limit, 1 << 8 * size - 1)
    wanted = f"a decimal({precision},{scale})" + (f" of {size} bytes" if size is not None else "")

    def fit(value: Any) -> decimal.Decimal:
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise exact.Unfit(value, wanted)
        sign, digits, exponent = value.as_tuple()
        unscaled, rest = int("".join(map(str, digits))), 0
        shift = int(exponent) + scale
        if shift >= 0:
            unscaled *= 10**shift
        else:
            unscaled, rest = divmod(unscaled, 10**-shift)
        if rest or unscaled >= limit:
            raise exact.Unfit(value, wanted)
        return decimal.Decimal((sign, tuple(map(int, str(unscaled))), -scale))

    return fit


def _fit_time(logical: str) -> exact.Fit:
    local, millis = logical.startswith("local-"), logical.endswith("millis")
    zone = "without a time zone (timestamp_ntz)" if local else "with a time zone (timestamp)"
    wanted = f"a time {zone}{' of whole milliseconds' if millis else ''}"
    return _check(
        lambda value: (
            isinstance(value, dt.datetime)
            and (value.tzinfo is None) == local
            and not (millis and value.microsecond % 1000)
        ),
        wanted,
    )


def _text_of(registry: Registry, number: int) -> str:
    try:
        schema = registry.schema(number)
    except UnknownSchema as error:
        raise SpecError(f"{error} It was pinned.") from error
    if schema.schema_type not in (None, "AVRO"):
        raise SpecError(f"The schema {number} is of type {schema.schema_type}, not AVRO.")
    return _with_references(schema, registry)


def _with_references(schema: Any, registry: Registry) -> str:
    """Return the schema's text, with the referenced schemas instead of their names."""
    named: dict[str, Any] = {}

    def collect(parent: Any) -> None:
        for reference in parent.references or ():
            referenced = registry.version(reference.subject, reference.version).schema
            collect(referenced)
            named[reference.name] = json.loads(referenced.schema_str or "")

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
    """Return `schema` with those in `named` at their first use, without logical types that Spark lacks."""
    if isinstance(schema, str):
        return _plain(named.pop(schema), named) if schema in named else schema
    if isinstance(schema, list):
        return [_plain(branch, named) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key != "logicalType"}
    logical = schema.get("logicalType")
    if logical == "decimal" or logical in _LOGICAL:
        plain["logicalType"] = logical
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _plain(plain[key], named)
    if "fields" in plain:
        plain["fields"] = [{**field, "type": _plain(field["type"], named)} for field in plain["fields"]]
    return plain


def spark_type(text: str) -> T.StructType:
    """Return the Spark type of records of an Avro schema.

    Raises:
        SpecError: The schema is not a record, is recursive, or has a union of several types.
    """
    import fastavro

    named: dict[str, Any] = {}
    parsed: Any = fastavro.parse_schema(json.loads(text), named)
    record, _ = _spark(parsed, named, (), "the record")
    if not isinstance(record, T.StructType):
        raise SpecError("The Avro schema is not that of a record.", hint="wrap it in a record with one field.")
    return record


def _spark(schema: Any, named: dict[str, Any], inside: tuple[str, ...], where: str) -> tuple[T.DataType, bool]:
    """Return the Spark type of `schema` and whether it is nullable; `inside` names the enclosing records."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise SpecError(
                f"{where} is a union of several types.", hint="pass schema=… to ctx.decode with the type you expect."
            )
        branch, nullable = _spark(branches[0], named, inside, where)
        return branch, nullable or len(branches) < len(schema)
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema], False
        if schema not in named:
            raise SpecError(f"{where} is of the type {schema!r}, which the schema does not define.")
        return _spark(named[schema], named, inside, where)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        if schema["precision"] > _MOST_DIGITS:
            raise SpecError(
                f"{where} is a decimal of {schema['precision']} digits; Spark's have at most {_MOST_DIGITS}.",
                hint="pass schema=… to ctx.decode with decimal(38, …), if all values fit, or without the field.",
            )
        return T.DecimalType(schema["precision"], schema.get("scale", 0)), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if kind == "record":
        name = schema["name"]
        if name in inside:
            raise SpecError(f"{where} is of the recursive type {name!r}.", hint="pass schema=… to ctx.decode.")
        fields = []
        for field in schema["fields"]:
            field_type, nullable = _spark(field["type"], named, (*inside, name), f"{where}.{field['name']}")
            fields.append(T.StructField(field["name"], field_type, nullable))
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
