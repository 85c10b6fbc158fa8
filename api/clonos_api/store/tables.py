"""The database tables as SQLAlchemy classes, the same on SQLite and PostgreSQL.

Times are UTC; the database sets those that leases compare.

Every row that several writers change has a `row_version`. A write checks the version that it read and increments it, so
of two concurrent writers one gets `ConcurrentUpdate`. A write of interest to a job's owner adds an event and, if a
principal requested it, an audit entry, in the same transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Final, cast

from sqlalchemy import (
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from clonos.jobs.cluster import ClusterReport, ClusterSettings
from clonos.jobs.spec import JobSpec
from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import RunSpec
from clonos.resources.jobs import Failure, ResolveRequest, StartFrom, StopRequest
from clonos.telemetry.driver_events import Graph
from clonos_api.store.columns import (
    IngestState,
    JobFigures,
    Json,
    Moving,
    OperationArguments,
    RecoveryBody,
    StandbyBody,
    Tally,
    TaskSubject,
    read,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Utc(TypeDecorator[datetime]):
    """A column type for times with a zone. SQLite does not store the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone before it is written."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time needs its zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the zone UTC to a time that SQLite returned without a zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


Sequence = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only in INTEGER
# Without this SQLite reuses the number of a deleted row.
NEVER_AGAIN = {"sqlite_autoincrement": True}
Id = String(36)
Sha = String(64)


# Types of the other JSON columns.
_JSON: Final[tuple[Any, ...]] = (
    dict[str, Any],
    dict[str, int],
    dict[str, str],
    list[str],
    list[ResolveRequest],
    ClusterReport,
    ClusterSettings,
    EpochCheckpoint,
    Failure,
    Graph,
    HostCapacity,
    IngestState,
    JobFigures,
    Moving,
    OperationArguments,
    RecoveryBody,
    StandbyBody,
    StartFrom,
    StopRequest,
    Tally,
)


