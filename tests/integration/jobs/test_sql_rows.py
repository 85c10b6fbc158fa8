"""What the sink for databases writes, refuses and waits for: single lanes on SQLite and PostgreSQL, without Spark."""

from __future__ import annotations

import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from sqlalchemy import text

from clonos.errors import (
    ClonosError,
    RecordRejected,
    SpecError,
    Superseded,
    TargetRefused,
    TargetUnavailable,
    TargetUnfit,
)
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.jobs.context import find_connector
from clonos.jobs.spec import Connection
from clonos.log.records import EpochIdentity, InputSlice, Owner
from clonos.settings import KafkaSettings
from clonos_sinks.sql import SqlSink, lane_table, sink
from clonos_sinks.sql.databases import database_of
from support.postgres import PostgresServer

NO_KAFKA = KafkaSettings()
SHORT_LOCKS = "options=-c%20lock_timeout%3D200ms"


@pytest.fixture(autouse=True)
def owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each driver owns the job: the rows of `clonos_lanes` alone fence."""
    monkeypatch.setattr(sink, "require_owner", lambda *_args, **_options: None)
    monkeypatch.setattr(sink, "require_job", lambda _epoch: None)
    monkeypatch.setattr(lane_table, "log_id", lambda _epoch: "0f3a0f3a")


@dataclass
class Base:
    """One database."""

    connection: Connection

    def run(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        with database_of(self.connection).engine.begin() as session:
            result = session.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def sink(self, table: str = "t", *, checked: bool = True, **options: Any) -> SqlSink:
        sink = SqlSink("out", connection=self.connection, table=table, **options)
        if checked:
            sink.check(NO_KAFKA)
        return pickle.loads(pickle.dumps(sink))


@pytest.fixture
def sqlite(tmp_path: Path) -> Base:
    return Base(Connection(url=f"sqlite:///{tmp_path}/out.db"))


@pytest.fixture
def pg(postgres: PostgresServer, name: str) -> Base:
    return Base(Connection(url=postgres.create_database(name).replace("+psycopg", "")))


@pytest.fixture(params=["sqlite", "pg"])
def base(request: pytest.FixtureRequest) -> Base:
    found: Base = request.getfixturevalue(request.param)
    return found


def epoch(number: int = 0, generation: int = 1, *, replay: bool = False, lineage: int = 1, lanes: int = 1) -> SinkEpoch:
    identity = EpochIdentity("job", "log", "out", number, Owner(lineage, generation, f"c{generation}"), replay)
    parts = (SinkLane(lane, lane, InputSlice("range", "in", lane, 0, 9), lane + 1) for lane in range(lanes))
    return SinkEpoch(identity, NO_KAFKA, tuple(parts))


def write(sink: SqlSink, at: SinkEpoch, rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> LaneReport:
    table = pa.Table.from_pylist(list(rows), schema)
    return sink.write_lane(at, at.lanes[0], iter(table.to_batches(max_chunksize=2)))


def schema_of(**types: Any) -> Any:
    """A DataFrame, as far as `check_frame` looks at it."""
    schema = StructType([StructField(name, kind) for name, kind in types.items()])
    return SimpleNamespace(columns=list(types), schema=schema)


def test_the_last_row_of_a_key_stays(base: Base) -> None:
    base.run('CREATE TABLE t (id VARCHAR(9) PRIMARY KEY, "the total" BIGINT, note TEXT)')
    out = base.sink(key=["id"])
    first = [{"id": "a", "the total": 1, "note": None}, {"id": "b", "the total": 2, "note": ""}]
    assert write(out, epoch(0), first).records == 2
    again = [{"id": "a", "the total": 3, "note": "x"}, {"id": "a", "the total": 4, "note": "100%\n'\"\\,{}"}]
    report = write(out, epoch(1), again)
    assert (report.outcome, report.records) == ("published", 2)
    assert base.run("SELECT * FROM t ORDER BY id") == [("a", 4, "100%\n'\"\\,{}"), ("b", 2, "")]


def test_only_newer_versions_replace_and_delete(base: Base) -> None:
    base.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v BIGINT, name TEXT)")
    out = base.sink(key=["id"], version="v", delete_when="op = 'd'")

    def row(key: int, v: int, name: str, *, deletes: bool = False) -> dict[str, Any]:
        return {"id": key, "v": v, "name": name, sink._DELETES: deletes}

    write(out, epoch(0), [row(1, 5, "five"), row(1, 7, "seven"), row(1, 6, "six"), row(2, 1, "one"), row(3, 1, "x")])
    assert base.run("SELECT * FROM t ORDER BY id") == [(1, 7, "seven"), (2, 1, "one"), (3, 1, "x")]
    write(out, epoch(1), [row(1, 6, "late"), row(2, 1, "equal"), row(3, 0, "", deletes=True)])
    assert base.run("SELECT * FROM t ORDER BY id") == [(1, 7, "seven"), (2, 1, "one"), (3, 1, "x")]
    write(out, epoch(2), [row(1, 8, "", deletes=True), row(2, 2, "two"), row(3, 2, "", deletes=True)])
    assert base.run("SELECT * FROM t ORDER BY id") == [(2, 2, "two")]


def test_all_types(pg: Base) -> None:
    columns = (
        "b BOOLEAN, i SMALLINT, l BIGINT, f DOUBLE PRECISION, d NUMERIC(12, 2), day DATE, at TIMESTAMPTZ, raw BYTEA"
    )
    pg.run(f"CREATE TABLE t (id UUID PRIMARY KEY, {columns}, doc JSONB, word CHAR(4), tag VARCHAR(3))")
    at = datetime(2026, 2, 3, 4, 5, 6, 789, UTC)
    fields = {"id": pa.string(), "b": pa.bool_(), "i": pa.int16(), "l": pa.int64(), "f": pa.float64()}
    fields |= {"d": pa.decimal128(12, 2), "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "raw": pa.binary()}
    schema = pa.schema([*fields.items(), ("doc", pa.string()), ("word", pa.string()), ("tag", pa.string())])
    uid = "6f0e7a52-0000-4000-8000-00000000000a"
    row = {"id": uid, "b": True, "i": -3, "l": 2**62, "f": 0.1, "d": Decimal("12.30"), "day": date(2026, 1, 2)}
    row |= {"at": at, "raw": b"\0\xff", "doc": '{"a": [1]}', "word": "word", "tag": "tag"}
    out = pg.sink(key=["id"])
    write(out, epoch(0), [row, dict.fromkeys(row) | {"id": uid[:-1] + "b"}], schema)
    first, second = pg.run("SELECT * FROM t ORDER BY id")
    assert (str(first[0]), *first[1:9]) == (
        uid,
        True,
        -3,
        2**62,
        0.1,
        Decimal("12.30"),
        date(2026, 1, 2),
        at,
        b"\0\xff",
    )
    assert first[9:] == ({"a": [1]}, "word", "tag")
    assert set(second[1:]) == {None}


def test_a_lane_is_compared_and_not_written_again(base: Base) -> None:
    base.run("CREATE TABLE t (k TEXT)")
    out, rows = base.sink(), [{"k": "a"}, {"k": "b"}]
    write(out, epoch(3), rows)
    assert out.published(epoch(3, 2, replay=True, lanes=2)) == {0}
    replayed = write(out, epoch(3, 2, replay=True), rows[::-1])
    assert (replayed.outcome, replayed.records, replayed.diverged) == ("audited", 2, False)
    assert write(out, epoch(3, 2, replay=True), [{"k": "a"}]).diverged
    assert write(out, epoch(3, 2, replay=True), []).diverged
    assert write(out, epoch(2, 2, replay=True), rows).outcome == "skipped"
    assert base.run("SELECT count(*) FROM t") == [(2,)]


def test_an_older_owner_writes_nothing_once_a_replay_has_begun(base: Base) -> None:
    base.run("CREATE TABLE t (k TEXT)")
    out = base.sink()
    assert out.published(epoch(0, 2, replay=True)) == set()
    with pytest.raises(Superseded, match="generation 2"):
        write(out, epoch(0, 1), [{"k": "a"}])
    with pytest.raises(Superseded, match="generation 2"):
        out.published(epoch(0, 1, replay=True))
    assert base.run("SELECT * FROM t") == []


def test_an_owner_that_the_log_has_superseded_writes_nothing(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor has only claimed the log, and not yet asked the database."""
    base.run("CREATE TABLE t (k TEXT)")
    out = base.sink()

    def superseded(*_args: object, **_options: object) -> None:
        raise Superseded("a newer owner")

    monkeypatch.setattr(sink, "require_owner", superseded)
    with pytest.raises(Superseded):
        write(out, epoch(0), [{"k": "a"}])
    assert base.run("SELECT * FROM t") == []


