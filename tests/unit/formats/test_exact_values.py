"""Each format × Spark type × edge value: a reader gets the same value, or an error names column and value."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
import re
import secrets
import struct
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from clonos.carried_errors import CarriedError, uncarry
from clonos.causal import exact
from clonos.causal.udf import _as_array
from clonos.errors import ClonosError, JobCodeError
from clonos.formats import Avro, Json, columns
from clonos.formats.as_avro import AvroWriter
from clonos.formats.as_protobuf import ProtobufWriter, _shipped
from clonos.formats.registry import Pins, registry_at
from support.protos import message

SECOND = 1_000_000
INTEGERS = [0, 1, -1, 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 5 * 10**9, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [
    0.0,
    1.0,
    7.0,
    1.5,
    1.9,
    -1.9,
    0.1,
    5e9,
    2.0**24,
    2.0**31,
    2.0**63,
    1e300,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
]
TIMES = [
    0,
    1,
    999,
    1000,
    -1,
    1_714_558_560 * SECOND,
    -62_135_596_800 * SECOND,
    253_402_300_799_999_999,
    2**62,
    -(2**62),
]
# Spark type -> strategy of the values that Arrow holds for it.
KINDS: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "byte": (T.ByteType(), st.integers(-128, 127)),
    "int": (T.IntegerType(), st.sampled_from([n for n in INTEGERS if -(2**31) <= n < 2**31])),
    "long": (T.LongType(), st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)),
    "float": (T.FloatType(), st.sampled_from(FLOATS) | st.floats(width=32)),
    "double": (T.DoubleType(), st.sampled_from(FLOATS) | st.floats()),
    "decimal": (T.DecimalType(38, 6), st.decimals(-(10**20), 10**20, places=6)),
    "decimal-9-2": (T.DecimalType(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "boolean": (T.BooleanType(), st.booleans()),
    "string": (
        T.StringType(),
        st.sampled_from(["", "é", "\0", "NONE", "RUSH", "7"]) | st.text(st.characters(codec="utf-8")),
    ),
    "binary": (T.BinaryType(), st.sampled_from([b"", b"\xff", b"ab"]) | st.binary(max_size=5)),
    "date": (T.DateType(), st.sampled_from([0, -1, 19_844, -719_162, 2_932_896, 2_932_897, 10**9])),
    "timestamp": (T.TimestampType(), st.sampled_from(TIMES)),
    "timestamp_ntz": (T.TimestampNTZType(), st.sampled_from(TIMES)),
    "duration": (T.DayTimeIntervalType(), st.sampled_from(TIMES)),
}
AVRO: list[Any] = [
    *("boolean", "int", "long", "float", "double", "string", "bytes"),
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "fixed", "name": "Cents", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "int", "logicalType": "date"},
    *(
        {"type": "long", "logicalType": f"{zone}timestamp-{unit}"}
        for zone in ("", "local-")
        for unit in ("millis", "micros")
    ),
    {"type": "enum", "name": "Kind", "symbols": ["NONE", "RUSH"]},
    {"type": "fixed", "name": "Two", "size": 2},
    ["int", "long", "double", "string"],
    ["float", "double"],
]
_FIELD = descriptor_pb2.FieldDescriptorProto
PROTOBUF: dict[str, tuple[int, str]] = {
    name: (getattr(_FIELD, f"TYPE_{name.upper()}"), "")
    for name in (
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint32",
        "fixed64",
        "float",
        "double",
        "bool",
        "string",
        "bytes",
    )
} | {"enum": (_FIELD.TYPE_ENUM, ".p.Kind"), "timestamp": (_FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp")}


def spark_row(kind: T.DataType, value: Any) -> pa.Array:
    """One row with the column ``n``, as Spark sends it. Times are numbers here, because Spark has more than Python."""
    arrow = to_arrow_type(T.StructType([T.StructField("n", kind)]), timezone="UTC")
    return pa.array([{"n": value}], _as_numbers(arrow)).cast(arrow)


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _as_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_as_numbers(kind.value_type))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


class EnumValue(int):
    """The number of a value of an enum, which is written by name or number."""


class AsUtc(dt.datetime):
    """A time of a format without local times: a ``timestamp_ntz`` is written as a time in UTC."""


def same(sent: Any, got: Any) -> bool:
    if isinstance(sent, dt.datetime) and isinstance(got, AsUtc):
        return sent.replace(tzinfo=dt.UTC) == got
    if isinstance(got, EnumValue):
        return sent == got or sent == {0: "NONE", 1: "RUSH"}.get(got, str(int(got)))
    if isinstance(sent, float) and isinstance(got, float) and math.isnan(sent):
        return math.isnan(got)
    if isinstance(sent, list):
        return isinstance(got, list) and len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, dict):
        return isinstance(got, dict) and sent.keys() == got.keys() and all(same(sent[key], got[key]) for key in sent)
    if isinstance(sent, bool) or isinstance(got, bool):
        return sent is got
    return bool(sent == got)


def exact_or_refused(write: Any, read: Any, kind: T.DataType, value: Any) -> None:
    try:
        [row] = exact.from_arrow(spark_row(kind, value), "ctx.encode", "the record")
        encoded = columns._encoded(write, row)
    except (CarriedError, ClonosError) as failure:
        error = uncarry(str(failure)) if isinstance(failure, CarriedError) else failure
        assert type(error) is JobCodeError
        assert re.search(r"\bn\b", error.what), error.what
        assert re.search(r", not .+\.$|: .+\.$", error.what, re.DOTALL), error.what
        return
    got = read(encoded)
    assert same(row["n"], got), f"{row['n']!r} was sent, {got!r} arrived"


@st.composite
def sent(draw: st.DrawFn) -> tuple[str, T.DataType, Any]:
    """How the value is nested, the column's type, and the value."""
    kind, values = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    value = draw(values | st.none())
    match draw(st.sampled_from(["field", "array", "map", "struct"])):
        case "array":
            return "array", T.ArrayType(kind), [value]
        case "map":
            return "map", T.MapType(T.StringType(), kind), {"k": value}
        case "struct":
            return "struct", T.StructType([T.StructField("m", kind)]), {"m": value}
    return "field", kind, value


