"""Message classes as protoc would generate them, without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

FIELD = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: int, label: int = FIELD.LABEL_OPTIONAL, type_name: str = "") -> Any:
    return FIELD(name=name, number=number, type=kind, label=label, type_name=type_name or None)


def order_file(package: str = "shop", *, before: bool = False, more: bool = False) -> Any:
    """``order.proto``: all kinds of fields; `before`: a message before it; `more`: a newer version."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}/order.proto",
        package=package,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )
    if before:
        file.message_type.add(name="Header").field.append(_field("id", 1, FIELD.TYPE_INT64))
    order = file.message_type.add(name="Order")
    order.field.extend(
        [
            _field("id", 1, FIELD.TYPE_INT64),
            _field("amount", 2, FIELD.TYPE_DOUBLE),
            _field("kind", 3, FIELD.TYPE_ENUM, type_name=f".{package}.Kind"),
            _field("at", 4, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
            _field("note", 5, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.StringValue"),
            _field("lines", 6, FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, f".{package}.Order.Line"),
            _field("tags", 7, FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, f".{package}.Order.TagsEntry"),
            _field("big", 8, FIELD.TYPE_UINT64),
            _field("raw", 9, FIELD.TYPE_BYTES),
        ]
    )
    if more:
        order.field.append(_field("colour", 20, FIELD.TYPE_STRING))
    order.nested_type.add(name="Line").field.extend(
        [_field("sku", 1, FIELD.TYPE_STRING), _field("count", 2, FIELD.TYPE_INT32)]
    )
    entry = order.nested_type.add(name="TagsEntry")
    entry.field.extend([_field("key", 1, FIELD.TYPE_STRING), _field("value", 2, FIELD.TYPE_INT32)])
    entry.options.map_entry = True
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="RUSH", number=1)
    if more:
        kind.value.add(name="GIFT", number=2)
    return file


def message(file: Any, name: str) -> Any:
    """The class of a message of `file`."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