class Base(DeclarativeBase):
    """Base class of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar = {
        datetime: Utc,
        JobSpec: Json(JobSpec, shared=True),
        RunSpec: Json(RunSpec, shared=True),
        **{kind: Json(kind) for kind in _JSON},
    }


def table_of(rows: type[Base]) -> Table:
    """Return the table of a class of rows: statements on it skip the ORM, which takes longer than a short statement."""
    return cast(Table, rows.__table__)


class ArtifactRow(Base):
    """Uploaded job code with its bytes, so that every replica and agent can read it."""

    __tablename__ = "artifacts"

    id: Mapped[str] = mapped_column(Sha, primary_key=True)  # SHA-256 of the bytes, hexadecimal
    kind: Mapped[str] = mapped_column(String(8))  # ``py`` or ``zip``
    name: Mapped[str] = mapped_column(String(255))
    size_bytes: Mapped[int]
    files: Mapped[int]  # number of files in the archive; 1 for a ``.py`` file
    main: Mapped[str | None] = mapped_column(String(255))  # the job file, if there is exactly one
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)  # empty if it is stored in parts
    upload: Mapped[str | None] = mapped_column(String(32))  # of the parts; None if `content` has all bytes
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100), index=True)  # subject


class ArtifactPartRow(Base):
    """A part of the bytes of a large artifact.

    Parts are stored before their artifact, each in a short transaction, because SQLite has one writer at a time.
    """

    __tablename__ = "artifact_parts"

    upload: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    stored_at: Mapped[datetime]


class JobRow(Base):
    """A job. Deleted jobs remain, for their savepoints and history, until retention removes them."""

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
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    name: Mapped[str] = mapped_column(String(100))
    labels: Mapped[dict[str, str]]
    spec: Mapped[JobSpec]
    version: Mapped[int] = mapped_column(default=1)  # newest version of the specification
    observed_version: Mapped[int] = mapped_column(default=0)  # version of the newest claim's driver
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))  # id of the code of `version`
    desired_state: Mapped[str] = mapped_column(String(16))  # a `DesiredState`
    state: Mapped[str] = mapped_column(String(16))  # a `JobState`
    state_since: Mapped[datetime]
    state_deadline: Mapped[datetime | None]  # time by which a transient state, such as STOPPING, has to end
    stop: Mapped[StopRequest | None]
    start_from: Mapped[StartFrom | None]  # the next start consumes it
    resolutions: Mapped[list[ResolveRequest] | None]  # the next start consumes them
    adopt: Mapped[bool] = mapped_column(default=False)  # the next start may follow a claim of another platform
    restart_nonce: Mapped[int] = mapped_column(default=0)  # a new value requests a restart of a running job
    observed_nonce: Mapped[int] = mapped_column(default=0)  # the `restart_nonce` that the reconciler has handled
    generation: Mapped[int] = mapped_column(default=0)  # of the newest claim; 0 before the first
    run: Mapped[str | None] = mapped_column(Id)  # id of the driver's run
    home: Mapped[str | None] = mapped_column(Id)  # id of the host with the checkpoint, if that is a local path
    restarts: Mapped[int] = mapped_column(default=0)  # number of claims after the first, without claims of new starts
    moving: Mapped[Moving | None]  # the planned move in progress
    failure: Mapped[Failure | None]  # why the job does not make progress
    metrics: Mapped[JobFigures | None]  # None: no driver has reported any; read `figures`
    created_by: Mapped[str] = mapped_column(String(100))  # subject, the job's owner
    owner_number: Mapped[int] = mapped_column(default=0)  # the number of `created_by` in `owners`
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]

    @property
    def figures(self) -> JobFigures:
        """What drivers reported about the job."""
        return JobFigures() if self.metrics is None else self.metrics


class PlatformRow(Base):
    """The identity of this control plane, in one row."""

    __tablename__ = "platform"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # always 1
    identity: Mapped[str] = mapped_column(String(32))


class JobNameRow(Base):
    """The subject that owns a job name.

    The row outlives the jobs of that name, because the checkpoint and the causal log do.
    """

    __tablename__ = "job_names"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    subject: Mapped[str] = mapped_column(String(100))


class OwnerRow(Base):
    """A subject that owns jobs, with a number: agents with ``--uids`` derive the user of its drivers from it."""

    __tablename__ = "owners"
    __table_args__ = (UniqueConstraint("subject"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # from 1, without gaps
    subject: Mapped[str] = mapped_column(String(100))


class JobVersionRow(Base):
    """One version of a job's specification, with the code that belongs to it."""

    __tablename__ = "job_versions"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[JobSpec]
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class HostRow(Base):
    """A host and its agent. `lease_until` is a time of the database's clock."""

    __tablename__ = "hosts"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    instance: Mapped[str] = mapped_column(String(64))  # random id of the current agent process
    state: Mapped[str] = mapped_column(String(16))  # a `HostState`
    drained: Mapped[bool] = mapped_column(default=False)  # outlives LOST: a host that returns is still drained
    failure_domain: Mapped[str] = mapped_column(String(100))
    slots: Mapped[int]  # maximum number of drivers at once
    versions: Mapped[dict[str, str]]  # of Clonos, Python, Java and Spark
    labels: Mapped[dict[str, str]]
    limits: Mapped[list[str]]  # limits that the agent can enforce: ``memory``, ``uid``
    revision: Mapped[int] = mapped_column(Sequence, default=1)  # work revision, see `hosts.bump`
    registered_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]  # time of the newest heartbeat
    heartbeat_interval_s: Mapped[float] = mapped_column(default=1.0)  # as announced by the agent
    pool_available: Mapped[int] = mapped_column(default=0)  # number of warm pool drivers without a job
    lease_until: Mapped[datetime]
    capacity: Mapped[HostCapacity | None]  # newest measurement
    rival_at: Mapped[datetime | None]  # newest request of a process that another one has replaced as its agent