def of_json(value: Any, like: Any) -> Any:
    """A JSON value as a reader with the type of `like` understands it."""
    if isinstance(like, list):
        return [of_json(item, item_like) for item, item_like in zip(value, like, strict=True)]
    if isinstance(like, dict):
        return {key: of_json(value[key], like[key]) for key in value}
    if isinstance(like, bytes):
        return base64.b64decode(value)
    if isinstance(like, Decimal):
        return Decimal(value)
    if isinstance(like, dt.date) and isinstance(value, str):
        return type(like).fromisoformat(value)
    return msgspec.convert(value, dt.timedelta) if isinstance(like, dt.timedelta) else value


@given(sent())
@example(("field", T.DoubleType(), math.nan))
@example(("map", T.MapType(T.DoubleType(), T.LongType()), [(math.nan, 1)]))
@settings(max_examples=500)
def test_json_is_exact_or_refused(sent: tuple[str, T.DataType, Any]) -> None:
    _, kind, value = sent
    [row] = _readable(kind, value)
    write = Json().writer(None, Pins("", {})).open()
    exact_or_refused(write, lambda body: of_json(json.loads(body)["n"], row and row["n"]), kind, value)


def _readable(kind: T.DataType, value: Any) -> list[Any]:
    try:
        return exact.from_arrow(spark_row(kind, value), "", "")
    except JobCodeError:
        return [None]


@given(sent(), st.sampled_from(AVRO), st.booleans())
@example(("field", T.DoubleType(), 1.9), "int", False)
@example(("field", T.DoubleType(), 5e9), "int", False)
@example(("field", T.LongType(), 5 * 10**9), "int", True)
@example(("field", T.LongType(), 2**53 + 1), "double", False)
@example(("field", T.TimestampNTZType(), 0), AVRO[10], False)
@settings(max_examples=500)
def test_avro_is_exact_or_refused(sent: tuple[str, T.DataType, Any], leaf: Any, nullable: bool) -> None:
    nesting, kind, value = sent
    branches = leaf if isinstance(leaf, list) else [leaf]
    schema: Any = ["null", *branches] if nullable else leaf
    match nesting:
        case "array":
            schema = {"type": "array", "items": schema}
        case "map":
            schema = {"type": "map", "values": schema}
        case "struct":
            schema = {"type": "record", "name": "S", "fields": [{"name": "m", "type": schema}]}
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": schema}]})
    write = AvroWriter(text, b"").open()
    parsed = fastavro.parse_schema(json.loads(text))

    def read(body: bytes) -> Any:
        stream = io.BytesIO(body)
        record: Any = fastavro.schemaless_reader(stream, parsed, None)
        assert not stream.read()
        return record["n"]

    exact_or_refused(write, read, kind, value)


@given(sent(), st.sampled_from(sorted(PROTOBUF)), st.booleans())
@example(("field", T.DoubleType(), 1e300), "float", False)
@example(("field", T.LongType(), None), "int64", False)
@settings(max_examples=500)
def test_protobuf_is_exact_or_refused(sent: tuple[str, T.DataType, Any], leaf: str, optional: bool) -> None:
    nesting, kind, value = sent
    proto = message(number_file(nesting, leaf, optional), "R")
    write = ProtobufWriter(_shipped(proto.DESCRIPTOR), b"").open()
    exact_or_refused(write, lambda body: of_message(proto.FromString(body), nesting), kind, value)


