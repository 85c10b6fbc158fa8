"""The tables. SQLite and PostgreSQL alike; times are UTC, set by the database where leases compare them.

Every row that several writers change has `token`: a write names the token that it read and adds one to it, so that of
two writers one gets `Fenced`. A write that changes what a job's owner would ask about adds an event and, if somebody
asked for it, an audit entry, in the same transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Utc(TypeDecorator[datetime]):
    """A time with its zone; SQLite keeps none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse times without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time needs its zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the zone that SQLite lost."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Sequence = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only in INTEGER
# SQLite would give the number of a row that was deleted to another one.
NEVER_AGAIN = {"sqlite_autoincrement": True}
Id = String(36)
Sha = String(64)


class Base(DeclarativeBase):
    """All tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar = {dict[str, Any]: Json, list[Any]: Json, datetime: Utc}


class ArtifactRow(Base):
    """Uploaded code; the bytes are here so that every replica and agent finds them."""

    __tablename__ = "artifacts"

    id: Mapped[str] = mapped_column(Sha, primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    name: Mapped[str] = mapped_column(String(255))
    size_bytes: Mapped[int]
    files: Mapped[int]
    main: Mapped[str | None] = mapped_column(String(255))
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class JobRow(Base):
    """A job; deleted ones stay, for their savepoints and history, until retention drops them."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(
            "uq_jobs_name_live",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index("ix_jobs_state_deadline", "state", "state_deadline"),
        Index("ix_jobs_created_at", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    name: Mapped[str] = mapped_column(String(100))
    labels: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    version: Mapped[int] = mapped_column(default=1)
    observed_version: Mapped[int] = mapped_column(default=0)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))
    desired_state: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    state_since: Mapped[datetime]
    state_deadline: Mapped[datetime | None]
    stop: Mapped[dict[str, Any] | None]  # a `StopRequest`
    start_from: Mapped[dict[str, Any] | None]  # a `StartFrom`, until the next start has used it
    restart_nonce: Mapped[int] = mapped_column(default=0)  # another value: start anew although it runs
    observed_nonce: Mapped[int] = mapped_column(default=0)
    generation: Mapped[int] = mapped_column(default=0)
    run: Mapped[str | None] = mapped_column(Id)
    home: Mapped[str | None] = mapped_column(Id)  # the agent that ran it last: that has its checkpoint, if it is a path
    restarts: Mapped[int] = mapped_column(default=0)
    moving: Mapped[dict[str, Any] | None]  # a `store.moves.Moving`, while one is under way
    failure: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]  # `Metrics`, as the newest driver tells
    owner: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class JobNameRow(Base):
    """Whose a job's name is. It outlives its jobs, as the checkpoint and the causal log of that name do."""

    __tablename__ = "job_names"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    owner: Mapped[str] = mapped_column(String(100))


class JobVersionRow(Base):
    """Every specification that a job had."""

    __tablename__ = "job_versions"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[dict[str, Any]]
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class AgentRow(Base):
    """A host. `lease_until` is by the database's clock."""

    __tablename__ = "agents"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    instance: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    drained: Mapped[bool] = mapped_column(default=False)  # outlives LOST: a host that comes back is drained still
    failure_domain: Mapped[str] = mapped_column(String(100))
    slots: Mapped[int]
    versions: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    limits: Mapped[list[Any]]
    revision: Mapped[int] = mapped_column(default=1)  # of its work
    registered_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    beat_s: Mapped[float] = mapped_column(default=1.0)  # the next one comes within about so long, as it said
    spares: Mapped[int] = mapped_column(default=0)  # warm drivers without a job
    lease_until: Mapped[datetime]


