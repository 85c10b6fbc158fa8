"""Records through real jobs: formats, poison policies, and a registry that fails; in one warm session."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pandas as pd
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.errors import (
    EpochFailed,
    JobCodeError,
    PoisonRecord,
    RegistryRefused,
    RegistryUnavailable,
    RestartsExhausted,
    SpecError,
    TopicMissing,
)
from clonos.formats import Avro, Json, Protobuf
from clonos.formats.registry import header
from clonos.jobs.context import JobContext
from clonos.jobs.loading import load_job
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import Deadline, read_committed
from support.protos import message, order_file
from support.registry import StubRegistry

pytestmark = pytest.mark.full

MakeTopic = Callable[..., str]
AT = int(time.time() * 1000) - 3_600_000  # the topic's retention deletes much older records
BAD = b"\xff not a record"
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "note", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "lines", "type": {"type": "array", "items": "string"}},
        ],
    }
)


def produce(kafka: KafkaSettings, topic: str, records: list[tuple[int, bytes | None]]) -> None:
    """(partition, value) each, with a key, a header and an event timestamp of their own."""
    producer = Producer(client_config(kafka))
    for number, (partition, value) in enumerate(records):
        producer.produce(
            topic,
            value,
            key=f"k{number}",
            partition=partition,
            headers=[("n", str(number).encode()), ("none", None)],
            timestamp=AT + number,
        )
    assert producer.flush(30) == 0


def numbered(count: int, partitions: int, *, bad_each: int = 5) -> tuple[list[tuple[int, bytes | None]], list[int]]:
    """JSON records over all partitions, every `bad_each`-th of them bad; and the numbers of the good records."""
    good = [number for number in range(count) if number % bad_each]
    return [
        (number % partitions, json.dumps({"id": number}).encode() if number % bad_each else BAD + str(number).encode())
        for number in range(count)
    ], good


def headers(record: Message) -> dict[str, bytes | None]:
    return dict(record.headers() or [])  # type: ignore[arg-type]


def ids(kafka: KafkaSettings, topic: str) -> list[int]:
    return sorted(json.loads(record.value() or b"")["id"] for record in read_committed(kafka, topic))


def letters(kafka: KafkaSettings, topic: str) -> Counter[bytes]:
    return Counter(record.value() or b"" for record in read_committed(kafka, topic))


@clonos.udf("int")
def lose_worker(partition: int, flag: str, out: str, register: str) -> int:
    """In every partition but the first: wait until another lane is published, then lose the worker, once."""
    path = Path(flag)
    if partition == 0 or path.exists():
        return 0
    from clonos.causal.epoch_scope import worker_kafka
    from clonos.formats.registry import new_schema, registry_at

    deadline = Deadline(30)
    while not deadline.passed() and not read_committed(worker_kafka(), out):
        time.sleep(0.05)
    if register:
        registry_at(os.environ["CLONOS_REGISTRY__URL"]).register("late-value", new_schema(register, "AVRO"))
    path.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def poison_job(
    source: str, out: str, dead: str, flag: Path, *, policy: str = "dead-letter", register: str = "", fmt: Any = None
) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        more = {"dead_letters": dead} if policy == "dead-letter" else {}
        decoded = ctx.decode(ctx.source(source), fmt or Json(), schema="id long", on_poison=policy, **more)  # type: ignore[arg-type]
        lost = lose_worker("partition", F.lit(str(flag)), F.lit(out), F.lit(register))
        made = decoded.withColumn("value", F.to_json(F.struct("record.id", lost.alias("lost"))))
        ctx.sink(made.select("key", "value", *(["poison"] if more else [])), topic=out, name="out")

    return job


# Round trips


def roundtrip(ctx: JobContext, source: str, out: str, fmt: Any, schema: str | None, subject: str | None) -> None:
    records = ctx.decode(ctx.source(source), fmt, schema=schema)
    value = ctx.encode("record", fmt, subject=subject).alias("value")
    ctx.sink(records.select("key", value, "headers", "timestamp"), topic=out, name="out")


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["json", "framed-json", "avro", "protobuf"])
def test_there_and_back(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry, kind: str
) -> None:
    """Decoding and encoding restore the same bytes; keys, tombstones, headers and timestamps are preserved."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    records = [
        {
            "id": n,
            "amount": "1.50",
            "at": AT + n,
            "note": None if n % 2 else "ä",
            "tags": {"b": 2, "a": 1},
        }
        for n in range(20)
    ]
    schema, subject, fmt = None, f"{out}-value", None
    if kind.endswith("json"):
        schema = "id long, amount decimal(9,2), at long, note string, tags map<string,int>"
        start = b""
        if kind == "framed-json":
            text = json.dumps({"type": "object", "title": name})
            start = header(registry.register(subject, text, "JSON"))
            fmt = Json(framed=True, json_schema=text)
        values = [start + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() for fields in records]
        fmt = fmt or Json()
    elif kind == "avro":
        parsed: Any = fastavro.parse_schema(json.loads(ORDER))
        start, values = header(registry.register(subject, ORDER)), []
        for fields in records:
            body = io.BytesIO()
            row = {**fields, "amount": b"\x00\x96", "lines": ["x"]}
            fastavro.schemaless_writer(body, parsed, row)
            values.append(start + body.getvalue())
        fmt = Avro(avsc=ORDER)
    else:
        made = message(order_file("shop" + name), "Order")
        fmt = Protobuf(made)
        start = header(registry.register(subject, _descriptor(made), "PROTOBUF")) + b"\0"
        values = []
        for fields in records:
            order = made(id=fields["id"], amount=1.5, kind=1, tags=fields["tags"])
            order.at.FromMilliseconds(fields["at"])
            if fields["note"]:
                order.note.value = fields["note"]
            values.append(start + order.SerializeToString(deterministic=True))
    produce(kafka, source, [(number % 2, value) for number, value in enumerate([*values, None])])
    run_job(lambda ctx: roundtrip(ctx, source, out, fmt, schema, subject), name)
    got = {record.key(): record for record in read_committed(kafka, out)}
    assert {key: record.value() for key, record in got.items()} == {
        f"k{number}".encode(): value for number, value in enumerate([*values, None])
    }
    for key, record in got.items():
        number = int((key or b"")[1:])
        assert record.headers() == [("n", str(number).encode()), ("none", None)]
        assert record.timestamp()[1] == AT + number