def number_file(nesting: str, leaf: str, optional: bool) -> Any:
    """A file with the message R, whose field ``n`` has the type `leaf`, nested as in `sent`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="n.proto", package="p", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    record = file.message_type.add(name="R")
    kind, type_name = PROTOBUF[leaf]
    field = _FIELD(name="n", number=1, type=kind, type_name=type_name or None, label=_FIELD.LABEL_OPTIONAL)
    if leaf == "enum":
        of_enum = file.enum_type.add(name="Kind")
        of_enum.value.add(name="NONE", number=0)
        of_enum.value.add(name="RUSH", number=1)
    if nesting == "array":
        field.label = _FIELD.LABEL_REPEATED
    elif nesting == "map":
        entry = record.nested_type.add(name="NEntry")
        entry.options.map_entry = True
        entry.field.append(_FIELD(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL))
        entry.field.append(
            _FIELD(name="value", number=2, type=kind, type_name=type_name or None, label=_FIELD.LABEL_OPTIONAL)
        )
        field = _FIELD(
            name="n", number=1, type=_FIELD.TYPE_MESSAGE, label=_FIELD.LABEL_REPEATED, type_name=".p.R.NEntry"
        )
    elif nesting == "struct":
        inner = file.message_type.add(name="S")
        field.name = "m"
        _make_optional(inner, field, optional)
        field = _FIELD(name="n", number=1, type=_FIELD.TYPE_MESSAGE, type_name=".p.S", label=_FIELD.LABEL_OPTIONAL)
    if nesting == "field":
        _make_optional(record, field, optional)
    else:
        record.field.append(field)
    return file


def _make_optional(kind: Any, field: Any, optional: bool) -> None:
    if optional:
        kind.oneof_decl.add(name="_o")
        field.proto3_optional, field.oneof_index = True, 0
    kind.field.append(field)


def of_message(record: Any, nesting: str) -> Any:
    field = record.DESCRIPTOR.fields_by_name["n"]
    match nesting:
        case "array":
            return [of_value(item, field) for item in record.n]
        case "map":
            return {key: of_value(item, field.message_type.fields_by_name["value"]) for key, item in record.n.items()}
        case "struct":
            return {"m": of_field(record.n, "m")} if record.HasField("n") else None
    return of_field(record, "n")


def of_field(record: Any, name: str) -> Any:
    field = record.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not record.HasField(name):
        return None
    return of_value(getattr(record, name), field)


def of_value(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        return EnumValue(value)
    if field.message_type is not None:  # a Timestamp
        return AsUtc(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    return value


RESULTS = [
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
]
RETURNED = [
    *INTEGERS,
    *FLOATS,
    None,
    True,
    "x",
    b"\xff",
    Decimal("1.9"),
    Decimal("1.25"),
    Decimal("0.1"),
    dt.date(2024, 5, 1),
    dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC),
    np.float64(1.9),
    np.int64(5 * 10**9),
    np.float32(0.1),
    pd.Timestamp("2024-05-01T00:00:00.000000001Z"),
]


def _result(value: Any, arrow: pa.DataType) -> tuple[Any, str]:
    try:
        return _as_array([value], arrow, exact.of_arrow(arrow), "op", [["row"]]).to_pylist()[0], ""
    except JobCodeError as error:
        return None, error.what


@given(st.sampled_from(RESULTS), st.sampled_from(RETURNED))
@example(pa.int32(), 1.9)
@example(pa.date32(), dt.datetime(2024, 5, 1, 10))
@settings(max_examples=500)
def test_results_of_udfs_are_exact_or_refused(kind: pa.DataType, value: Any) -> None:
    for arrow, result, step in (
        (kind, value, lambda row: row),
        (pa.list_(kind), [value], lambda row: row[0]),
        (pa.map_(pa.string(), kind), {"k": value}, lambda row: dict(row)["k"]),
        (pa.struct([("m", kind)]), {"m": value}, lambda row: row["m"]),
    ):
        got, refusal = _result(result, arrow)
        if refusal:
            assert "op" in refusal
            assert exact.shown(value)[:20] in refusal
            continue
        got = step(got)
        wanted = (
            struct.unpack("<f", struct.pack("<f", value))[0]
            if pa.types.is_float32(kind) and value is not None
            else value
        )
        if isinstance(value, bytes) or isinstance(got, bytes):
            continue  # pyarrow encodes text as UTF-8 and back
        assert same(wanted, got), f"{value!r} was returned, {got!r} arrived as {arrow}"


@pytest.mark.parametrize(
    ("format_of", "kind"),
    [("json", T.FloatType()), ("avro", T.FloatType()), ("avro", T.DoubleType())],
)
def test_numbers_that_do_not_fit_when_they_are_read_are_poison(format_of: str, kind: T.DataType) -> None:
    pins = Pins(f"mock://{secrets.token_hex(4)}", {})
    schema = T.StructType([T.StructField("n", kind)])
    number = 2**53 + 1 if isinstance(kind, T.DoubleType) else 10**300
    if format_of == "json":
        reader: Any = Json().reader(schema, pins)
        value = b'{"n":1e300}'
    else:
        wire = "long" if isinstance(kind, T.DoubleType) else "double"
        avro = Avro(avsc=json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": wire}]}))
        value = avro.writer("r", pins).open()({"n": number if wire == "long" else 1e300})
        reader = Avro().reader(schema, pins)
    decode = reader.open(registry_at(pins.registry).schema if format_of == "avro" else None)
    with pytest.raises(ValueError, match="n"):
        decode(value)
