"""The format Protobuf, in the Schema Registry's wire format: magic byte, schema id, message index, Protobuf's
encoding.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as T

from clonos.causal import exact
from clonos.errors import SpecError
from clonos.formats.codec import Decode, Encode, Undecodable
from clonos.formats.registry import (
    Pins,
    Registry,
    SchemaKey,
    SchemaSource,
    header,
    needed,
    new_schema,
    registry_at,
    split,
)
from clonos.formats.shape import converter

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.message import Message

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Protobuf:
    """The format Protobuf, with a Schema Registry. Records are read and written as one message type of the job.

    A missing field has its default (proto3 scalars) or is null (messages, ``optional``, oneof). Fields that the message
    type lacks are left out. Enums are their names, ``google.protobuf.Timestamp`` is a timestamp, wrappers such as
    ``StringValue`` are nullable values.

    Args:
        message: A generated message class.
        registry: The registry's URL; default ``CLONOS_REGISTRY__URL``.

    Example::

        orders = ctx.decode(ctx.source("orders"), Protobuf(orders_pb2.Order))
    """

    message: type[Message]
    registry: str | None = None

    def reader(self, schema: T.StructType | None, pins: Pins) -> ProtobufReader:
        """Choose the Spark type: `schema`, or if None the message type's (see `Format.reader`)."""
        url = pins.url(self.registry, format_name="Protobuf")
        known = spark_type(self.message.DESCRIPTOR)
        converter(schema or known)
        return ProtobufReader(schema or known, url, _shipped(self.message.DESCRIPTOR))

    def writer(self, subject: str | None, pins: Pins) -> ProtobufWriter:
        """Register the message type under `subject`, which is required (see `Format.writer`)."""
        url = pins.url(self.registry, format_name="Protobuf")
        if subject is None:
            raise SpecError("Encoding Protobuf needs a subject.", hint="pass subject='<topic>-value' to ctx.encode.")
        name, kind = subject, self.message.DESCRIPTOR
        number = pins.ask(
            f"register {name}", url, lambda: _register(registry_at(url), name, kind.file), text=_text(kind.file)
        )
        return ProtobufWriter(_shipped(kind), header(number) + _indexes(_path(kind)))


@dataclass(frozen=True)
class _Shipped:
    """A message type by value, so that tasks need not import the job's generated modules."""

    name: str
    files: tuple[bytes, ...]

    def message(self) -> type[Message]:
        """Return the message class, in its own descriptor pool."""
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        for file in self.files:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
        message: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.name))
        return message


def _shipped(kind: Descriptor) -> _Shipped:
    return _Shipped(kind.full_name, tuple(file.serialized_pb for file in _files(kind.file, set())))


def _files(file: FileDescriptor, seen: set[str]) -> Iterator[FileDescriptor]:
    """Yield the files that `file` imports, then `file`."""
    if file.name in seen:
        return
    seen.add(file.name)
    for imported in file.dependencies:
        yield from _files(imported, seen)
    yield file


@dataclass(frozen=True)
class ProtobufReader:
    """Decodes Protobuf records in a Spark task."""

    spark_type: T.StructType
    registry: str
    shipped: _Shipped  # the message type

    def open(self, schemas: SchemaSource) -> Decode:
        """Return the function that decodes a record's bytes to a dict (see `Reader.open`)."""
        message = self.shipped.message()
        convert = converter(self.spark_type)
        own_path = _path(message.DESCRIPTOR)
        checked: set[tuple[SchemaKey, tuple[int, ...]]] = set()

        def decode(value: bytes) -> Any:
            number, rest = split(value)
            path, body = _read_indexes(rest)
            if (number, path) not in checked:
                # The bytes of another message type often parse, because unknown fields are not an error.
                name = _written_as(schemas, number, path)
                if name != self.shipped.name and not (name is None and path == own_path):
                    raise Undecodable(f"schema {number} is of the message {name or path}, not {self.shipped.name}")
                checked.add((number, path))
            return convert(_values(message.FromString(body)))

        return decode


@dataclass(frozen=True)
class ProtobufWriter:
    """Encodes Protobuf records in a Spark task."""

    shipped: _Shipped  # the message type
    start: bytes  # the first bytes of a record: magic byte, schema id and message index

    def open(self) -> Encode:
        """Return the function that encodes a dict as a record's bytes (see `Writer.open`)."""
        kind = self.shipped.message()

        def encode(record: dict[str, Any]) -> bytes:
            message = kind()
            _fill(message, record)
            body: bytes = message.SerializeToString(deterministic=True)
            return self.start + body

        return encode