class RunRow(Base):
    """One placement of a job on an agent."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_agent_ended_at", "agent", "ended_at"), Index("ix_runs_job", "job", "created_at"))

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    agent: Mapped[str] = mapped_column(ForeignKey("agents.id"))
    order: Mapped[dict[str, Any]]  # the `RunOrder`
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(default=0)
    in_row: Mapped[int] = mapped_column(default=0)  # of these, the newest that ended too early one after another
    pid: Mapped[int | None]
    exit_code: Mapped[int | None]
    failure: Mapped[dict[str, Any] | None]
    driver_state: Mapped[str | None] = mapped_column(String(16))  # as its agent reports; tells FINISHED from STOPPED
    checkpoint_bytes: Mapped[dict[str, Any] | None]  # query → size, as its agent measured last
    told: Mapped[dict[str, Any]] = mapped_column(default=dict)  # what ingestion remembers between two pushes
    events_offset: Mapped[int] = mapped_column(BigInteger, default=0)
    log_offset: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class GenerationRow(Base):
    """One claim."""

    __tablename__ = "generations"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lineage: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    driver: Mapped[str] = mapped_column(String(64))
    run: Mapped[str] = mapped_column(Id)
    attempt: Mapped[int]
    cause: Mapped[str] = mapped_column(String(32))
    claimed_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    epochs: Mapped[int] = mapped_column(BigInteger, default=0)
    records: Mapped[int] = mapped_column(BigInteger, default=0)


class RecoveryRow(Base):
    """From one failure to the first epoch after it."""

    __tablename__ = "recoveries"
    __table_args__ = (
        Index("ix_recoveries_job", "job", "started_at"),
        Index(
            "ix_recoveries_open",
            "job",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    body: Mapped[dict[str, Any]]  # the rest of a `Recovery`


class EpochRow(Base):
    """One finished epoch of one query (a `Checkpoint`)."""

    __tablename__ = "epochs"
    __table_args__ = (Index("ix_epochs_job_completed_at", "job", "completed_at"),)

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lineage: Mapped[int] = mapped_column(primary_key=True)
    query: Mapped[str] = mapped_column(String(100), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    completed_at: Mapped[datetime]
    body: Mapped[dict[str, Any]]  # the `Checkpoint`


class CounterRow(Base):
    """Sums that outlive the rows they count: retention drops epochs, not how many there were."""

    __tablename__ = "counters"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger, default=0)


class SavepointRow(Base):
    """A savepoint; it outlives its job."""

    __tablename__ = "savepoints"
    __table_args__ = (UniqueConstraint("job", "name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    job_name: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(16))
    location: Mapped[str] = mapped_column(Text)
    epochs: Mapped[dict[str, Any]]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    failure: Mapped[dict[str, Any] | None]  # why it could not be taken, or not be deleted
    version: Mapped[int]
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))
    created_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]


class ExceptionRow(Base):
    """An error that a driver told."""

    __tablename__ = "exceptions"
    __table_args__ = (Index("ix_exceptions_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    generation: Mapped[int]
    failure: Mapped[dict[str, Any]]


class LogChunkRow(Base):
    """A piece of a run's log."""

    __tablename__ = "log_chunks"
    __table_args__ = (Index("ix_log_chunks_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    run: Mapped[str] = mapped_column(Id)
    offset: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int]  # of `text` in bytes, so that sums need not read it
    text: Mapped[str] = mapped_column(Text)


class TaskRow(Base):
    """Something for an agent to do once."""

    __tablename__ = "tasks"
    __table_args__ = (
        Index("ix_tasks_agent_ended_at", "agent", "ended_at"),
        Index("ix_tasks_operation", "operation"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    agent: Mapped[str] = mapped_column(ForeignKey("agents.id"))
    operation: Mapped[str | None] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(String(32))
    arguments: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class OperationRow(Base):
    """Something that takes a while; the leader ends it at its deadline."""

    __tablename__ = "operations"
    __table_args__ = (
        Index("ix_operations_state_deadline", "state", "deadline"),
        Index("ix_operations_job_created_at", "job", "created_at"),
        Index("ix_operations_created_at", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    kind: Mapped[str] = mapped_column(String(32))
    job: Mapped[str | None] = mapped_column(Id)
    state: Mapped[str] = mapped_column(String(16))
    arguments: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any]]
    failure: Mapped[dict[str, Any] | None]
    created_by: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]
    deadline: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class StandbyRow(Base):
    """A warm driver."""

    __tablename__ = "standbys"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    token: Mapped[int] = mapped_column(default=1)
    job: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    agent: Mapped[str] = mapped_column(ForeignKey("agents.id"))
    mode: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    since: Mapped[datetime]
    body: Mapped[dict[str, Any]]


class EventRow(Base):
    """What happened, in the order in which it was committed (`store.events` says how)."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    type: Mapped[str] = mapped_column(String(64))
    job: Mapped[str | None] = mapped_column(Id)
    agent: Mapped[str | None] = mapped_column(Id)
    data: Mapped[dict[str, Any]]


class TokenRow(Base):
    """A token; only the hash of its secret is kept."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    role: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(String(100))
    agent: Mapped[str | None] = mapped_column(String(100))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class AuditRow(Base):
    """Who did what."""

    __tablename__ = "audit"
    __table_args__ = (NEVER_AGAIN,)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    subject: Mapped[str] = mapped_column(String(100))
    token: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(100))
    target: Mapped[str | None] = mapped_column(String(255))
    outcome: Mapped[str] = mapped_column(String(8))
    detail: Mapped[dict[str, Any]]


class IdempotencyRow(Base):
    """A request that was made under a key: made again, it gets the same answer."""

    __tablename__ = "idempotency"

    subject: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request: Mapped[str] = mapped_column(Sha)  # of method, path and body
    status: Mapped[int | None]  # None: still under way
    headers: Mapped[dict[str, Any]]
    body: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]


class LeaseRow(Base):
    """Who leads. The token goes up with each holder; every write of the leader's names it."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]