def _descriptor(made: Any) -> str:
    import base64

    return base64.b64encode(made.DESCRIPTOR.file.serialized_pb).decode()


@pytest.mark.ci
def test_schemas_in_headers(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry
) -> None:
    """Keys and values of one topic: with the id before the bytes, and with the GUID in a header."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    number = registry.register(f"{name}-value", record_schema(name))
    guid = b"\1" + uuid.UUID(int=number).bytes
    producer = Producer(client_config(kafka))
    in_headers = [("__key_schema_id", guid), ("__value_schema_id", guid)]
    producer.produce(source, key=header(number) + b"\2", value=header(number) + b"\4")
    producer.produce(source, key=b"\6", value=b"\x08", headers=[("n", b"1"), *in_headers])
    producer.produce(source, key=guid + b"\x0a", value=None, headers=[("n", None)])
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        values = ctx.decode(ctx.source(source), Avro(subject=f"{name}-value"))
        both = ctx.decode(values, Avro(subject=f"{name}-value"), column="key", into="of_key")
        ctx.sink(
            both.select(F.to_json(F.struct("of_key.id", F.col("record.id").alias("value"))).alias("value")), topic=out
        )

    run_job(job, name)
    got = [json.loads(record.value() or b"") for record in read_committed(kafka, out)]
    assert got == [{"id": 1, "value": 2}, {"id": 3, "value": 4}, {"id": 5}]


@clonos.service
def asked_with(number: int | None) -> str:
    return repr(number)


@clonos.pandas_udf("struct<same:long,asked:string>")
def same_and_asked(numbers: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"same": numbers, "asked": asked_with.map(numbers)})


@clonos.operator
def same_rows(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from batches


@pytest.mark.ci
def test_integers_next_to_nulls_stay_integers(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """A null beside it, or no null, changes neither a large integer nor the argument of a service."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    large = 2**53 + 1
    sent = [(0, large), (0, None), (0, 5), (1, large), (1, 5)]
    produce(kafka, source, [(partition, json.dumps({"id": number}).encode()) for partition, number in sent])

    def job(ctx: JobContext) -> None:
        decoded = ctx.decode(ctx.source(source), Json(), schema="id long").select("record.id")
        by_column = decoded.withColumn("got", same_and_asked("id")).select("id", "got.*")
        ctx.sink(
            by_column.mapInPandas(same_rows, by_column.schema).select(F.to_json(F.struct("*")).alias("value")),
            topic=out,
        )

    run_job(job, name)
    got = Counter(
        json.dumps(json.loads(record.value() or b""), sort_keys=True) for record in read_committed(kafka, out)
    )
    assert got == Counter(
        json.dumps({"asked": repr(n)} | ({} if n is None else {"id": n, "same": n}), sort_keys=True) for _, n in sent
    )