class RunRow(Base):
    """One placement of a job on a host."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_host_ended_at", "host", "ended_at"),
        Index("ix_runs_job", "job", "created_at"),
        Index(
            "ix_runs_open",
            "host",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    host: Mapped[str] = mapped_column(ForeignKey("hosts.id"))
    spec: Mapped[RunSpec]
    state: Mapped[str] = mapped_column(String(16))  # state of the driver process, as in `Run`
    attempts: Mapped[int] = mapped_column(default=0)  # number of started driver processes, of earlier runs too
    consecutive_failures: Mapped[int] = mapped_column(default=0)  # newest attempts that failed early, in a row
    pid: Mapped[int | None]
    exit_code: Mapped[int | None]  # of the newest process that exited; negative: a signal
    failure: Mapped[Failure | None]  # as in `RunReport`
    # as reported by the agent; distinguishes FINISHED from STOPPED
    driver_state: Mapped[str | None] = mapped_column(String(16))
    checkpoint_bytes: Mapped[dict[str, int] | None]  # query → bytes, the agent's newest measurement
    ingest_state: Mapped[IngestState] = mapped_column(default=IngestState)
    events_offset: Mapped[int] = mapped_column(BigInteger, default=0)  # bytes of the event file that are ingested
    log_offset: Mapped[int] = mapped_column(BigInteger, default=0)  # bytes of the log that are stored
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class GenerationRow(Base):
    """A generation: one claim of a job's causal log by a driver."""

    __tablename__ = "generations"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lineage: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    claim_id: Mapped[str] = mapped_column(String(64))
    run: Mapped[str] = mapped_column(Id)
    attempt: Mapped[int]  # number of the driver process, as in `RunRow.attempts`
    cause: Mapped[str] = mapped_column(String(32))  # of the claim, such as ``start`` or ``host-lost``
    claimed_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    epochs: Mapped[int] = mapped_column(BigInteger, default=0)  # number of finished epochs
    records: Mapped[int] = mapped_column(BigInteger, default=0)  # number of published records


class RecoveryRow(Base):
    """A recovery: from a failure until all queries have returned."""

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
    body: Mapped[RecoveryBody]


class EpochRow(Base):
    """One finished epoch of one query (an `EpochCheckpoint`)."""

    __tablename__ = "epochs"
    __table_args__ = (Index("ix_epochs_job_completed_at", "job", "completed_at"),)

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    lineage: Mapped[int] = mapped_column(primary_key=True)
    query: Mapped[str] = mapped_column(String(100), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    completed_at: Mapped[datetime]
    body: Mapped[EpochCheckpoint]


class SeriesRow(Base):
    """Figures of one query in one interval (`clonos_api.store.series`)."""

    __tablename__ = "series"
    __table_args__ = (Index("ix_series_width_s_start", "width_s", "start"),)

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    query: Mapped[str] = mapped_column(String(100), primary_key=True)
    width_s: Mapped[int] = mapped_column(primary_key=True)  # length of the interval in seconds
    start: Mapped[datetime] = mapped_column(primary_key=True)  # its beginning
    body: Mapped[Tally]


class JobGraphRow(Base):
    """What each query of a job reads, runs and writes, as the newest claim's driver reported it."""

    __tablename__ = "job_graphs"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    generation: Mapped[int]  # of the claim
    reported_at: Mapped[datetime]
    body: Mapped[Graph]


class CounterRow(Base):
    """A counter of a job, such as its number of finished epochs.

    Retention removes rows of epochs, but it keeps the counters.
    """

    __tablename__ = "counters"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger, default=0)