def test_a_lost_answer_to_the_commit(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed, and the connection breaks before the answer arrives."""
    base.run("CREATE TABLE t (k TEXT)")
    out, lost = base.sink(), []
    dialect: Any = database_of(base.connection).engine.dialect
    commit = dialect.do_commit

    def lose_the_answer(connection: Any) -> None:
        commit(connection)
        if not lost:
            lost.append(True)
            connection.dbapi_connection.close()
            raise dialect.dbapi.OperationalError("the connection was lost")

    write(out, epoch(0), [{"k": "before"}])
    monkeypatch.setattr(dialect, "do_commit", lose_the_answer)
    report = write(out, epoch(1), [{"k": "a"}])
    assert lost
    assert (report.outcome, report.records) == ("published", 1)
    assert base.run("SELECT * FROM t") == [("before",), ("a",)]


def test_a_deadlock_is_tried_again(pg: Base) -> None:
    pg.run("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
    out = pg.sink(key=["id"])
    write(out, epoch(0), [{"id": 1, "n": 0}, {"id": 2, "n": 0}])
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(pg.connection.url) as other:
        other.execute("SET deadlock_timeout = '1min'")  # the sink is the one that is chosen
        other.execute("UPDATE t SET n = 9 WHERE id = 2")
        writer = threading.Thread(target=write, args=(out, epoch(1), [{"id": 1, "n": 1}, {"id": 2, "n": 1}]))
        writer.start()
        while not pg.run(waits)[0][0]:
            assert writer.is_alive()
        other.execute("UPDATE t SET n = 9 WHERE id = 1")
    writer.join(30)
    assert pg.run("SELECT * FROM t ORDER BY id") == [(1, 1), (2, 1)]


def test_a_locked_table_is_waited_for(pg: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.run("CREATE TABLE t (k TEXT)")
    url = pg.connection.url
    out = Base(Connection(url=f"{url}?{SHORT_LOCKS}")).sink()
    monkeypatch.setattr(sink, "_PATIENCE_S", 1.0)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE t")
        with pytest.raises(TargetUnavailable, match="lock timeout"):
            write(out, epoch(0), [{"k": "a"}])
    assert write(out, epoch(0), [{"k": "a"}]).outcome == "published"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"name": None}, "null|NULL"),
        ({"name": "other", "email": "x@x"}, "unique|UNIQUE"),
        ({"amount": -1}, "check constraint|CHECK"),
    ],
    ids=["null", "unique", "check"],
)
def test_a_row_that_a_constraint_refuses(base: Base, row: dict[str, Any], why: str) -> None:
    columns = "id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT UNIQUE, amount BIGINT CHECK (amount >= 0)"
    base.run(f"CREATE TABLE t ({columns})")
    base.run("INSERT INTO t VALUES (0, 'there', 'x@x', 0)")
    out = base.sink(key=["id"])
    good = [{"id": number, "name": "n", "email": f"{number}@x", "amount": 1} for number in range(1, 30)]
    bad = {"id": 77, "name": "n", "email": None, "amount": 1} | row
    with pytest.raises(RecordRejected, match=why) as refused:
        write(out, epoch(0), [*good[:13], bad, *good[13:]])
    assert "id=77" in refused.value.what
    assert "in[0] 0-9" in refused.value.what
    assert "x@x" not in refused.value.what, "the database's details hold values"
    assert base.run("SELECT count(*) FROM t") == [(1,)]
    assert write(out, epoch(0, 2, replay=True), good).outcome == "published"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"tag": "long"}, "too long"),
        ({"d": Decimal("1000")}, "overflow"),
        ({"small": 40_000}, "out of range"),
        ({"tag": "a\0"}, "NUL"),
    ],
    ids=["text", "decimal", "integer", "zero byte"],
)
def test_a_value_that_a_column_cannot_hold(pg: Base, row: dict[str, Any], why: str) -> None:
    pg.run("CREATE TABLE t (tag VARCHAR(3), d NUMERIC(4, 2), small SMALLINT)")
    schema = pa.schema([("tag", pa.string()), ("d", pa.decimal128(12, 2)), ("small", pa.int64())])
    good = {"tag": "abc", "d": Decimal("1.5"), "small": 1}
    with pytest.raises(RecordRejected, match=why) as refused:
        write(pg.sink(), epoch(0), [good, good, good | row, good], schema)
    assert "row 3 of its lane" in refused.value.what
    assert pg.run("SELECT * FROM t") == []


def test_a_key_is_never_null(base: Base) -> None:
    base.run("CREATE TABLE t (id INTEGER UNIQUE, v INTEGER)")
    schema = pa.schema([("id", pa.int32()), ("v", pa.int32())])
    for options, row in (({}, {"id": None, "v": 1}), ({"version": "v"}, {"id": 1, "v": None})):
        with pytest.raises(RecordRejected, match="is null"):
            write(base.sink(key=["id"], **options), epoch(0), [row], schema)


# The checks at the start


def check(base: Base, frame: Any, **options: Any) -> SqlSink:
    out = base.sink(checked=False, **options)
    out.check_frame(frame)
    out.check(NO_KAFKA)
    return out


def test_a_table_that_the_printed_statements_make_fit(base: Base) -> None:
    frame = schema_of(id=StringType(), n=LongType(), tags=ArrayType(StringType()), op=StringType())
    with pytest.raises(TargetUnfit, match="does not exist") as missing:
        check(base, frame, key=["id"], delete_when="op = 'd'")
    base.run(ddl_of(missing.value))
    check(base, frame, key=["id"], delete_when="op = 'd'")
    frame = schema_of(id=StringType(), n=LongType(), more=DoubleType())
    with pytest.raises(TargetUnfit, match="no column more") as missing:
        check(base, frame, key=["id"])
    base.run(ddl_of(missing.value))
    check(base, frame, key=["id"])
    with pytest.raises(TargetUnfit, match="unique index on exactly n") as missing:
        check(base, frame, key=["n"])
    base.run(ddl_of(missing.value))
    check(base, frame, key=["n"])


def ddl_of(error: ClonosError) -> str:
    found = re.search(r"((CREATE|ALTER|GRANT) .*;)", error.hint)
    assert found, error.hint
    return found[1]


def test_tables_that_do_not_fit(pg: Base) -> None:
    pg.run("CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP, name TEXT NOT NULL, made TIMESTAMP DEFAULT now())")
    pg.run("CREATE UNIQUE INDEX part ON t (name) WHERE id > 3")
    name = StringType()
    with pytest.raises(TargetUnfit, match="column at of type TIMESTAMP, and the rows have string"):
        check(pg, schema_of(id=IntegerType(), at=StringType(), name=name), key=["id"])
    with pytest.raises(TargetUnfit, match="requires the column name"):
        check(pg, schema_of(id=IntegerType()), key=["id"])
    with pytest.raises(TargetUnfit, match="unique index on exactly name"):
        check(pg, schema_of(id=IntegerType(), name=name), key=["name"])
    check(pg, schema_of(id=IntegerType(), name=name, op=StringType()), key=["id"], delete_when="op = 'd'")
    with pytest.raises(SpecError, match="no column id"):
        check(pg, schema_of(name=name), key=["id"])
    with pytest.raises(SpecError, match="cannot write the column for"):
        check(pg, schema_of(id=IntegerType(), name=name, **{"for": DayTimeIntervalType()}), key=["id"])


def test_a_connector_whose_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("clonos_sinks.sql")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(SpecError, match="needs the package 'sqlalchemy'"):
        find_connector("clonos.sinks", "sql")


def test_arguments_that_do_not_fit(sqlite: Base) -> None:
    for options in ({"key": "id"}, {"version": "v"}, {"delete_when": "true"}, {"delivery": "at-least-once"}):
        with pytest.raises(SpecError):
            SqlSink("out", connection=sqlite.connection, table="t", **options)


@pytest.fixture
def restricted(pg: Base, postgres: PostgresServer) -> Iterator[Callable[..., Base]]:
    """The database for a user who needs a password, and has the privileges that a test grants."""
    user = f"u{postgres.port}"
    pg.run(f"CREATE ROLE {user} LOGIN PASSWORD 'right'")
    rules = Path(str(pg.run("SHOW hba_file")[0][0]))
    before = rules.read_text()
    rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{before}")
    pg.run("SELECT pg_reload_conf()")

    def login(password: str) -> Base:
        url = pg.connection.url.replace("clonos@", f"{user}@")
        return Base(Connection(url=url, password=password))

    yield login
    rules.write_text(before)
    pg.run("SELECT pg_reload_conf()")
    database_of(login("right").connection).engine.dispose()
    pg.run(f"DROP OWNED BY {user}")
    pg.run(f"DROP ROLE {user}")


def test_a_user_without_privileges(pg: Base, restricted: Callable[..., Base]) -> None:
    pg.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(TargetRefused, match="password authentication failed") as refused:
        restricted("wrong").sink()
    assert "wrong" not in str(refused.value)
    for missing in ("INSERT on the table t", "clonos_lanes cannot be created", "UPDATE on the table clonos_lanes"):
        with pytest.raises(TargetRefused, match=missing) as refused:
            restricted("right").sink()
        pg.run(ddl_of(refused.value))
    out = restricted("right").sink()
    assert write(out, epoch(0), [{"id": 1}]).outcome == "published"


def test_databases_that_are_not_there(pg: Base, postgres: PostgresServer, tmp_path: Path) -> None:
    for url in (pg.connection.url + "x", pg.connection.url.replace("clonos@", "nobody-else@")):
        with pytest.raises(TargetRefused, match="does not exist"):
            Base(Connection(url=url)).sink()
    with pytest.raises(TargetUnavailable):
        Base(Connection(url=f"sqlite:///{tmp_path}/no/folder.db")).sink()


def test_a_server_that_is_away_for_a_moment(
    pg: Base, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    out = pg.sink(key=["id"])
    write(out, epoch(0), [{"id": 0}])
    with postgres.away(postgres.crash):
        with pytest.raises(TargetUnavailable):
            out.check(NO_KAFKA)
        monkeypatch.setattr(sink, "_PATIENCE_S", 0.5)
        with pytest.raises(TargetUnavailable) as away:
            write(out, epoch(1), [{"id": 1}])
        assert away.value.outage
    assert write(out, epoch(1), [{"id": 1}]).outcome == "published"
    assert pg.run("SELECT * FROM t ORDER BY id") == [(0,), (1,)]


def test_a_suspended_session_is_ended_by_its_own_user_only(
    pg: Base, restricted: Callable[..., Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction holds the lane's row for ever: of the job's user, then of another one."""
    pg.run("CREATE TABLE t (id INTEGER)")
    user = restricted("right")
    pg.run("GRANT ALL ON SCHEMA public TO PUBLIC")
    pg.run("GRANT ALL ON t TO PUBLIC")
    out = user.sink()
    write(out, epoch(0), [{"id": 0}])
    held = "SELECT * FROM clonos_lanes FOR UPDATE"
    with psycopg.connect(user.connection.url, password="right") as zombie:
        zombie.execute(held)
        assert out.published(epoch(1, 2, replay=True)) == set()
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            zombie.execute("SELECT 1")
    monkeypatch.setattr(sink, "_PATIENCE_S", 0.3)
    with psycopg.connect(pg.connection.url) as other:
        other.execute(held)
        with pytest.raises(TargetUnavailable, match="could not obtain lock"):
            write(out, epoch(1, 2), [{"id": 1}])
    assert write(out, epoch(1, 2), [{"id": 1}]).outcome == "published"


def test_a_table_in_a_schema(pg: Base) -> None:
    pg.run('CREATE SCHEMA "The CRM"')
    pg.run('CREATE TABLE "The CRM"."The table" (id INTEGER PRIMARY KEY, "v %" INTEGER)')
    out = pg.sink("The CRM.The table", key=["id"], version="v %", delete_when="`v %` < 0")
    write(out, epoch(0), [{"id": 1, "v %": 1, sink._DELETES: False}, {"id": 2, "v %": 1, sink._DELETES: False}])
    write(out, epoch(1), [{"id": 1, "v %": 2, sink._DELETES: True}, {"id": 2, "v %": 2, sink._DELETES: False}])
    assert pg.run('SELECT * FROM "The CRM"."The table"') == [(2, 2)]
    assert pg.run('SELECT epoch, records FROM "The CRM".clonos_lanes') == [(1, 2)]