# Poison


def test_fail_names_the_record_and_loses_nothing(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    (tmp_path / "flag").touch()
    produce(kafka, source, [(0, b'{"id":1}'), (0, b'{"id":"x"}'), (0, b'{"id":2}')])
    with pytest.raises(PoisonRecord) as failed:
        run_job(poison_job(source, out, "", tmp_path / "flag", policy="fail"), name)
    assert f"{source}[0] offset 1 cannot be decoded: ValidationError: Expected `int | null`" in failed.value.what
    assert "dead-letter" in failed.value.hint
    assert failed.value.exit_code == 20
    assert run_job.events_of("restart") == []
    assert read_committed(kafka, out) == []
    run_job(poison_job(source, out, "", tmp_path / "flag", policy="drop"), name, code="2", accept_new_code=True)
    assert ids(kafka, out) == [1, 2]


@pytest.mark.turn
@pytest.mark.ci
@pytest.mark.parametrize("bounded", [False, True])
def test_a_wrong_clock_moves_the_watermark_or_is_a_dead_letter(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, bounded: bool
) -> None:
    """After an event of the future Spark drops the rows of right clocks: they are counted. A bound keeps it out."""
    source, out, dead = make_topic(1, "in"), make_topic(1, "out"), make_topic(1, "dead")
    now = int(time.time())

    def feed(*seconds: int) -> None:
        times = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + second)) for second in seconds)
        produce(kafka, source, [(0, json.dumps({"at": at}).encode()) for at in times])

    def job(ctx: JobContext) -> None:
        bound: Any = {"event_time": "at", "max_ahead": "5min"} if bounded else {}
        records = ctx.decode(
            ctx.source(source), Json(), schema="at timestamp", on_poison="dead-letter", dead_letters=dead, **bound
        )
        times = records.where("record is not null").select("record.at").withWatermark("at", "10 seconds")
        counts = times.groupBy(F.window("at", "1 day")).count()
        value = F.to_json(F.struct("*")).alias("value")
        ctx.sink(counts.select(value), topic=out, mode="update", dead_letters=records)

    feed(-7300, 200_000)  # the second by a wrong clock
    run_job(job, name)
    feed(*range(-7200, -7180))
    run_job(job, name)
    counted = sum(json.loads(row.value() or b"{}")["count"] for row in read_committed(kafka, out))
    letters = [dict(letter.headers() or []) for letter in read_committed(kafka, dead)]
    late = [event["late_rows"] for event in run_job.events_of("epoch")]
    if bounded:
        assert not any(late)
        assert counted > 20
        assert [letter["clonos.error.class"] for letter in letters] == [b"FutureEventTime"]
        assert letters[0]["clonos.error.message"].startswith(b"at=")
    else:
        assert (sum(late), late[0]) == (1, 0), "Spark drops the group of the rows, and not each row"
        assert (counted, letters) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"event_time": "at"}, "belong together"),
        ({"event_time": "id", "max_ahead": "5min"}, "not a field of type timestamp"),
        ({"event_time": "no", "max_ahead": "5min"}, "not a field of type timestamp"),
        ({"event_time": "at", "max_ahead": "5"}, "has no unit"),
    ],
)
def test_a_bound_that_cannot_be_used_is_refused(
    run_job: Any, name: str, make_topic: MakeTopic, arguments: Any, error: str
) -> None:
    source = make_topic(1, "in")

    def job(ctx: JobContext) -> None:
        ctx.decode(ctx.source(source), Json(), schema="id long, at timestamp", **arguments)

    with pytest.raises(SpecError, match=error):
        run_job(job, name)


