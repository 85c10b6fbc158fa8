"""The table ``clonos_lanes``, with one row for each lane: its newest epoch, and the fence of older owners."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Row, String, Table, inspect, select
from sqlalchemy import Connection as Session
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable

from clonos.errors import Superseded, TargetRefused
from clonos.extend.lanes import log_id
from clonos.extend.sink import SinkEpoch
from clonos.log.records import EpochIdentity
from clonos_sinks.sql.databases import Database
from clonos_sinks.sql.failures import Kind, kind_of, typed

NAME: Final = "clonos_lanes"


class LaneTable:
    """The rows of one sink's lanes.

    Args:
        database: The database.
        schema: The schema of the sink's table; None: the default one.
    """

    def __init__(self, database: Database, schema: str | None) -> None:
        self.database = database
        self.table = Table(
            NAME,
            MetaData(schema=schema),
            Column("job", String(100), primary_key=True),
            Column("log", String(8), primary_key=True),  # by Kafka's id of the topic: a new log begins at epoch 0 again
            Column("query", String(100), primary_key=True),
            Column("lane", Integer, primary_key=True, autoincrement=False),
            Column("generation", BigInteger, nullable=False),  # an owner of an older generation writes nothing
            Column("owner", String(60), nullable=False),  # the next columns: which epoch is published, and by whom
            Column("lineage", BigInteger, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("records", BigInteger, nullable=False),
            Column("digest", LargeBinary, nullable=False),
        )

    @property
    def quoted(self) -> str:
        """The table's name in statements."""
        return self.database.engine.dialect.identifier_preparer.format_table(self.table)

    def check(self, session: Session) -> None:
        """Create the table if it is missing.

        Raises:
            TargetRefused: The user may not create it, or lacks a privilege on it. The hint has the DDL.
        """
        missing = not inspect(session).has_table(NAME, self.table.schema)
        try:
            if missing:
                session.execute(CreateTable(self.table, if_not_exists=True))
            lacking = self.database.missing_privileges(session, self.quoted, ("SELECT", "INSERT", "UPDATE"))
        except DBAPIError as error:
            if kind_of(error) is not Kind.REFUSED:
                raise
            ddl = " ".join(str(CreateTable(self.table).compile(session.engine)).split())
            raise typed(error, f"The table {NAME} cannot be created", hint=f"create it: {ddl};") from error
        if lacking:
            raise TargetRefused(
                f"The user of the database has no {', '.join(lacking)} on the table {NAME}.",
                hint=f"GRANT {', '.join(lacking)} ON {self.quoted} TO {session.engine.url.username};",
            )

    def lock(self, session: Session, epoch: SinkEpoch, lanes: Sequence[int]) -> dict[int, Row[Any]]:
        """Lock the rows of lanes in a transaction, and return them by number.

        Raises:
            Superseded: An owner of a newer generation has locked one before.
            DBAPIError: Another transaction holds one.
        """
        locked = self._locked(session, epoch, lanes)
        if missing := sorted(set(lanes) - locked.keys()):
            self._create(epoch, missing, session)
            locked |= self._locked(session, epoch, missing)
        for row in locked.values():
            if row.generation > epoch.identity.owner.generation:
                raise Superseded(
                    f"Lane {row.lane} of {epoch.identity.query} is owned by generation {row.generation}, "
                    f"and this driver is {epoch.identity.owner}."
                )
        return locked

    def _locked(self, session: Session, epoch: SinkEpoch, lanes: Sequence[int]) -> dict[int, Row[Any]]:
        rows = select(self.table).where(*self._of(epoch), self.table.c.lane.in_(lanes)).order_by(self.table.c.lane)
        return {row.lane: row for row in session.execute(rows.with_for_update(nowait=True))}

    def _create(self, epoch: SinkEpoch, lanes: Sequence[int], session: Session) -> None:
        # A statement of its own, which no suspended process keeps open: others would wait for a row unseen.
        fresh = {"generation": 0, "owner": "", "lineage": 0, "epoch": -1, "records": 0, "digest": b""}
        for lane in lanes:
            with suppress(IntegrityError), self.database.single(session) as single:  # another owner may create it too
                single.execute(self.table.insert(), {**_key(epoch), "lane": lane, **fresh})

    def fence(self, session: Session, epoch: SinkEpoch, lanes: Sequence[int]) -> None:
        """Let no older owner write the lanes that this transaction has locked."""
        changed = self.table.update().where(*self._of(epoch), self.table.c.lane.in_(lanes))
        session.execute(changed.values(generation=epoch.identity.owner.generation))

    def mark(self, session: Session, epoch: SinkEpoch, lane: int, records: int, digest: bytes) -> None:
        """Note that the transaction publishes a lane of an epoch."""
        identity = epoch.identity
        changed = self.table.update().where(*self._of(epoch), self.table.c.lane == lane)
        owner = identity.owner
        session.execute(
            changed.values(
                generation=owner.generation,
                owner=str(owner),
                lineage=owner.lineage,
                epoch=identity.epoch,
                records=records,
                digest=digest,
            )
        )

    def end_holders(self, epoch: SinkEpoch, lanes: Sequence[int]) -> None:
        """End the transactions of superseded owners that hold rows of lanes; this driver must be the owner."""
        for lane in lanes:
            self.database.end_holders(self.quoted, {**_key(epoch), "lane": lane})

    def _of(self, epoch: SinkEpoch) -> list[Any]:
        return [self.table.c[name] == value for name, value in _key(epoch).items()]


def holds(row: Row[Any], identity: EpochIdentity) -> bool:
    """Whether a lane's row says that the lane of this epoch is published."""
    return bool(row.lineage == identity.owner.lineage and row.epoch >= identity.epoch)


def _key(epoch: SinkEpoch) -> dict[str, Any]:
    return {"job": epoch.identity.job, "log": log_id(epoch), "query": epoch.identity.query}