class SavepointRow(Base):
    """A savepoint: a named copy of a job's checkpoint, which outlives the job."""

    __tablename__ = "savepoints"
    __table_args__ = (UniqueConstraint("job", "name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    job_name: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(16))  # as in `Savepoint`
    location: Mapped[str] = mapped_column(Text)  # the savepoint's own directory (path or URI)
    epochs: Mapped[dict[str, int]]  # query → newest finished epoch in the savepoint
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    failure: Mapped[Failure | None]  # why its creation or deletion failed
    version: Mapped[int]  # version of the job's specification that wrote the checkpoint
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.id"))
    created_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]


class ExceptionRow(Base):
    """An error that a driver of a job reported."""

    __tablename__ = "exceptions"
    __table_args__ = (Index("ix_exceptions_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    generation: Mapped[int]  # generation of the driver
    failure: Mapped[Failure]


class LogChunkRow(Base):
    """A chunk of the log of a run's drivers, as an agent pushed it, without secrets."""

    __tablename__ = "log_chunks"
    __table_args__ = (Index("ix_log_chunks_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    run: Mapped[str] = mapped_column(Id)
    offset: Mapped[int] = mapped_column(BigInteger)  # bytes of the run's log before the chunk
    size: Mapped[int]  # bytes as pushed, before secrets were removed from `text`
    text: Mapped[str] = mapped_column(Text)


class TaskRow(Base):
    """A host task: one-time work for the agent of a host."""

    __tablename__ = "tasks"
    __table_args__ = (
        Index("ix_tasks_host_ended_at", "host", "ended_at"),
        Index("ix_tasks_operation", "operation"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    host: Mapped[str] = mapped_column(ForeignKey("hosts.id"))
    operation: Mapped[str | None] = mapped_column(Id)  # id of the operation that waits for the task
    kind: Mapped[str] = mapped_column(String(32))  # as in `clonos.resources.hosts.HostTask`
    # of the owner of the savepoint's job, or of the subject that added the cluster
    owner_number: Mapped[int] = mapped_column(default=0)
    arguments: Mapped[dict[str, Any]]  # as in `HostTask`
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    @property
    def subject(self) -> TaskSubject:
        """What the task is about."""
        subject: TaskSubject = read(TaskSubject, self.arguments)
        return subject


class OperationRow(Base):
    """An operation: a long-running request. The leader fails it at its deadline."""

    __tablename__ = "operations"
    __table_args__ = (
        Index("ix_operations_state_deadline", "state", "deadline"),
        Index("ix_operations_job_created_at", "job", "created_at"),
        Index("ix_operations_created_at", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    kind: Mapped[str] = mapped_column(String(32))  # such as ``move`` or ``upgrade``
    job: Mapped[str | None] = mapped_column(Id)
    state: Mapped[str] = mapped_column(String(16))  # IN_PROGRESS, COMPLETED or FAILED
    arguments: Mapped[OperationArguments]
    result: Mapped[dict[str, Any]]  # what a COMPLETED operation returns
    failure: Mapped[Failure | None]
    created_by: Mapped[str] = mapped_column(String(100))  # subject
    created_at: Mapped[datetime]
    deadline: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ClusterRow(Base):
    """A Spark cluster that jobs can use."""

    __tablename__ = "clusters"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    name: Mapped[str] = mapped_column(String(100))
    labels: Mapped[dict[str, str]]
    spec: Mapped[ClusterSettings]
    version: Mapped[int] = mapped_column(default=1)  # version of the description
    state: Mapped[str] = mapped_column(String(16))  # a `ClusterState`
    state_since: Mapped[datetime]
    report: Mapped[ClusterReport | None]  # of the last check of this version
    checked_at: Mapped[datetime | None]
    failure: Mapped[Failure | None]  # why the last check failed, or why no check has begun
    created_by: Mapped[str] = mapped_column(String(100))  # subject
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class StandbyRow(Base):
    """A standby of a job: a warm second driver. It has the same id as its run."""

    __tablename__ = "standbys"
    __table_args__ = (Index("ix_standbys_job", "job", "since"), Index("ix_standbys_state", "state", "since"))

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    row_version: Mapped[int] = mapped_column(default=1)  # counts the changes of the row (`db.swap`)
    job: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    host: Mapped[str] = mapped_column(ForeignKey("hosts.id"))
    mode: Mapped[str] = mapped_column(String(16))  # ``dedicated``
    state: Mapped[str] = mapped_column(String(16))  # a `clonos.standby.states.StandbyState`
    since: Mapped[datetime]  # start of the state
    body: Mapped[StandbyBody]


class AlertRow(Base):
    """An open alert. Webhooks have received it, or will."""

    __tablename__ = "alerts"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)  # `clonos_api.fleet.alerts.Alert.key`
    body: Mapped[dict[str, Any]]  # an alert in Alertmanager's format
    started_at: Mapped[datetime]


class DeliveryRow(Base):
    """A message to a webhook that has not been delivered."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_webhook_seq", "webhook", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(Id)  # the same in each attempt
    webhook: Mapped[str] = mapped_column(String(64))  # name of the webhook in the settings
    body: Mapped[dict[str, Any]]
    attempts: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    due_at: Mapped[datetime]  # time of the next attempt


class EventRow(Base):
    """An event of the control plane, such as a job's change of state.

    `seq` follows the order of commits (see `store.events`).
    """

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_seq", "job", "seq"), NEVER_AGAIN)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    type: Mapped[str] = mapped_column(String(64))  # such as ``job.state``
    job: Mapped[str | None] = mapped_column(Id)
    host: Mapped[str | None] = mapped_column(Id)
    data: Mapped[dict[str, Any]]  # further fields, by type


class TokenRow(Base):
    """An API token; only the hash of its secret is stored."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))  # SHA-256 of the secret
    role: Mapped[str] = mapped_column(String(16))  # a `clonos.resources.service.Role`
    subject: Mapped[str] = mapped_column(String(100))
    host: Mapped[str | None] = mapped_column(String(100))  # the only host name that an agent may use; None for users
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    # The API token that a browser signed in with, or ``oidc``, if this is the token of its session; else None.
    session_of: Mapped[str | None] = mapped_column(String(16), index=True)
    replaced_by: Mapped[str | None] = mapped_column(String(16))  # the token of its rotation
    # Whether its agent made it to replace its own; false: a person did.
    renewed: Mapped[bool] = mapped_column(server_default=false(), default=False)


class SignInCodeRow(Base):
    """A code that signs a browser in once, or the cookie of an attempt with the identity provider, as a hash."""

    __tablename__ = "sign_in_codes"

    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)  # SHA-256 of the code or cookie
    token: Mapped[str] = mapped_column(String(16))  # the API token that opens the session; ``oidc`` for an attempt
    expires_at: Mapped[datetime]


class AuditRow(Base):
    """An entry of the audit log: a change, or a refused request."""

    __tablename__ = "audit"
    __table_args__ = (NEVER_AGAIN,)

    seq: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    subject: Mapped[str] = mapped_column(String(100))
    token: Mapped[str | None] = mapped_column(String(16))  # id of the token
    action: Mapped[str] = mapped_column(String(100))  # such as ``job.create``; if denied, method and path
    target: Mapped[str | None] = mapped_column(String(255))  # id or path of what is changed
    outcome: Mapped[str] = mapped_column(String(8))  # ``allowed`` or ``denied``
    detail: Mapped[dict[str, Any]]  # further data of the change, or the error of the refusal


class IdempotencyRow(Base):
    """An idempotency key with the hash of its request, and the response once it is stored."""

    __tablename__ = "idempotency"

    subject: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request: Mapped[str] = mapped_column(Sha)  # SHA-256 of method, path, query, media type and body
    status: Mapped[int | None]  # HTTP status of the response; None while the request is in progress
    headers: Mapped[dict[str, str]]
    body: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]


class LeaseRow(Base):
    """The leader's lease. The fencing token grows with each holder; every write of the leader checks it."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))  # the leader's process: replica name, pid and random text
    fencing_token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]