@pytest.mark.usefixtures("partition_lanes")
def test_drop_counts_once_through_a_lost_worker(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    records, good = numbered(60, 3)
    produce(kafka, source, records)
    run_job(poison_job(source, out, "", tmp_path / "flag", policy="drop"), name)
    assert (tmp_path / "flag").exists(), "a worker was lost"
    assert ids(kafka, out) == good
    [epoch] = run_job.events_of("epoch")
    assert (epoch["replay"], epoch["diverged_lanes"]) == (True, 0)
    assert epoch["skipped_lanes"] >= 1
    assert (epoch["dropped"], epoch["dead_letters"]) == (12, 0)


@pytest.mark.ci
@pytest.mark.usefixtures("partition_lanes")
def test_dead_letters_once_through_a_lost_worker(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out, dead = make_topic(3, "in"), make_topic(1, "out"), make_topic(1, "dead")
    records, good = numbered(60, 3)
    produce(kafka, source, records)
    run_job(poison_job(source, out, dead, tmp_path / "flag"), name)
    assert (tmp_path / "flag").exists(), "a worker was lost"
    assert ids(kafka, out) == good
    assert letters(kafka, dead) == Counter(value or b"" for _, value in records if (value or b"").startswith(BAD))
    [epoch] = run_job.events_of("epoch")
    assert (epoch["replay"], epoch["diverged_lanes"], epoch["dropped"]) == (True, 0, 0)
    assert epoch["records_out"] == 60
    # The event does not count the dead letters of lanes that an earlier attempt published.
    assert epoch["dead_letters"] == 12 - 4 * epoch["skipped_lanes"]
    for letter in read_committed(kafka, dead):
        number = int((letter.key() or b"")[1:])
        assert letter.timestamp()[1] == AT + number
        assert headers(letter) == {
            "n": str(number).encode(),
            "none": None,
            "clonos.error.topic": source.encode(),
            "clonos.error.partition": str(number % 3).encode(),
            "clonos.error.offset": str(number // 3).encode(),
            "clonos.error.class": b"DecodeError",
            "clonos.error.message": b"JSON is malformed: invalid character (byte 0)",
            "clonos.error.job": name.encode(),
            "clonos.error.epoch": b"0",
        }


@pytest.mark.usefixtures("partition_lanes")
def test_a_lanes_output_and_dead_letters_are_one_transaction(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A lane fails with all records and its marker produced: readers see none of its records, then all of them."""
    source, out, dead = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "dead")
    (tmp_path / "flag").touch()
    records, good = numbered(40, 2)
    produce(kafka, source, records)

    def fail() -> None:
        raise EpochFailed("injected")

    with faults.acting("lane-marked", fail, lane=1), pytest.raises(RestartsExhausted):
        run_job(poison_job(source, out, dead, tmp_path / "flag"), name, restart_policy={"attempts": 0})
    assert {number % 2 for number in ids(kafka, out)} <= {0}
    assert {headers(letter)["clonos.error.partition"] for letter in read_committed(kafka, dead)} <= {b"0"}
    run_job(poison_job(source, out, dead, tmp_path / "flag"), name)
    assert ids(kafka, out) == good
    assert letters(kafka, dead) == Counter(value or b"" for _, value in records if (value or b"").startswith(BAD))
    assert all(epoch["diverged_lanes"] == 0 for epoch in run_job.events_of("epoch"))


def test_an_aggregation_with_dead_letters(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out, dead = make_topic(3, "in"), make_topic(1, "out"), make_topic(1, "dead")
    records, good = numbered(30, 3)
    produce(kafka, source, records)

    def job(ctx: JobContext) -> None:
        decoded = ctx.decode(ctx.source(source), Json(), schema="id long", on_poison="dead-letter", dead_letters=dead)
        parity = decoded.where(F.col("poison").isNull()).groupBy((F.col("record.id") % 2).alias("odd"))
        value = F.to_json(F.struct("odd", "count")).alias("value")
        ctx.sink(parity.count().select(value), topic=out, name="out", mode="update", dead_letters=decoded)

    run_job(job, name)
    counts = {row["odd"]: row["count"] for row in (json.loads(r.value() or b"") for r in read_committed(kafka, out))}
    assert counts == Counter(number % 2 for number in good)
    assert letters(kafka, dead) == Counter(value or b"" for _, value in records if (value or b"").startswith(BAD))
    assert sum(epoch["dead_letters"] for epoch in run_job.events_of("epoch")) == 6


@pytest.mark.usefixtures("partition_lanes")
def test_an_unknown_schema_stays_unknown_in_a_replay(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry, tmp_path: Path
) -> None:
    """The schema is registered between two attempts: using it in the replay would contradict published lanes."""
    source, out, dead = make_topic(3, "in"), make_topic(1, "out"), make_topic(1, "dead")
    known = record_schema(name)
    number = registry.register(f"{name}-value", known)
    late = record_schema(f"{name}late")
    produce(kafka, source, [(n % 3, header(number + (n % 2)) + bytes([2 * n])) for n in range(30)])
    run_job(poison_job(source, out, dead, tmp_path / "flag", register=late, fmt=Avro()), name)
    assert registry.register("late-value", late) == number + 1, "the record's id became known"
    assert ids(kafka, out) == list(range(0, 30, 2))
    dead_records = read_committed(kafka, dead)
    assert len(dead_records) == 15
    assert {headers(letter)["clonos.error.class"] for letter in dead_records} == {b"UnknownSchema"}
    [epoch] = run_job.events_of("epoch")
    assert (epoch["replay"], epoch["diverged_lanes"]) == (True, 0)
    assert epoch["skipped_lanes"] >= 1


def record_schema(name: str, kind: str = "long", **more: str) -> str:
    fields: list[dict[str, Any]] = [{"name": "id", "type": kind}]
    fields += [{"name": field, "type": "string", "default": default} for field, default in more.items()]
    return json.dumps({"type": "record", "name": name, "fields": fields})


# Refusals at start

Shape = Callable[[DataFrame], DataFrame]
REFUSED: dict[str, Shape] = {
    "without-poison": lambda decoded: decoded.select("value"),
    "filtered": lambda decoded: decoded.where("record.id > 3").select("value", "poison"),
    "exploded": lambda decoded: decoded.select(F.explode("headers"), "value", "poison").select("value", "poison"),
    "not-kept": lambda decoded: decoded.where(F.col("poison").isNull()).select("value", "poison"),
    "deduplicated": lambda decoded: decoded.dropDuplicates(["key"]).select("value", "poison"),
}
ALLOWED: dict[str, Shape] = {
    "kept": lambda d: d.where(F.col("poison").isNotNull() | (F.col("record.id") > 3)).select("value", "poison"),
    "repartitioned": lambda d: d.repartition(2, "key").withColumn("x", F.lit(1)).select("poison", "value"),
    "united": lambda d: d.where("record.id > 3").union(d.where(F.col("poison").isNotNull())).select("value", "poison"),
}


@pytest.mark.parametrize("shape", [*REFUSED, *ALLOWED])
def test_poison_records_may_not_get_lost(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, shape: str
) -> None:
    source, out, dead = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "dead")
    records, _ = numbered(20, 2)
    produce(kafka, source, records)

    def job(ctx: JobContext) -> None:
        decoded = ctx.decode(ctx.source(source), Json(), schema="id long", on_poison="dead-letter", dead_letters=dead)
        ctx.sink({**REFUSED, **ALLOWED}[shape](decoded), topic=out, name="out")

    if shape in REFUSED:
        with pytest.raises(SpecError, match="No sink gets all poison records") as refused:
            run_job(job, name)
        assert "isNotNull" in refused.value.hint
        assert (shape in {"filtered", "not-kept"}) == ("Filter may lose" in refused.value.what)
    else:
        run_job(job, name)
        assert letters(kafka, dead) == Counter(v or b"" for _, v in records if (v or b"").startswith(BAD))
        assert len(read_committed(kafka, out)) == (16 if shape == "repartitioned" else 13)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "policy": ({"on_poison": "ignore"}, SpecError, "on_poison='ignore'"),
    "no-topic": ({"on_poison": "dead-letter"}, SpecError, "belong together"),
    "topic-for-nothing": ({"dead_letters": "x"}, SpecError, "belong together"),
    "unknown-topic": ({"on_poison": "dead-letter", "dead_letters": "nowhere"}, TopicMissing, "'nowhere'"),
    "no-schema": ({"schema": None}, SpecError, "JSON records need a schema"),
    "no-struct": ({"schema": "long"}, SpecError, "is not a struct"),
    "column": ({"column": "text"}, SpecError, "columns \\['text'\\]"),
    "taken": ({"into": "value"}, SpecError, "'value' already"),
    "subject": ({"format": Avro(subject="nobody-wrote-this")}, SpecError, "not in the registry"),
    "registry": ({"format": Avro(registry="http://127.0.0.1:1", subject="x")}, RegistryUnavailable, "did not answer"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_decode_refuses(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, wrong: str) -> None:
    source = make_topic(1, "in")
    changes, error, says = WRONG[wrong]
    arguments: dict[str, Any] = {"format": Json(), "schema": "id long", **changes}

    def job(ctx: JobContext) -> None:
        ctx.decode(ctx.source(source), arguments.pop("format"), **arguments)

    with pytest.raises(error, match=says):
        run_job(job, name)


def test_wrong_registry_credentials_are_reported(
    run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLONOS_REGISTRY__PASSWORD", "guess")
    other = registry.url.replace(
        "127.0.0.1", "localhost"
    )  # a different URL, so that the client of the other tests is not reused
    source = make_topic(1, "in")

    def job(ctx: JobContext) -> None:
        ctx.decode(ctx.source(source), Avro(registry=other, subject="x"))

    with pytest.raises(RegistryRefused, match="answered 401") as refused:
        run_job(job, name)
    assert "PASSWORD" in refused.value.hint


# A registry that fails


@pytest.mark.turn
@pytest.mark.ci
def test_a_registry_down_during_an_epoch(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry, tmp_path: Path
) -> None:
    """The records do not count as poison: the driver waits, and the replay publishes each record once."""
    source, out, dead = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "dead")
    (tmp_path / "flag").touch()
    number = registry.register(f"{name}-value", record_schema(name))
    produce(kafka, source, [(n % 2, header(number) + bytes([2 * n])) for n in range(20)])
    registry.down = 7
    run_job(poison_job(source, out, dead, tmp_path / "flag", fmt=Avro()), name, restart_policy={"attempts": 0})
    waits = run_job.events_of("waiting")
    assert {event["error"] for event in waits} == {"registry-unavailable"}
    assert "answered 503" in waits[0]["what"]
    assert ids(kafka, out) == list(range(20))
    assert read_committed(kafka, dead) == []


@pytest.mark.parametrize("point", ["plan-committed", "epoch-committed"])
def test_the_latest_version_is_pinned_while_an_epoch_is_in_doubt(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    registry: StubRegistry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    point: str,
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    subject = f"{name}-value"
    number = registry.register(subject, record_schema(name, colour="grey"))

    def job(ctx: JobContext) -> None:
        records = ctx.decode(ctx.source(source), Avro(subject=subject))
        ctx.sink(records.select(F.to_json("record").alias("value")), topic=out, name="out")

    def feed(ids: range) -> None:
        produce(kafka, source, [(n % 2, header(number) + bytes([2 * n, 8]) + b"blue") for n in ids])

    feed(range(10))
    monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / "faults"))
    monkeypatch.setattr(faults, "_FAULTS", faults.parse(f"{point}:raise"))
    with pytest.raises(RestartsExhausted):
        run_job(job, name, restart_policy={"attempts": 0})
    registry.register(subject, record_schema(name, shape="round"))
    run_job(job, name)
    assert run_job.events_of("pinned"), "the job was defined again with the plan's schema"
    feed(range(10, 20))
    run_job(job, name)
    by_id = {row["id"]: row for row in (json.loads(r.value() or b"") for r in read_committed(kafka, out))}
    assert by_id == {n: {"id": n, "colour": "blue"} if n < 10 else {"id": n, "shape": "round"} for n in range(20)}


def test_tasks_register_nothing(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    produce(kafka, source, [(n % 2, b'{"id":1}') for n in range(4)])
    before = len(registry.requests)

    def job(ctx: JobContext) -> None:
        records = ctx.decode(ctx.source(source), Json(), schema="id long")
        value = ctx.encode("record", Avro(avsc=record_schema(name)), subject=f"{name}-value")
        ctx.sink(records.select(value.alias("value")), topic=out, name="out")

    run_job(job, name)
    assert len(read_committed(kafka, out)) == 4
    asked = registry.requests[before:]
    assert [request.partition("?")[0] for request in asked if request.startswith("POST")] == [
        f"POST /subjects/{name}-value/versions",
        f"POST /subjects/{name}-value",
    ]


def test_a_row_that_does_not_fit_the_schema(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, registry: StubRegistry
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    produce(kafka, source, [(0, b"{}")])

    def job(ctx: JobContext) -> None:
        records = ctx.decode(ctx.source(source), Json(), schema="id long")
        value = ctx.encode("record", Avro(avsc=record_schema(name)), subject=f"{name}-value")
        ctx.sink(records.select(value.alias("value")), topic=out, name="out")

    with pytest.raises(JobCodeError, match="cannot be encoded"):
        run_job(job, name)
    assert run_job.events_of("restart") == []


DOCS = Path(__file__).parents[3] / "docs" / "formats.md"


@pytest.mark.ci
def test_the_examples_in_the_docs_run(
    kafka: KafkaSettings, run_job: Any, name: str, registry: StubRegistry, tmp_path: Path
) -> None:
    admin = AdminClient(client_config(kafka))
    topics = ("orders", "orders.clean", "orders.dead", "totals")
    for created in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        created.result(60)
    orders = [b'{"id":1,"amount":12.5,"at":"2026-11-21T10:00:00Z"}', b'{"id":2,"amount":1}', b'{"amount":99}', b"{"]
    produce(kafka, "orders", [(0, value) for value in orders])
    first, second = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    for number, text in enumerate((first, second)):
        (tmp_path / f"job{number}.py").write_text(text)
        job = load_job(tmp_path / f"job{number}.py")
        run_job(job.function, f"{name}-{number}", checkpoint=f"checkpoint{number}")
    assert [record.value() for record in read_committed(kafka, "orders.clean")] == [b'{"id":1,"amount":"12.50"}']
    assert sum(letters(kafka, "orders.dead").values()) == 2
    assert [(record.value() or b"")[5:] for record in read_committed(kafka, "totals")] == [
        b"\x02" + struct.pack("<d", 12.5),
        b"\x04" + struct.pack("<d", 1.0),
    ]
