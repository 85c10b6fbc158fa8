"""Formats against Confluent's in-process registry, without Spark and without a broker."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import secrets
import uuid
from decimal import Decimal
from typing import Any

import certifi
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from clonos.carried_errors import CarriedError, uncarry
from clonos.errors import JobCodeError, RegistryRefused, RegistryUnavailable, SpecError
from clonos.formats import Avro, Json, Protobuf, as_avro, as_protobuf, columns, registry
from clonos.formats.codec import Reader, Undecodable
from clonos.formats.registry import Pins, UnknownSchema, header, registry_at
from clonos.settings import RegistrySettings
from support.protos import message, order_file

AT = dt.datetime(2026, 11, 21, 10, 30, 0, 123000, tzinfo=dt.UTC)
ORDER_V1 = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NONE", "RUSH"]}},
            {"name": "note", "type": ["null", "string"]},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                    },
                },
            },
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
            {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        ],
    }
)
ORDER: dict[str, Any] = {
    "id": 2**60,
    "amount": Decimal("12.50"),
    "at": AT,
    "day": dt.date(2026, 11, 21),
    "kind": "RUSH",
    "note": None,
    "lines": [{"sku": "a", "count": 2}, {"sku": "b", "count": -1}],
    "tags": {"x": 1, "y": 2},
    "raw": b"\x00\x01\x02\x03",
    "token": "7f1f3e9e-6e1d-4a52-9f62-3f6b9d3a4c11",
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
}


@pytest.fixture
def url() -> str:
    return f"mock://{secrets.token_hex(4)}"


@pytest.fixture
def pins(url: str) -> Pins:
    return Pins(url, {})


def client(url: str) -> SchemaRegistryClient:
    return registry_at(url)._client


def decoded(reader: Reader, value: bytes) -> Any:
    """Decode as a task does: with an unpickled reader, and through Arrow."""
    reader = pickle.loads(pickle.dumps(reader))
    lookup = registry_at(reader.registry or "").schema if reader.registry else registry_at("mock://none").schema
    record = reader.open(lookup)(value)
    arrow = to_arrow_type(reader.spark_type, timezone="UTC")
    [row] = pa.array([record], arrow).to_pylist(maps_as_pydicts="strict")
    return row


def ddl(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


# JSON


def test_json_decodes_fields_by_name(pins: Pins) -> None:
    kinds = ddl(
        id=T.LongType(),
        amount=T.DecimalType(9, 2),
        at=T.TimestampType(),
        day=T.DateType(),
        raw=T.BinaryType(),
        tags=T.MapType(T.StringType(), T.LongType()),
        lines=T.ArrayType(ddl(sku=T.StringType())),
        missing=T.StringType(),
    )
    value = (
        b'{"id":7,"amount":12.50,"at":"2026-11-21T11:30:00.123+01:00","day":"2026-11-21","raw":"AAE=",'
        b'"tags":{"x":null},"lines":[{"sku":"a","more":1}],"extra":{}}'
    )
    assert decoded(Json().reader(kinds, pins), value) == {
        "id": 7,
        "amount": Decimal("12.50"),
        "at": AT,
        "day": dt.date(2026, 11, 21),
        "raw": b"\0\1",
        "tags": {"x": None},
        "lines": [{"sku": "a"}],
        "missing": None,
    }


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"1", b"null", b'{"id":"7"}', b'{"id":1.5}', b'{"id":9223372036854775808}', b"\xff"]
)
def test_json_that_does_not_fit_is_poison(pins: Pins, value: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        decoded(Json().reader(ddl(id=T.LongType()), pins), value)


@pytest.mark.parametrize("kind", [T.FloatType(), T.DoubleType()])
@pytest.mark.parametrize(
    "value", ['"NaN"', '"inf"', '"1_000"', '"1.5"', "true", "NaN", "1e400", "-1e400", "1" + "0" * 400, "[1]"]
)
def test_json_numbers_are_finite_numbers(pins: Pins, kind: T.DataType, value: str) -> None:
    decode = Json().reader(T.StructType([T.StructField("n", kind)]), pins).open(None)
    with pytest.raises(ValueError, match=r"\.n`|JSON is malformed"):
        decode(b'{"n":%s}' % value.encode())
    assert decode(b'{"n":0.5}') == decode(b'{"n":5e-1}') == {"n": 0.5}
    assert decode(b'{"n":7}') == {"n": 7.0}


def test_json_requires_not_null_fields(pins: Pins) -> None:
    kinds = T.StructType([T.StructField("id", T.LongType(), nullable=False)])
    reader = Json().reader(kinds, pins)
    assert decoded(reader, b'{"id":1}') == {"id": 1}
    for value in (b"{}", b'{"id":null}'):
        with pytest.raises(ValueError, match="id"):
            decoded(reader, value)


MINUTE = dt.datetime(2024, 5, 1, 10, 16, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01T10:16Z", MINUTE),
        ("2024-05-01T12:16+02:00", MINUTE),
        ("2024-05-01T12:16:00+02", MINUTE),
        ("2024-05-01T12:16:00+0200", MINUTE),
        ("2024-05-01T12:16+02", MINUTE),
        ("2024-05-01T10:16:00,5Z", MINUTE + dt.timedelta(milliseconds=500)),
        ("2024-05-01T10:16:00.1234565Z", MINUTE + dt.timedelta(microseconds=123457)),
        ("2024-05-01t10:16z", MINUTE),
        ("2024-05-01 10:16", MINUTE),
    ],
)
def test_json_times_of_other_producers(pins: Pins, text: str, expected: dt.datetime) -> None:
    """Java leaves out seconds that are zero."""
    reader = Json().reader(ddl(at=T.TimestampType()), pins)
    assert decoded(reader, json.dumps({"at": text}).encode()) == {"at": expected}


@pytest.mark.parametrize(
    "text",
    ["2024-05-01", "2024-05-01T10", "2024-13-01T10:16Z", "2024-05-01T10:16.5Z", "10000-01-01T10:16Z", "10:16Z", ""],
)
def test_other_texts_are_not_times(pins: Pins, text: str) -> None:
    with pytest.raises(ValueError, match=r"at `\$\.at`"):
        decoded(Json().reader(ddl(at=T.TimestampType()), pins), json.dumps({"at": text}).encode())


def test_json_times_without_an_offset(pins: Pins) -> None:
    reader = Json().reader(ddl(at=T.TimestampNTZType()), pins)
    assert decoded(reader, b'{"at":"2024-05-01T10:16"}') == {"at": MINUTE.replace(tzinfo=None)}
    with pytest.raises(ValueError, match="at"):
        decoded(reader, b'{"at":"2024-05-01T10:16Z"}')


@pytest.mark.parametrize(
    ("text", "expected"), [("7.0", 7), ("7e0", 7), ("-0.0", 0), ("9007199254740993.0", 2**53 + 1), ("1e18", 10**18)]
)
def test_whole_numbers_with_a_fraction_of_zero(pins: Pins, text: str, expected: int) -> None:
    kinds = ddl(id=T.LongType(), more=T.ArrayType(T.LongType()))
    assert decoded(Json().reader(kinds, pins), f'{{"id":{text},"more":[{text}]}}'.encode()) == {
        "id": expected,
        "more": [expected],
    }


@pytest.mark.parametrize("text", ["7.5", "1e19", "1e400", "1e999999999", "true", '"7.0"'])
def test_other_numbers_are_not_a_long(pins: Pins, text: str) -> None:
    with pytest.raises(ValueError, match=r"at `\$\.id`"):
        decoded(Json().reader(ddl(id=T.LongType()), pins), f'{{"id":{text}}}'.encode())


@pytest.mark.parametrize("frames", [0, 300, 800])
def test_nesting_does_not_depend_on_the_depth_of_calls(pins: Pins, frames: int) -> None:
    """A task decides as another process did, at any depth of calls."""
    reader = Json().reader(ddl(id=T.LongType()), pins)

    def nested_in(frames: int, value: bytes) -> Any:
        return nested_in(frames - 1, value) if frames else reader.open(registry_at("mock://none").schema)(value)

    def deep(levels: int) -> bytes:
        return b'{"id":1,"text":"' + b"[" * 2000 + b'","more":' + b"[" * levels + b"]" * levels + b"}"

    assert nested_in(frames, deep(899)) == {"id": 1}
    with pytest.raises(Undecodable, match="deeper than 900"):
        nested_in(frames, deep(900))


def test_deep_avro_is_poison_instead_of_the_end_of_the_process(pins: Pins) -> None:
    chain = {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]}
    avro = Avro(avsc=json.dumps({"type": "record", "name": "R", "fields": [{"name": "chain", "type": chain}]}))
    start = avro.writer("c-value", pins).open()({"chain": {"next": None}})[:5]
    reader = Avro().reader(ddl(id=T.LongType()), pins)
    assert decoded(reader, start + b"\2" * 100 + b"\0") == {"id": None}
    for levels in (2_000, 100_000):
        with pytest.raises(Undecodable, match="nested too deep"):
            decoded(reader, start + b"\2" * levels + b"\0")


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_json_round_trip(record: dict[str, Any]) -> None:
    none = Pins("", {})
    value = Json().writer(None, none).open()(record)
    expected = {"a": record.get("a"), "b": record.get("b")}
    assert decoded(Json().reader(ddl(a=T.LongType(), b=T.LongType()), none), value) == expected


def test_framed_json_has_a_schema_id(pins: Pins, url: str) -> None:
    framed = Json(framed=True, json_schema='{"type":"object"}')
    value = framed.writer("o-value", pins).open()({"id": 1})
    assert value == header(1) + b'{"id":1}'
    assert client(url).get_schema(1).schema_type == "JSON"
    reader = framed.reader(ddl(id=T.LongType()), pins)
    assert decoded(reader, value) == {"id": 1}
    with pytest.raises(ValueError, match="magic byte"):
        decoded(reader, b'{"id":1}')


# Avro


def test_avro_round_trip_of_all_types(pins: Pins) -> None:
    avro = Avro(avsc=ORDER_V1)
    value = pickle.loads(pickle.dumps(avro.writer("o-value", pins))).open()(ORDER)
    assert value[:5] == header(1)
    assert decoded(avro.reader(None, pins), value) == ORDER
    assert decoded(Avro().reader(ddl(id=T.LongType(), nope=T.StringType()), pins), value) == {
        "id": 2**60,
        "nope": None,
    }


def test_avro_schema_has_a_spark_type() -> None:
    assert as_avro.spark_type(as_avro._resolved(ORDER_V1)).simpleString() == (
        "struct<id:bigint,amount:decimal(9,2),at:timestamp,day:date,kind:string,note:string,"
        "lines:array<struct<sku:string,count:int>>,tags:map<string,bigint>,raw:binary,token:string,"
        "local:timestamp_ntz>"
    )


def record_of(**fields: Any) -> str:
    members = [
        {"name": name, "type": kind} if not isinstance(kind, tuple) else kind[0] for name, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": "R", "fields": members})


def _decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


def test_avro_decodes_all_versions_with_the_pinned_schema(pins: Pins, url: str) -> None:
    """Records of both versions are read with the subject's latest version when the job started."""
    v1 = record_of(id="int", removed="string")
    v2 = record_of(id="long", colour=({"name": "colour", "type": "string", "default": "grey"},))
    old = Avro(avsc=v1).writer("e-value", pins).open()({"id": 1, "removed": "x"})
    new = Avro(avsc=v2).writer("e-value", pins).open()({"id": 2, "colour": "red"})
    reader = Avro(subject="e-value").reader(None, pins)
    assert decoded(reader, old) == {"id": 1, "colour": "grey"}
    assert decoded(reader, new) == {"id": 2, "colour": "red"}
    client(url).register_schema("e-value", Schema(record_of(id="string"), "AVRO"))
    again = Avro(subject="e-value").reader(None, Pins(url, pins.answers))
    assert again.spark_type == reader.spark_type, "a replay uses the pinned schema"
    assert Avro(subject="e-value").reader(None, Pins(url, {})).spark_type != reader.spark_type
    named = Avro(subject="e-value", version=1).reader(None, Pins(url, {}))
    assert named.spark_type.names == ["id", "removed"]


