"""The JSON columns: each has the type of its values, which rows have after they are read.

A stored value that its type refuses becomes an `UnreadableValue`, and its use raises. So a job with a row that cannot
be read does not stop the others.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import Struct, field
from pydantic import BaseModel, ConfigDict
from sqlalchemy import JSON, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from clonos.jobs.spec import JobSpec
from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.hosts import RunSpec
from clonos.resources.jobs import Failure, KafkaReport, Phase, QueryReturn, StopRequest, WaitingReport
from clonos.telemetry.driver_events import Executor

Outcome = Literal["COMPLETED", "SUPERSEDED", "OVERTAKEN", "IDLE", "ABANDONED"]
_SHARED: Final = 4096  # values


class UnreadableValue:
    """A stored value that its type refuses. Each use raises `ValueError` with the reason."""

    def __init__(self, kind: Any, value: Any, reason: str) -> None:
        self.value = value
        self.reason = f"A stored {getattr(kind, '__name__', kind)} cannot be read: {reason}."

    def _raise(self, *_: object) -> Any:
        raise ValueError(self.reason)

    __getattr__ = __getitem__ = __iter__ = __bool__ = __len__ = __contains__ = _raise


class Json(TypeDecorator[Any]):
    """A column of JSON with values of one type: a pydantic model, a msgspec structure, or a list or dict of them.

    Args:
        kind: The type.
        shared: Whether rows with the same JSON may have the same object, because nothing changes it.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: Any, *, shared: bool = False) -> None:
        super().__init__(none_as_null=True)
        self.kind, self.shared = kind, shared

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """JSONB on PostgreSQL."""
        return dialect.type_descriptor((JSONB if dialect.name == "postgresql" else JSON)(none_as_null=True))

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Compare a part of the value as JSON does."""
        return self.impl_instance.coerce_compared_value(op, value)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the value as plain JSON."""
        return plain(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of the column's type."""
        if value is None:
            return None
        return (
            _read_shared(self.kind, value) if self.shared and isinstance(value, str | bytes) else read(self.kind, value)
        )


def read(kind: Any, value: Any) -> Any:
    """Return the value of the type `kind` for stored JSON: a text, as `db.database` returns it, or plain JSON."""
    try:
        if isinstance(value, str | bytes):
            return msgspec.json.decode(value, type=kind, dec_hook=_of_model)
        return msgspec.convert(value, kind, dec_hook=_of_model)
    except ValueError as error:
        return UnreadableValue(kind, value, str(error))


_read_shared = lru_cache(_SHARED)(read)


def _of_model(kind: Any, value: Any) -> Any:
    return kind.model_validate(value)


def plain(value: Any) -> Any:
    """Return a value of a JSON column as plain JSON."""
    return msgspec.to_builtins(value, enc_hook=_of_resource)


def _of_resource(value: Any) -> Any:
    if isinstance(value, UnreadableValue):
        return json.loads(value.value) if isinstance(value.value, str | bytes) else value.value
    if isinstance(value, JobSpec):
        return as_written(value)
    if isinstance(value, RunSpec):
        return {**value.model_dump(mode="json", by_alias=True, exclude={"spec"}), "spec": as_written(value.spec)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError


def as_written(spec: JobSpec) -> dict[str, Any]:
    """Return a specification as JSON, as the store holds it.

    Unset fields remain unset, because the decorator ``@job`` in the code may set them.
    """
    whole = spec.model_dump(mode="json", by_alias=True)
    return {**whole, "spec": spec.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)}


class OperatorFigures(Struct):
    """As `clonos.resources.jobs.OperatorMetrics`."""

    recorded: int = 0
    replayed: int = 0
    bytes: int = 0


class QueryFigures(Struct):
    """As `clonos.resources.jobs.QueryMetrics`, without the rates, which are computed from epochs."""

    epoch: int = -1
    epochs: int = 0
    at: datetime | None = None
    interval_ms: int | None = None  # minimum time between the starts of two epochs; None: as the job's
    slow_epoch_ms: float = 0.0
    records_in: int = 0
    records_out: int = 0
    recorded_determinants: int = 0
    recorded_bytes: int = 0
    replayed_determinants: int = 0
    published_lanes: int = 0
    skipped_lanes: int = 0
    dead_letters: int = 0
    dropped: int = 0
    late_rows: int = 0
    late_at: datetime | None = None
    mode: Literal["live", "epochs"] | None = None
    because: str = ""
    seconds: list[EpochCheckpoint] = field(default_factory=list)  # of a live query: the newest ones, for its rates
    operators: dict[str, OperatorFigures] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    lag_at: datetime | None = None
    waiting_since: datetime | None = None
    partition_lag: dict[str, dict[str, int]] = field(default_factory=dict)
    retention: dict[str, int] = field(default_factory=dict)

    def paced_ms(self, spec: JobSpec) -> int:
        """Return the minimum time between the starts of two epochs, in ms."""
        return spec.spec.trigger.interval_ms if self.interval_ms is None else self.interval_ms


class JobFigures(Struct):
    """As `clonos.resources.jobs.Metrics`: what drivers reported about a job."""

    at: datetime | None = None
    received_at: datetime | None = None
    slow_epoch_ms: float = 0.0
    kafka: KafkaReport | None = None
    waiting: WaitingReport | None = None
    first_epoch_since: datetime | None = None
    restarts: int = 0
    queries: dict[str, QueryFigures] = field(default_factory=dict)
    open_transactions: dict[str, datetime] = field(default_factory=dict)
    delivery: dict[str, str] = field(default_factory=dict)
    sharing_depth: str | None = None


class SeenExecutors(Struct):
    """As `clonos.resources.jobs.Executors`."""

    wanted: int
    registered: int
    listed: list[Executor] = field(default_factory=list)


class IngestState(Struct):
    """The state that the ingestion of a run's events carries from one push to the next."""

    state: str = ""  # of the driver
    attempt: int = 0  # number of the run's driver processes that began a claim
    again: bool = False  # whether the current claim follows a restart of queries in the same process
    lineage: int = 0  # lineage of the newest claim
    generation: int = 0  # generation of the newest claim
    # times of the steps of the current claim, in seconds since 1970: failed, claiming, claimed, running
    marks: dict[str, float] = field(default_factory=dict)
    waiting: bool = False  # whether no epoch has finished since the newest claim
    queries: list[str] = field(default_factory=list)  # of the newest claim; empty: it has named none
    returned: list[str] = field(default_factory=list)  # those that have returned since that claim
    reports_ready: bool = False  # whether the driver reports when its queries are ready to read
    ready: dict[str, float] = field(default_factory=dict)  # query → time when it was, in seconds since 1970
    empty: list[str] = field(default_factory=list)  # the queries without unread records, by their newest report
    code: str = ""  # hash of the code of the newest claim's driver; empty: it has named none
    last_at: float = 0.0  # time of the newest event, in seconds since 1970
    end: str = ""  # ``clean`` or ``failed``; empty while the driver runs, or if its end is unknown
    application_id: str = ""  # of the newest driver's Spark application; empty: it has reported none
    spark_ui: str = ""  # address of that application's web UI; empty: it has none
    executors: SeenExecutors | None = None  # that application's; None: it has reported none


class RecoveryBody(Struct, omit_defaults=True):
    """The rest of a `clonos.resources.jobs.Recovery`, whose other fields are columns."""

    cause: str
    failed_generation: int
    from_host: str
    failure: Failure | None = None
    phases: list[Phase] = field(default_factory=list)
    # Begin of the first of several failures in succession; None: it is the first one.
    silent_since: datetime | None = None
    generation: int | None = None
    to_host: str | None = None
    standby: str | None = None
    outcome: Outcome | None = None
    downtime_ms: float | None = None
    first_record_at: datetime | None = None
    replayed_records: int = 0
    skipped_lanes: int = 0
    replayed_determinants: int = 0
    returned: dict[str, QueryReturn] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)
    alive_at: datetime | None = None