def _written_as(schemas: SchemaSource, number: SchemaKey, path: tuple[int, ...]) -> str | None:
    """Full name of the message at `path` in the schema; None if the registry only returns text."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    schema = schemas(number, serialized=True)
    if schema.schema_type != "PROTOBUF":
        raise Undecodable(f"schema {number} is of type {schema.schema_type or 'AVRO'}")
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str or "", validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    names = [file.package] if file.package else []
    kinds = file.message_type
    for index in path:
        if index >= len(kinds):
            raise Undecodable(f"schema {number} has no message {path}")
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return ".".join(names)


def _register(registry: Registry, subject: str, file: FileDescriptor) -> int:
    registered = registry.register(subject, new_schema(_text(file), "PROTOBUF", _references(registry, file)))
    return int(registered.schema_id or 0)


def _references(registry: Registry, file: FileDescriptor) -> list[Any]:
    """Register the files that `file` imports, each under its own name, and return references to them."""
    from confluent_kafka.schema_registry import SchemaReference

    references = []
    for imported in file.dependencies:
        if imported.name.startswith("google/protobuf/"):
            continue  # the registry has them
        schema = new_schema(_text(imported), "PROTOBUF", _references(registry, imported))
        references.append(
            SchemaReference(imported.name, imported.name, registry.register(imported.name, schema).version)
        )
    return references


def _text(file: FileDescriptor) -> str:
    serialized: bytes = file.serialized_pb
    return base64.b64encode(serialized).decode()


def _path(kind: Descriptor) -> tuple[int, ...]:
    """Return the indexes of a message type in its file, from the outermost message."""
    if kind.containing_type is not None:
        return (*_path(kind.containing_type), _index(kind.name, kind.containing_type.nested_types))
    return (_index(kind.name, kind.file.message_types_by_name.values()),)


def _index(name: str, kinds: Any) -> int:
    return [kind.name for kind in kinds].index(name)


def _indexes(path: tuple[int, ...]) -> bytes:
    """Return a message index: the number of indexes and the indexes, as zigzag varints. ``(0,)`` is one zero byte."""
    if path == (0,):
        return b"\0"
    return b"".join([_varint(index << 1) for index in (len(path), *path)])


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    count, at = _read_varint(value, 0)
    if count == 0:
        return (0,), value[at:]
    path = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        path.append(index)
    return tuple(path), value[at:]


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise Undecodable("has no message index after the schema id")
        raw |= (value[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not value[at - 1] & 0x80:
            if raw & 1:
                raise Undecodable("has a negative message index")
            return raw >> 1, at


def _values(message: Message) -> Any:
    kind = message.DESCRIPTOR
    if kind.full_name == _TIMESTAMP:
        return _EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if kind.full_name in _WRAPPERS:
        return message.value
    values = {}
    for field in kind.fields:
        if field.is_repeated:
            values[field.name] = _repeated(field, getattr(message, field.name))
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _single(field, getattr(message, field.name))
    return values


def _repeated(field: FieldDescriptor, values: Any) -> Any:
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        return {key: _single(item, values[key]) for key in sorted(values)}
    return [_single(field, value) for value in values]


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _values(value)
    if field.enum_type is not None:
        constant = field.enum_type.values_by_number.get(value)
        return constant.name if constant else str(value)  # a value of a newer writer
    return value


def _fill(message: Message, record: dict[str, Any]) -> None:
    kind = message.DESCRIPTOR
    for name, value in record.items():
        field = kind.fields_by_name.get(name)
        try:
            if field is None:
                raise exact.Unfit(value, f"no value, because {kind.full_name} has no such field")
            _fill_field(message, field, value)
        except exact.Unfit as error:
            raise error.inside(f".{name}") from None


def _fill_field(message: Message, field: FieldDescriptor, value: Any) -> None:
    if value is None:
        if field.is_repeated or not field.has_presence:
            raise exact.Unfit(value, "a value, because the field is not optional (a reader would get its default)")
    elif _is_map(field):
        item, target = field.message_type.fields_by_name["value"], getattr(message, field.name)
        for key, item_value in exact.entries(lambda of_key: of_key)(value).items():
            try:
                if item.message_type is not None:
                    _fill_message(target[key], item_value)
                else:
                    target[key] = _scalar(item, item_value)
            except exact.Unfit as error:
                raise error.inside(f"[{exact.shown(key)}]") from None
    elif field.is_repeated:
        target = getattr(message, field.name)
        for index, item_value in enumerate(value):
            try:
                if field.message_type is not None:
                    _fill_message(target.add(), item_value)
                else:
                    target.append(_scalar(field, item_value))
            except exact.Unfit as error:
                raise error.inside(f"[{index}]") from None
    elif field.message_type is not None:
        target = getattr(message, field.name)
        target.SetInParent()
        _fill_message(target, value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _fill_message(target: Any, value: Any) -> None:
    kind = target.DESCRIPTOR
    if kind.full_name == _TIMESTAMP:
        if not isinstance(value, dt.datetime):
            raise exact.Unfit(value, "a timestamp")
        since = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - _EPOCH
        target.seconds, target.nanos = since.days * 86400 + since.seconds, since.microseconds * 1000
    elif kind.full_name in _WRAPPERS:
        target.value = _scalar(kind.fields_by_name["value"], value)
    elif not isinstance(value, dict):
        raise exact.Unfit(value, f"a {kind.name}")
    else:
        _fill(target, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        if not isinstance(value, str):
            return exact.integer(32)(value)
        constant = field.enum_type.values_by_name.get(value)
        if constant is not None:
            return constant.number
        try:
            return exact.integer(32)(int(value))  # a value of a newer writer, which was decoded by number
        except ValueError as error:
            raise exact.Unfit(value, f"one of {list(field.enum_type.values_by_name)}") from error
    return _fit_of(field)(value)


@functools.cache
def _fits() -> dict[int, exact.Fit]:
    from google.protobuf.descriptor import FieldDescriptor as Kinds

    return {
        Kinds.CPPTYPE_INT32: exact.integer(32),
        Kinds.CPPTYPE_INT64: exact.integer(64),
        Kinds.CPPTYPE_UINT32: exact.integer(32, signed=False),
        Kinds.CPPTYPE_UINT64: exact.integer(64, signed=False),
        Kinds.CPPTYPE_DOUBLE: exact.double,
        Kinds.CPPTYPE_FLOAT: exact.single,
        Kinds.CPPTYPE_BOOL: exact.boolean,
    }


def _fit_of(field: FieldDescriptor) -> exact.Fit:
    return _fits().get(field.cpp_type) or (exact.binary if field.type == field.TYPE_BYTES else exact.text)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def spark_type(kind: Descriptor) -> T.StructType:
    """Return the Spark type of the messages of a Protobuf message type.

    Raises:
        SpecError: The message type is recursive, or a well-known type such as ``Timestamp``.
    """
    with needed("Protobuf"):
        record = _struct(kind, (), kind.full_name)
    if not isinstance(record, T.StructType):
        raise SpecError(f"{kind.full_name} is not a record.", hint="use your own message type.")
    return record


def _struct(kind: Descriptor, inside: tuple[str, ...], where: str) -> T.DataType:
    if kind.full_name == _TIMESTAMP:
        return T.TimestampType()
    if kind.full_name in _WRAPPERS:
        return _scalar_type(kind.fields_by_name["value"])
    if kind.full_name in inside:
        raise SpecError(f"{where} is of the recursive type {kind.full_name}.", hint="use a message type without it.")
    inside = (*inside, kind.full_name)
    return T.StructType([_field(field, inside, f"{where}.{field.name}") for field in kind.fields])


def _field(field: FieldDescriptor, inside: tuple[str, ...], where: str) -> T.StructField:
    if _is_map(field):
        parts = field.message_type.fields_by_name
        value = _type(parts["value"], inside, where)
        return T.StructField(field.name, T.MapType(_scalar_type(parts["key"]), value, False), False)
    if field.is_repeated:
        return T.StructField(field.name, T.ArrayType(_type(field, inside, where), False), False)
    return T.StructField(field.name, _type(field, inside, where), field.has_presence)


def _type(field: FieldDescriptor, inside: tuple[str, ...], where: str) -> T.DataType:
    return _struct(field.message_type, inside, where) if field.message_type is not None else _scalar_type(field)


def _scalar_type(field: FieldDescriptor) -> T.DataType:
    from google.protobuf.descriptor import FieldDescriptor as Kinds

    by_kind: dict[int, T.DataType] = {
        Kinds.CPPTYPE_INT32: T.IntegerType(),
        Kinds.CPPTYPE_INT64: T.LongType(),
        Kinds.CPPTYPE_UINT32: T.LongType(),
        Kinds.CPPTYPE_UINT64: T.DecimalType(20, 0),
        Kinds.CPPTYPE_DOUBLE: T.DoubleType(),
        Kinds.CPPTYPE_FLOAT: T.FloatType(),
        Kinds.CPPTYPE_BOOL: T.BooleanType(),
        Kinds.CPPTYPE_ENUM: T.StringType(),
    }
    if field.type == Kinds.TYPE_BYTES:
        return T.BinaryType()
    return by_kind.get(field.cpp_type, T.StringType())