def test_record_of_an_incompatible_writer_is_poison(pins: Pins) -> None:
    value = Avro(avsc=record_of(id="string")).writer("i-value", pins).open()({"id": "x"})
    with pytest.raises(Exception, match="string"):
        decoded(Avro(avsc=record_of(id="long")).reader(None, pins), value)
    with pytest.raises(ValueError, match="int"):
        decoded(Avro().reader(ddl(id=T.LongType()), pins), value)


def test_avro_resolves_references(pins: Pins, url: str) -> None:
    line = json.dumps({"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]})
    client(url).register_schema("line", Schema(line, "AVRO"))
    text = record_of(first="Line", rest={"type": "array", "items": "Line"})
    number = client(url).register_schema("r-value", Schema(text, "AVRO", [SchemaReference("Line", "line", 1)]))
    avro = Avro(subject="r-value")
    record = {"first": {"sku": "a"}, "rest": [{"sku": "b"}]}
    value = avro.writer("r-value", pins).open()(record)
    assert value[:5] == header(number)
    assert decoded(avro.reader(None, pins), value) == record
    assert decoded(Avro().reader(as_avro.spark_type(avro.reader(None, pins).text or ""), pins), value) == record


@pytest.mark.parametrize(
    "damage",
    [lambda v: b"", lambda v: v[:3], lambda v: b"{}" + v, lambda v: v[:-1], lambda v: v + b"\0"],
    ids=["empty", "short", "no-magic", "cut", "more"],
)
def test_damaged_avro_is_poison(pins: Pins, damage: Any) -> None:
    avro = Avro(avsc=record_of(id="long", name="string"))
    value = avro.writer("d-value", pins).open()({"id": 1, "name": "abc"})
    with pytest.raises(Exception, match=r".*"):
        decoded(avro.reader(None, pins), damage(value))


def test_avro_record_with_a_json_schema_is_poison(pins: Pins, url: str) -> None:
    number = client(url).register_schema("j-value", Schema('{"type":"object"}', "JSON"))
    with pytest.raises(Undecodable, match="type JSON"):
        decoded(Avro().reader(ddl(id=T.LongType()), pins), header(number) + b"\2")


@pytest.mark.parametrize(
    ("avro", "schema", "message"),
    [
        (Avro(), None, "needs a schema"),
        (Avro(avsc="{"), None, "not an Avro schema"),
        (Avro(avsc='"string"'), None, "not that of a record"),
        (Avro(avsc=record_of(a=["int", "string"])), None, "the record.a is a union"),
        (Avro(avsc=record_of(next=["null", "R"])), None, "recursive"),
        (Avro(subject="nowhere"), None, "not in the registry"),
        (Avro(avsc=record_of(a=_decimal(50))), None, "the record.a is a decimal of 50 digits"),
        (Avro(registry="mock://me:secret@x"), ddl(a=T.LongType()), "holds credentials"),
        (Avro(), ddl(a=T.DayTimeIntervalType()), "interval"),
    ],
)
def test_invalid_schema_is_refused_at_start(pins: Pins, avro: Avro, schema: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        avro.reader(schema, pins)


def test_encoding_refuses_unknown_fields_and_wrong_types(pins: Pins) -> None:
    write = Avro(avsc=record_of(id="long")).writer("l-value", pins).open()
    for row in ({"id": 1, "more": 2}, {"id": "x"}, {"id": None}):
        with pytest.raises(CarriedError) as failed:
            columns._encoded(write, row)
        assert isinstance(uncarry(str(failed.value)), JobCodeError)
    assert columns._encoded(write, None) is None
    with pytest.raises(SpecError, match="needs a subject"):
        Avro(avsc=record_of(id="long")).writer(None, pins)


# Protobuf

ORDER_PROTO = message(order_file(), "Order")
PROTO: dict[str, Any] = {
    "id": -3,
    "amount": 1.5,
    "kind": "RUSH",
    "at": AT,
    "note": "",
    "lines": [{"sku": "a", "count": 2}],
    "tags": {"x": 1, "y": 2},
    "big": Decimal(2**64 - 1),
    "raw": b"\0\xff",
}


def test_protobuf_round_trip_of_all_types(pins: Pins, url: str) -> None:
    proto = Protobuf(ORDER_PROTO)
    value = pickle.loads(pickle.dumps(proto.writer("p-value", pins))).open()(PROTO)
    assert value[:6] == header(1) + b"\0", "the first message of its file"
    assert decoded(proto.reader(None, pins), value) == PROTO
    assert client(url).get_schema(1).schema_type == "PROTOBUF"


def test_protobuf_missing_fields_have_defaults(pins: Pins) -> None:
    proto = Protobuf(ORDER_PROTO)
    value = proto.writer("p-value", pins).open()({"id": 1, "note": None})
    assert decoded(proto.reader(None, pins), value) == {
        **dict.fromkeys(["at", "note"]),
        "id": 1,
        "amount": 0.0,
        "kind": "NONE",
        "lines": [],
        "tags": {},
        "big": Decimal(0),
        "raw": b"",
    }


def test_protobuf_message_has_a_spark_type() -> None:
    assert as_protobuf.spark_type(ORDER_PROTO.DESCRIPTOR).simpleString() == (
        "struct<id:bigint,amount:double,kind:string,at:timestamp,note:string,"
        "lines:array<struct<sku:string,count:int>>,tags:map<string,int>,big:decimal(20,0),raw:binary>"
    )


def test_protobuf_of_a_newer_writer_is_decoded(pins: Pins) -> None:
    newer = Protobuf(message(order_file(before=True, more=True), "Order"))
    value = newer.writer("p-value", pins).open()({"id": 1, "kind": "GIFT", "colour": "red"})
    assert value[5:7] == b"\x02\x02", "one index: the second message"
    order = decoded(Protobuf(ORDER_PROTO).reader(None, pins), value)
    assert (order["id"], order["kind"]) == (1, "2"), "unknown fields are left out, unknown names are numbers"


def test_protobuf_of_another_message_is_poison(pins: Pins) -> None:
    other = Protobuf(message(order_file(before=True), "Header"))
    value = other.writer("p-value", pins).open()({"id": 1})
    with pytest.raises(Undecodable, match=r"shop\.Header, not shop\.Order"):
        decoded(Protobuf(ORDER_PROTO).reader(None, pins), value)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x01", b"\x04\x00", b"\x00\xff\xff", b"\x02\x06"])
def test_damaged_protobuf_is_poison(pins: Pins, body: bytes) -> None:
    proto = Protobuf(ORDER_PROTO)
    proto.writer("p-value", pins)
    with pytest.raises(Exception, match=r".+"):
        decoded(proto.reader(None, pins), header(1) + body)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=5).map(tuple))
def test_message_indexes_round_trip(path: tuple[int, ...]) -> None:
    assert as_protobuf._read_indexes(as_protobuf._indexes(path) + b"rest") == (path, b"rest")


# Schemas in headers, and by GUID


def guid_of(url: str, number: int) -> bytes:
    """The GUID of a schema, as Confluent Platform 8 writes it: after the magic byte 1."""
    [guid] = [known.guid for known in client(url)._store.schema_guid_index.values() if known.schema_id == number]  # type: ignore[attr-defined]
    return b"\1" + uuid.UUID(guid).bytes


@pytest.mark.parametrize("column", ["value", "key"])
@pytest.mark.parametrize("place", ["prefix", "header"])
@pytest.mark.parametrize("kind", ["avro", "protobuf", "json"])
def test_schemas_by_guid(pins: Pins, url: str, kind: str, place: str, column: str) -> None:
    formats: dict[str, Any] = {
        "avro": Avro(avsc=record_of(id="long")),
        "protobuf": Protobuf(ORDER_PROTO),
        "json": Json(framed=True, json_schema='{"type":"object"}'),
    }
    prefix = 6 if kind == "protobuf" else 5
    value = formats[kind].writer("g-value", pins).open()({"id": 7})
    start = guid_of(url, 1) + (b"\0" if kind == "protobuf" else b"")
    reader = formats[kind].reader(ddl(id=T.LongType()), pins)
    in_header = place == "header"
    values = pa.array([value[prefix:] if in_header else start + value[prefix:], value, None], pa.binary())
    headers = pa.array([start if in_header else None, None, start], pa.binary())
    task = columns._Decoding(reader, "decode")
    records, poison = task.decode(columns._framed(values, headers, reader), to_arrow_type(reader.spark_type))
    assert poison == {}
    assert records.to_pylist() == [{"id": 7}, {"id": 7}, None]


def test_headers_do_not_change_json_without_a_registry(pins: Pins) -> None:
    reader = Json().reader(ddl(id=T.LongType()), pins)
    assert columns._framed(pa.array([b"{}"]), pa.array([b"\1"]), reader) == [b"{}"]


def test_an_unknown_guid_is_poison(pins: Pins) -> None:
    task = columns._Decoding(Avro().reader(ddl(id=T.LongType()), pins), "decode")
    _, poison = task.decode([b"\1" + bytes(16) + b"\2", b"\1\2\3"], pa.struct([("id", pa.int64())]))
    assert poison[0] == ("UnknownSchema", f"The GUID {uuid.UUID(int=0)} is not in the registry {pins.registry}.")
    assert "no header" in poison[1][1]


# The registry


def test_pins_send_each_request_once(url: str) -> None:
    requests: list[int] = []
    pins = Pins(url, {"mock://a pinned": 7})

    def answer() -> int:
        requests.append(1)
        return len(requests)

    assert [pins.ask("q", "mock://a", answer) for _ in range(2)] == [1, 1]
    assert pins.ask("pinned", "mock://a", answer) == 7
    assert pins.answers == {"mock://a q": 1, "mock://a pinned": 7}


def test_unreachable_registry_fails_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver waits for the registry; the records are not poison."""
    settings = RegistrySettings(timeout_s=0.2)
    monkeypatch.setattr(columns, "registry_at", lambda url: registry.Registry(url, settings))
    pins = Pins("http://127.0.0.1:1", {})
    task = columns._Decoding(Avro().reader(ddl(id=T.LongType()), pins), "decode")
    with pytest.raises(RegistryUnavailable, match="did not answer"):
        task.decode([header(1) + b"\2"], pa.struct([("id", pa.int64())]))
    with pytest.raises(RegistryUnavailable):
        registry.Registry("http://127.0.0.1:1", settings).version("s", None)


def test_unknown_schema_id_is_poison(pins: Pins) -> None:
    task = columns._Decoding(Avro().reader(ddl(id=T.LongType()), pins), "decode")
    records, poison = task.decode([header(99) + b"\2", None], pa.struct([("id", pa.int64())]))
    assert records.null_count == 2
    assert poison == {0: ("UnknownSchema", f"The id 99 is not in the registry {pins.registry}.")}


def test_values_that_arrow_refuses_are_poison(pins: Pins) -> None:
    kinds = ddl(amount=T.DecimalType(4, 2))
    task = columns._Decoding(Json().reader(kinds, pins), "decode")
    values: list[bytes | None] = [b'{"amount":1.25}', b'{"amount":123.45}', b'{"amount":2}']
    records, poison = task.decode(values, to_arrow_type(kinds, timezone="UTC"))
    assert [row and row["amount"] for row in records.to_pylist()] == [Decimal("1.25"), None, Decimal("2.00")]
    assert list(poison) == [1]


def test_causes_are_repeatable() -> None:
    assert columns._cause(ValueError(f"{object()} is  wrong\n{'x' * 900}"))[1].startswith("<object object> is wrong xx")
    assert len(columns._cause(ValueError("x" * 900))[1]) == 500


def test_registry_never_uses_the_bundle_of_certifi(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise AssertionError("certifi's bundle was read")

    monkeypatch.setattr(certifi, "where", refuse)
    machine = registry.ssl.get_default_verify_paths()
    assert machine.cafile or machine.capath, "this machine has certificate authorities"
    registry.Registry("https://127.0.0.1:1", RegistrySettings())
    monkeypatch.setattr(
        registry.ssl, "get_default_verify_paths", lambda: type("P", (), {"cafile": None, "capath": None})
    )
    with pytest.raises(RegistryRefused, match="no trusted certificate"):
        registry.Registry("https://127.0.0.1:1", RegistrySettings())


def test_plans_hold_no_credentials(url: str, pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLONOS_REGISTRY__PASSWORD", "canary-7f")
    avro = Avro(avsc=record_of(id="long"))
    shipped = pickle.dumps((avro.reader(None, pins), avro.writer("c-value", pins)))
    assert b"canary" not in shipped
    assert registry.registry_environment()["CLONOS_REGISTRY__PASSWORD"] == "canary-7f"


def test_unknown_ids_are_recorded_as_determinants(pins: Pins, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay decides as the first attempt did, although the schema was registered in between."""

    class Scope:
        def __init__(self) -> None:
            self.log: dict[bytes, Any] = {}

        def find(self, key: bytes) -> Any:
            return self.log.get(key)

        def record(self, entry: Any) -> None:
            self.log[entry.key] = entry

    scope = Scope()
    monkeypatch.setattr(columns, "open_task_scope", lambda operator: scope)
    reader = Avro().reader(ddl(id=T.LongType()), pins)
    arrow = pa.struct([("id", pa.int64())])
    first = columns._Decoding(reader, "decode").decode([header(1) + b"\2"], arrow)
    Avro(avsc=record_of(id="long")).writer("u-value", pins)
    replay = columns._Decoding(reader, "decode").decode([header(1) + b"\2"], arrow)
    assert first[1] == replay[1] != {}
    scope.log.clear()
    assert columns._Decoding(reader, "decode").decode([header(1) + b"\2"], arrow)[1] == {}
    with pytest.raises(UnknownSchema):
        registry_at(url).schema(2)