class StandbyBody(Struct, omit_defaults=True):
    """What is known of a standby."""

    placement_reason: str = ""  # why it is on its host
    # Query → newest committed epoch that it has read; None: it has not followed the log yet.
    epochs: dict[str, int] | None = None
    # Duration of its shortest rehearsal of an epoch, in seconds; None: it has not reported one.
    epoch_s: float | None = None


class Tally(Struct):
    """The figures of one interval (`clonos_api.store.series`)."""

    epochs: int = 0
    replayed: int = 0
    records_in: int = 0
    records_out: int = 0
    durations: dict[str, int] = field(default_factory=dict)  # class of a duration → number of epochs
    latencies: dict[str, int] = field(default_factory=dict)  # class of an end-to-end latency → number of records
    # Source topic → unread records at the end of the interval; empty: not reported in it.
    lag: dict[str, int] = field(default_factory=dict)

    def add(self, later: Tally) -> None:
        """Add the figures of a later part of the interval."""
        self.epochs += later.epochs
        self.replayed += later.replayed
        self.records_in += later.records_in
        self.records_out += later.records_out
        for classes, more in ((self.durations, later.durations), (self.latencies, later.latencies)):
            for name, number in more.items():
                classes[name] = classes.get(name, 0) + number
        self.lag |= later.lag


class OperationArguments(Struct, omit_defaults=True):
    """The data of a request that the reconciler needs to complete its operation."""

    savepoint: str | None = None  # id of the savepoint that it takes or deletes
    cluster: str | None = None  # id of the cluster that it checks
    version: int | None = None  # version of that cluster's description, or of the job
    stop: StopRequest | None = None  # how it stops the job


class TaskSubject(Struct):
    """What a host task is about, of its arguments (`clonos.resources.hosts.HostTask`)."""

    savepoint: str = ""  # id of the savepoint
    cluster: str = ""  # id of the cluster
    version: int = 0  # version of that cluster's description


class Moving(BaseModel):
    """A planned move in progress."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    # a request for another host, a drained host, or a new version of the job
    cause: Literal["move", "drain", "upgrade"]
    operation: str | None = None  # id of the operation that waits for the move
    leaves: str  # id of the current driver's host
    to: str | None = None  # id of the target host; None for any other host
    version: int  # version of the new driver's specification
    previous: int  # version of the current driver's specification
    kept: int = 0  # minimum number of standbys of the previous version that remain, for a rollback
    until: datetime  # deadline for a READY standby
    standby: str | None = None  # id of the standby that will take over
    failed: int = 0  # number of standbys that ended before they could take over
    handed_at: datetime | None = None  # when the standby was promoted, or for an upgrade the driver was stopped
    taken_at: datetime | None = None  # when the standby became the job's driver
    failure: Failure | None = None  # why the new version failed; the job is being rolled back
