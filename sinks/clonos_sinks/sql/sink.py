"""A table of a database, by upserts or inserts, exactly once without two-phase commit (`docs/adr/0063-sql-sink.md`).

A replay computes an epoch again, so one ordinary transaction for each lane is enough:

1. Read all rows, without a transaction.
2. Check that this driver owns the lane's log partition, otherwise `Superseded`.
3. Lock the lane's row of ``clonos_lanes``. A newer generation in it: `Superseded`. This epoch or a later one in it: the
   lane is published, compare the rows (*replay audit*).
4. Write the rows, and the epoch with its digest into the lane's row. Commit.

A replay begins by writing its generation into the rows of all lanes: later, an older owner writes nothing. An owner
that is suspended inside its transaction holds the lane's row; PostgreSQL ends its session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType
from sqlalchemy import Connection as Session
from sqlalchemy.exc import DBAPIError

from clonos.causal.outages import pause
from clonos.deadline import Deadline
from clonos.errors import RecordRejected, SpecError
from clonos.extend.lanes import MultisetDigest, at_point, digest_of, require_job, require_owner
from clonos.extend.sink import DeliveryMode, LaneReport, OutputMode, SinkEpoch, SinkLane
from clonos.jobs.spec import Connection
from clonos.settings import KafkaSettings
from clonos_sinks.sql.databases import Database, Statements, database_of
from clonos_sinks.sql.failures import Kind, kind_of, said, typed
from clonos_sinks.sql.lane_table import LaneTable, holds
from clonos_sinks.sql.rows import last_of_each_key
from clonos_sinks.sql.table import WRITABLE, Target, base_name

_PATIENCE_S: Final = 10.0  # for outages, locks and deadlocks; then the driver waits or replays the epoch
_DELETES: Final = "clonos deletes"
_NESTED: Final = (StructType, ArrayType, MapType, VariantType)
_T = TypeVar("_T")


class SqlSink:
    """Writes rows to a table of PostgreSQL or SQLite. With a key, a row replaces the one with an equal key.

    Args:
        name: Stable name of the sink and of its query.
        connection: The database. ``ctx.sink`` takes the name of one in ``connections`` of the specification.
        table: The table, optionally with its schema before a dot. Columns of rows have the names of the table's.
        key: Columns with a primary key or unique index, for upserts. Empty: rows are inserted.
        delete_when: SQL condition of rows that delete the row with their key. Columns that only it names are not
            written.
        version: Column of the table: a row replaces, or deletes, only one with a smaller version.
        output_mode: Spark's output mode.
        delivery: ``exactly-once``.

    Raises:
        SpecError: An argument does not fit another one.

    Example::

        ctx.sink(totals, connector="sql", connection="crm", table="totals", key=["customer"], mode="update")
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        table: str,
        key: Sequence[str] = (),
        delete_when: str | None = None,
        version: str | None = None,
        output_mode: OutputMode = "append",
        delivery: DeliveryMode = "exactly-once",
    ) -> None:
        if delivery != "exactly-once":
            raise SpecError(f"The sql sink has no {delivery} delivery.", hint="remove delivery= for this sink.")
        if isinstance(key, str):
            raise SpecError(f"key={key!r} is not a list.", hint=f"write key=[{key!r}].")
        if not key and (delete_when is not None or version is not None):
            raise SpecError("delete_when= and version= need a key.", hint="add key=[…].")
        self.name = name
        self.connection = connection
        self.table = table
        self.key = list(key)
        self.delete_when = delete_when
        self.version = version
        self.output_mode = output_mode
        self.delivery = delivery
        self._rows: dict[str, DataType] | None = None  # the columns of the frame
        self._types: dict[str, str] = {}

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse rows without the key, and columns that no database takes."""
        used = [*self.key, *([self.version] if self.version is not None else [])]
        if missing := [name for name in used if name not in frame.columns]:
            raise SpecError(f"The rows of the sink {self.name!r} have no column {', '.join(missing)}.")
        for field in frame.schema:
            if base_name(field.dataType) not in WRITABLE or (
                field.name in used and isinstance(field.dataType, _NESTED)
            ):
                raise SpecError(
                    f"The sink {self.name!r} cannot write the column {field.name}: {field.dataType.simpleString()}.",
                    hint="cast it to a string, a number or a time.",
                )
        self._rows = {field.name: field.dataType for field in frame.schema}

    def check(self, kafka: KafkaSettings) -> None:
        """Fail at start if the table does not fit, or the user may not write it; create ``clonos_lanes``.

        Raises:
            TargetUnfit: The table is missing or does not fit. The hint has the DDL.
            TargetRefused: The database refuses the login, or the user lacks a privilege.
            TargetUnavailable: The database does not answer.
        """
        try:
            with self._database.engine.begin() as session:
                self._types = self._target.check(session, self._rows, self._optional)
            with self._database.engine.begin() as session:
                self._lanes.check(session)
        except DBAPIError as error:
            raise typed(error, f"The sink {self.name!r} cannot write to the table {self.table}") from error

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the columns of the table, nested ones as JSON, and whether a row deletes."""
        columns = [
            F.to_json(field.name).alias(field.name) if isinstance(field.dataType, _NESTED) else F.col(f"`{field.name}`")
            for field in frame.schema
            if field.name in self._types or field.name not in self._optional
        ]
        if self.delete_when is not None:
            columns.append(F.coalesce(F.expr(self.delete_when), F.lit(False)).alias(_DELETES))
        return frame.select(columns)

    def published(self, epoch: SinkEpoch) -> set[int]:
        """Let no older owner write any more, and return the lanes of an epoch that are published."""
        numbers = [lane.number for lane in epoch.lanes]

        def fence(_attempt: int) -> set[int]:
            with self._database.engine.begin() as session:
                locked = self._lanes.lock(session, epoch, numbers)
                self._lanes.fence(session, epoch, numbers)
            return {number for number, row in locked.items() if holds(row, epoch.identity)}

        return self._retried(epoch, numbers, fence, lambda: require_job(epoch)) if numbers else set()

    def write_lane(self, epoch: SinkEpoch, lane: SinkLane, batches: Iterator[pa.RecordBatch]) -> LaneReport:
        """Publish a lane in one transaction; compare its rows if it is published."""
        at_point("lane-begun", epoch, lane)
        held = [batch for batch in batches if batch.num_rows]  # step 1
        digest = digest_of(held)
        at_point("state-committed", epoch, lane)
        if not held and not epoch.identity.replay:
            return LaneReport(lane.number, "empty", 0, b"")
        rows = self._distinct(pa.Table.from_batches(held), epoch, lane) if held else None

        def require() -> None:
            require_owner(epoch, lane, reread=True)

        def publish(attempt: int) -> LaneReport:
            return self._publish(epoch, lane, rows, digest, again=attempt > 0)

        if not epoch.committed:
            require_owner(epoch, lane)  # step 2
        at_point("lane-decided", epoch, lane)
        try:
            return self._retried(epoch, [lane.number], publish, require)
        except _Rejected as rejected:
            raise self._rejected(epoch, lane, rows, rejected.error) from rejected.error

    def _publish(
        self, epoch: SinkEpoch, lane: SinkLane, rows: pa.Table | None, digest: MultisetDigest, *, again: bool
    ) -> LaneReport:
        number, computed = lane.number, (digest.records, digest.value())
        with self._database.engine.begin() as session:
            row = self._lanes.lock(session, epoch, [number])[number]  # step 3
            if holds(row, epoch.identity):
                if row.epoch > epoch.identity.epoch:
                    return LaneReport(number, "skipped", *computed)
                if again and row.owner == str(epoch.identity.owner):  # the answer to the commit was lost
                    return LaneReport(number, "published", *computed)
                same = (row.records, row.digest) == computed
                return LaneReport(number, "audited", *computed, diverged=not same)
            if rows is None:
                return LaneReport(number, "empty", 0, b"")
            if epoch.committed:
                return LaneReport(number, "skipped", *computed)
            self._apply(session, rows)  # step 4
            at_point("lane-produced", epoch, lane)
            self._lanes.mark(session, epoch, number, *computed)
            at_point("lane-marked", epoch, lane)
        at_point("lane-committed", epoch, lane)
        return LaneReport(number, "published", *computed)

    def _apply(self, session: Session, rows: pa.Table) -> None:
        database = self._database
        statements = Statements(database.engine, self._target.quoted, self._types, self.key, self.version)
        if _DELETES in rows.column_names:
            deletes = rows[_DELETES]
            if (gone := rows.filter(deletes)).num_rows:
                database.delete(session, statements, gone)
            rows = rows.filter(pc.invert(deletes)).drop_columns([_DELETES])
        if rows.num_rows:
            database.write(session, statements, rows)

    def _retried(
        self, epoch: SinkEpoch, lanes: list[int], work: Callable[[int], _T], require: Callable[[], None]
    ) -> _T:
        """Do `work`, again after errors that may pass, as long as this driver is the owner."""
        deadline, attempt = Deadline(_PATIENCE_S), 0
        while True:
            try:
                return work(attempt)
            except DBAPIError as error:
                kind = kind_of(error)
                if kind is Kind.REJECTED:
                    raise _Rejected(error) from error
                if kind not in (Kind.AWAY, Kind.LOCKED, Kind.AGAIN) or deadline.passed():
                    subject = f"The sink {self.name!r} did not write epoch {epoch.identity.epoch} to {self.table}"
                    raise typed(error, subject) from error
            require()
            if kind is Kind.LOCKED:
                with suppress(DBAPIError):  # without the privilege, the server ends an idle transaction after 60 s
                    self._lanes.end_holders(epoch, lanes)
            pause(attempt)
            attempt += 1

    def _distinct(self, rows: pa.Table, epoch: SinkEpoch, lane: SinkLane) -> pa.Table:
        """Return the row of each key that stays; refuse nulls in the key and in the version."""
        if not self.key:
            return rows
        for name in (*self.key, *([self.version] if self.version is not None else [])):
            if rows[name].null_count:
                position = pc.index(pc.is_null(rows[name]), value=True).as_py()
                raise self._refused(epoch, lane, rows, position, f"the column {name} is null")
        return last_of_each_key(rows, self.key, self.version)

    def _rejected(self, epoch: SinkEpoch, lane: SinkLane, rows: pa.Table | None, error: DBAPIError) -> RecordRejected:
        """Return the error that names the first row which the database rejects."""
        position = None
        with suppress(DBAPIError):
            if rows is not None and self._rejects(rows):
                low, high = 0, rows.num_rows  # it takes the first `low` rows and rejects the first `high`
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (low, middle) if self._rejects(rows.slice(0, middle)) else (middle, high)
                position = high - 1
        return self._refused(epoch, lane, rows, position, f"the database reports {said(error)!r}")

    def _rejects(self, rows: pa.Table) -> bool:
        """Whether the database rejects these rows; the transaction is rolled back."""
        try:
            with self._database.engine.connect() as session:
                self._apply(session, rows)
        except DBAPIError as error:
            if kind_of(error) is Kind.REJECTED:
                return True
            raise
        return False

    def _refused(
        self, epoch: SinkEpoch, lane: SinkLane, rows: pa.Table | None, position: int | None, why: str
    ) -> RecordRejected:
        where = ""
        if rows is not None and position is not None:
            shown = [f"{name}={rows[name][position].as_py()!r}" for name in self.key if rows[name][position].is_valid]
            where = f" ({', '.join(shown) or f'row {position + 1} of its lane'})"
        part = lane.input_slice
        origin = f", read from {part.topic}[{part.partition}] {part.start}-{part.until}" if part.kind == "range" else ""
        return RecordRejected(
            f"The table {self.table} cannot take a row{where} of epoch {epoch.identity.epoch} of {self.name}{origin}: "
            f"{why}.",
            kept="no row of its lane was written; the epoch is replayed when the job runs again.",
            hint="let the job convert or leave out such rows, or change the table.",
        )

    @property
    def _optional(self) -> frozenset[str]:
        """The columns that only `delete_when` may use."""
        return frozenset(re.findall(r"\w+", self.delete_when or "")) - {*self.key, self.version}

    @property
    def _database(self) -> Database:
        return database_of(self.connection)

    @property
    def _target(self) -> Target:
        return Target(self._database, self.table, self.key)

    @property
    def _lanes(self) -> LaneTable:
        return LaneTable(self._database, self._target.schema)


class _Rejected(Exception):
    """The database rejected a row."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(str(error))
        self.error = error
