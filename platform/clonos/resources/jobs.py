"""Bodies for jobs: specifications, runs, generations, recoveries, metrics, and requests such as stop and move."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from clonos.jobs.spec import JobSpec
from clonos.resources.base import Moment, Resource
from clonos.telemetry.log_entries import LogEntry

_TEXT: Final = 10_000  # characters


class JobState(StrEnum):
    """State of a job in the control plane; `clonos_api.reconcile.transitions` has the table of transitions."""

    CREATED = "CREATED"  # never started
    STARTING = "STARTING"  # placed on a host; its driver has not claimed yet
    RUNNING = "RUNNING"  # its driver has claimed the causal log
    RECOVERING = "RECOVERING"  # its driver ended or its host is lost; another attempt is in progress
    STOPPING = "STOPPING"  # the epoch in flight is being finished
    STOPPED = "STOPPED"  # can be started again where it ended
    CANCELLING = "CANCELLING"  # its driver is being killed
    CANCELED = "CANCELED"  # for good; the job cannot be started again
    FAILED = "FAILED"  # no attempt can help until a user fixes the cause in `failure`
    FINISHED = "FINISHED"  # a bounded job has worked through its input


class DesiredState(StrEnum):
    """State of a job that a user requested; the reconciler brings the job there."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # no driver; the job can be started again
    CANCELED = "CANCELED"  # no driver, for good


class StopMode(StrEnum):
    """How a job is stopped: after its epoch in flight, the same with a savepoint, or at once.

    The output is published exactly once in every mode.
    """

    GRACEFUL = "graceful"  # finishes and commits the epoch in flight
    CHECKPOINT = "checkpoint"  # as `GRACEFUL`, then takes a savepoint
    FORCE = "force"  # kills the driver; the epoch in flight is replayed at the next start


def _bounded(text: str) -> str:
    """Cut the middle out of a text that is longer than all useful ones, such as an exception with a record."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1_000]} … {text[-1_000:]}"


Bounded = Annotated[str, AfterValidator(_bounded)]


class Failure(Resource):
    """Error that stops a job or an operation."""

    error: str
    """Slug of the error (`clonos.errors`)."""
    what: Bounded
    """What happened; long texts are shortened."""
    kept: Bounded = ""
    """What was kept safe."""
    hint: Bounded = ""
    """What to do next."""
    domain: Literal["user", "environment", "consistency", "run", "internal"] = "internal"
    """Who must fix the error."""
    retry: bool = False
    """Whether another attempt can help."""
    at: Moment | None = None
    stack: Bounded = ""
    """Stack trace of the error's cause, if it has a cause; bounded."""
    codes: list[str] = Field(default_factory=list)
    """For ``checkpoint-mismatch``: hashes of the codes that planned the epochs in doubt."""


class StartFrom(Resource):
    """An older point from which a job starts once. The start begins a new lineage."""

    savepoint: str | None = None
    """Id of a savepoint of a job of the same owner."""
    epoch: int | None = Field(None, ge=0, le=2**62)
    """Alternatively a retained epoch of the job's own checkpoint."""
    publish_again: bool = False
    """Publish the records after that point again. Without this flag the start is refused if records after that point
    are published. The flag is valid for this one start, and the audit log records it.
    """

    @model_validator(mode="after")
    def _one_point(self) -> StartFrom:
        if (self.savepoint is None) == (self.epoch is None):
            raise ValueError("name a savepoint or an epoch, and not both")
        return self


class StartRequest(StartFrom):
    """The request to start a job: from its checkpoint, or from the older point that `savepoint` or `epoch` names."""

    publish_again: bool = False
    """Publish the records after that point again; as in `StartFrom`."""
    adopt: bool = False
    """Take over the job from another platform that has claimed its causal log: another control plane, or ``clonos
    run``. The flag is valid for this one start, and the audit log records it.
    """

    @model_validator(mode="after")
    def _one_point(self) -> StartRequest:
        if self.savepoint is not None and self.epoch is not None:
            raise ValueError("name a savepoint or an epoch, and not both")
        if self.publish_again and self.point is None:
            raise ValueError("publish_again needs a savepoint or an epoch")
        return self

    @property
    def point(self) -> StartFrom | None:
        """The older point; None: the checkpoint."""
        if self.savepoint is None and self.epoch is None:
            return None
        return StartFrom(savepoint=self.savepoint, epoch=self.epoch, publish_again=self.publish_again)


class ResolveRequest(Resource):
    """The user's decision about an epoch in doubt, which stops a job. The job starts with it, and the causal log
    keeps it.
    """

    query: str | None = Field(None, pattern=r"^[a-z0-9-]+$", max_length=100)
    """The query, which has the name of its sink."""
    epoch: int | None = Field(None, ge=0, le=2**62)
    """The epoch, which is Spark's batch id."""
    decision: Literal["keep", "republish", "dead-letter", "new-code"]
    """``keep``: the published lanes stand, the other lanes follow the replay. ``republish``: all lanes of the replay
    are published, so readers get records of this epoch twice. ``dead-letter``: the published lanes stand, the other
    lanes go to `topic`. ``new-code``: the epoch is replayed with the job's changed code; its published lanes must be
    equal. Without `query` and `epoch` that holds for all epochs in doubt.
    """
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """For ``dead-letter``: an existing topic."""

    @model_validator(mode="after")
    def _topic_of_dead_letters(self) -> ResolveRequest:
        if (self.decision == "dead-letter") != (self.topic is not None):
            raise ValueError("a topic belongs to the decision dead-letter, and only to it")
        return self

    @model_validator(mode="after")
    def _all_epochs_with_new_code_only(self) -> ResolveRequest:
        if (self.query is None) != (self.epoch is None) or (self.epoch is None and self.decision != "new-code"):
            raise ValueError("query and epoch name the epoch; only new-code may leave out both")
        return self

    @property
    def option(self) -> str:
        """The value of ``clonos run --resolve``, for instance ``orders:12=keep``; `epoch` must not be None."""
        return f"{self.query}:{self.epoch}={self.decision}{f':{self.topic}' if self.topic else ''}"


class JobCreate(Resource):
    """The request to create a job."""

    spec: JobSpec
    """Specification. `metadata.name` is unique among the jobs that are not deleted."""
    artifact: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the uploaded code; `spec.spec.main` is a path inside of it."""
    start: bool = True
    """Whether the job starts at once."""
    start_from: StartFrom | None = None
    """Start from an older point of another job, or of a deleted job of the same name."""
    adopt: bool = False
    """As in `StartRequest`, for the first start."""


class JobPatch(Resource):
    """The request to change a job's specification or code, from the next start. It needs the header ``If-Match``."""

    spec: JobSpec | None = None
    artifact: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")


class JobVersion(Resource):
    """One version of a job's specification, with the code that belongs to it."""

    version: int
    spec: JobSpec
    artifact: str
    created_at: Moment
    created_by: str


class JobSummary(Resource):
    """A job with its desired state and its actual state, as in a list."""

    id: str
    """Stable; the name may be used again after the job was deleted."""
    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    version: int
    """Version of the specification and code that the next start runs, from 1; the value of the ETag. A failed upgrade
    and a rollback return to an older one.
    """
    observed_version: int
    """Version of the specification that the newest driver runs; 0 before the first driver."""
    artifact: str
    desired_state: DesiredState
    state: JobState
    state_since: Moment
    state_deadline: Moment | None = None
    """Time by which a transient state, such as STOPPING, has to end."""
    generation: int
    """Newest generation that claimed the causal log; 0 before the first claim."""
    run: str | None = None
    """Id of the newest run."""
    host: str | None = None
    """Name of the host of that run."""
    restarts: int = 0
    """Number of claims after a failure or a move, since the job was created."""
    failure: Failure | None = None
    created_by: str
    """Subject that created the job; only this subject and admins may change it."""
    created_at: Moment
    updated_at: Moment
    deleted_at: Moment | None = None
    """Time of its deletion; None: it exists."""


class Job(JobSummary):
    """A job with its specification."""

    spec: JobSpec


class StopRequest(Resource):
    """The request to stop a job: the mode, and the seconds after which the driver is killed."""

    mode: StopMode = StopMode.GRACEFUL
    """How the job stops."""
    timeout_s: float = Field(60.0, gt=0, le=3600)
    """Seconds until the driver is killed."""


class MoveRequest(Resource):
    """The request to move a job to another host."""

    to: str | None = Field(None, min_length=1, max_length=100)
    """Name or id of a host; default any other."""
    timeout_s: float = Field(180.0, gt=0, le=3600)
    """Seconds for a standby to become READY there; until then nothing changes for the job."""


class UpgradeRequest(JobPatch):
    """The request to bring a running job to its newest version.

    With `spec` or `artifact`, these first become the newest version, and the request needs the header ``If-Match``. A
    refused upgrade stores nothing.
    """

    timeout_s: float = Field(180.0, gt=0, le=3600)
    """Seconds for a standby of the new version to become READY; until then nothing changes. After it the upgrade fails,
    and the old version continues.
    """


class RollbackRequest(Resource):
    """The request to return a job to another of its versions."""

    version: int | None = Field(None, ge=1)
    """The version; default the one, other than the present one, whose driver finished an epoch last."""
    timeout_s: float = Field(180.0, gt=0, le=3600)
    """Seconds for a standby of that version to become READY, if the job runs; as in `UpgradeRequest`."""


class VersionDiff(Resource):
    """What differs between two versions of a job, as lines of unified diffs."""

    before: int
    """Number of the older side."""
    after: int
    """Number of the other side."""
    spec: list[str] = Field(default_factory=list)
    """Lines about the specification."""
    code: list[str] = Field(default_factory=list)
    """Lines about the files of the code."""


class Executor(Resource):
    """An executor of a job on a Spark cluster."""

    id: str
    """Spark's id of the executor."""
    host: str
    cores: int
    """Number of its task slots."""
    stdout: str = ""
    """Address of its standard output, at its worker or YARN's node; empty: unknown. The same for `stderr`."""
    stderr: str = ""
    """Address of its log."""


class Executors(Resource):
    """The executors of a driver's Spark application, as the driver last reported them."""

    wanted: int
    """Number that the specification requests."""
    registered: int
    """Number that had registered with the driver."""
    listed: list[Executor] = Field(default_factory=list)
    """These executors by id, at most 20."""


class Run(Resource):
    """One placement of a job on a host; a run has several attempts if its driver crashes."""

    id: str
    host: str
    version: int
    """Version of the job's specification."""
    standby: bool = False
    """Whether the run is a standby."""
    state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED", "LOST"]
    """State of the driver process. ``PENDING``: not started yet; ``STARTING``: starts the JVM and the job; ``RUNNING``:
    works, or waits as a standby; ``STOPPING``: a stop was requested; ``EXITED``: no process runs; ``LOST``: the host is
    unreachable.
    """
    attempts: int = 0
    """Number of started driver processes; the agent also restarts while the control plane is unreachable."""
    pid: int | None = None
    exit_code: int | None = None
    """Exit code of the newest exited process; negative: a signal."""
    cluster: str | None = None
    """Name of the Spark cluster that the driver uses; None: a local master."""
    application_id: str = ""
    """Id of the driver's Spark application; empty: the driver has reported none."""
    spark_ui: str = ""
    """Address of that application's web UI, as the driver's host knows it; empty: it has none."""
    executors: Executors | None = None
    """Executors of that application; None: a local master, a standby, or no report yet."""
    awaited: list[str] | None = None
    """Queries of the newest claim that have neither finished an epoch nor reported that all records are read; None: no
    driver of the run has claimed, or it reported no queries.
    """
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None


class Generation(Resource):
    """One claim of a job's causal log by a driver."""

    generation: int
    lineage: int
    claim_id: str
    """Random id of the claim, as in the causal log."""
    run: str
    host: str
    attempt: int
    """Number of the driver process, counted with the processes of the job's earlier runs."""
    cause: str
    """Cause of the claim: ``start``, ``restart`` (a query failed), ``crash``, ``host-lost``, ``move``, ``upgrade``,
    ``rollback``, ``shutdown``.
    """
    claimed_at: Moment
    ended_at: Moment | None = None
    epochs: int = 0
    """Number of epochs that the generation finished; `records`: number of records that it published."""
    records: int = 0
    """Records that its driver published."""


class Phase(Resource):
    """One phase of a recovery; phases follow each other.

    The phases are ``detect``, ``finish`` (only before an upgrade: the old driver's last epoch), ``decide``, ``start``
    (of a new driver) or ``wake`` (of a standby), ``claim``, ``restore``, ``replay`` or (if no epoch was in doubt)
    ``epoch``, ``commit``. The times up to ``decide`` are of the control plane's clock, later ones of the driver's.
    """

    name: str
    started_at: Moment
    duration_ms: float
    """Duration in milliseconds; null: it has not ended."""


class QueryReturn(Resource):
    """When a query returned after a failure."""

    at: Moment
    """End of its first epoch, or time at which it was ready to read without unread records."""
    downtime_ms: float | None = None
    """As in `Recovery`, of this query; None: unknown."""
    idle: bool = False
    """Whether it had no input."""


class Recovery(Resource):
    """A recovery: it lasts from the failure of one generation until all queries have returned in the next.

    A query has returned when it has finished an epoch, or is ready to read and has no unread records.
    """

    id: str
    job: str
    cause: str
    """``crash``, ``host-lost``, ``restart`` (a query failed), ``move``, ``upgrade``, ``rollback`` (the new version
    failed) or ``shutdown`` (the driver was stopped with its agent).
    """
    standby: str | None = None
    """Id of the standby that took over; None: a new driver was started."""
    failure: Failure | None = None
    failed_generation: int
    generation: int | None = None
    from_host: str
    to_host: str | None = None
    started_at: Moment
    ended_at: Moment | None = None
    outcome: Literal["COMPLETED", "SUPERSEDED", "OVERTAKEN", "IDLE", "ABANDONED"] | None = None
    """``COMPLETED``: all queries have returned, or the job ended after some had published; ``SUPERSEDED``: the next
    failure came first; ``OVERTAKEN``: the job continued before the failure was noticed; ``IDLE``: no query had unread
    records, or the job ran for 300 s without an epoch; ``ABANDONED``: the job ended.
    """
    downtime_ms: float | None = None
    """Time without published output, from the failure to the first epoch after it; from the last epoch of the old
    driver, if that was later; from the first of several failures in succession. The longest one of all queries, without
    those that had no input. If no query had input: until all were ready to read. None if unknown.
    """
    first_record_at: Moment | None = None
    """If no query had input: end of the first epoch after the recovery. None: there was none."""
    phases: list[Phase] = Field(default_factory=list)
    replayed_records: int = 0
    """Number of records of the epochs in doubt."""
    skipped_lanes: int = 0
    """Number of lanes of the epochs in doubt that were already published."""
    replayed_determinants: int = 0
    returned: dict[str, QueryReturn] = Field(default_factory=dict)
    """Query → when it returned. `waits`: the queries that have not returned after the newest of these."""
    waits: list[str] = Field(default_factory=list)
    alive_at: Moment | None = None
    """Time before the end of the recovery at which the driver on the lost host reported that it was fenced. It worked:
    the takeover was false. None: no such report.
    """


class JobException(Resource):
    """One error that a driver of a job reported. `seq` grows with each error."""

    seq: int
    at: Moment
    generation: int
    failure: Failure


class LogLines(Resource):
    """A part of the log of a job's drivers."""

    lines: list[str]
    """The lines as they were written; empty if the request has ``parsed=true``."""
    next: str
    """Value of ``after`` in the next request."""
    entries: list[LogEntry] = Field(default_factory=list)
    """The parsed lines, if the request has ``parsed=true``."""
    more: bool = False
    """More lines are stored after `next`, also if this part is empty."""
    older: str | None = None
    """The search for the newest lines ended early: value of ``before`` in the request that continues it."""

    @property
    def count(self) -> int:
        """Number of lines or entries."""
        return len(self.lines) + len(self.entries)

    def with_older(self, part: LogLines) -> LogLines:
        """Return this part after the older `part`, from where the search may continue."""
        update = {"lines": part.lines + self.lines, "entries": part.entries + self.entries, "older": part.older}
        return self.model_copy(update=update)


class OperatorMetrics(Resource):
    """Determinants of one operator since the job was created: how many were recorded in the causal log, how many
    replays read, and the recorded bytes.
    """

    recorded: int = 0
    """Determinants that it recorded."""
    replayed: int = 0
    """Determinants that replays read."""
    bytes: int = 0
    """Bytes of its determinants."""


class QueryMetrics(Resource):
    """Metrics of one query (sink) of a job, as its driver reports them.

    Counts are totals since the job was created. Rates are of the last ten seconds, percentiles of the last minute.
    """

    epoch: int = -1
    """Newest ended epoch; -1 before the first. `epochs`: number of finished epochs."""
    epochs: int = 0
    """Finished epochs."""
    at: Moment | None = None
    """End of the newest epoch; None before the first, and for a query that the newest driver does not have."""
    slow_epoch_ms: float = 0.0
    """As in `Metrics`, of this query."""
    records_in: int = 0
    """Records that finished epochs read."""
    records_out: int = 0
    """Records that finished epochs published."""
    records_in_per_s: float = 0.0
    """Records read a second."""
    records_out_per_s: float = 0.0
    """Records published a second."""
    epoch_ms_p50: float | None = None
    """Median duration of an epoch; `epoch_ms_p99`: 99th percentile. None without an epoch in the minute."""
    epoch_ms_p99: float | None = None
    """99th percentile of the duration of epochs in milliseconds."""
    recorded_determinants: int = 0
    """Determinants written to the causal log."""
    recorded_bytes: int = 0
    """Bytes of the query's determinants in the causal log."""
    replayed_determinants: int = 0
    published_lanes: int = 0
    """Number of published lanes; with the Kafka sink and delivery ``exactly-once`` each is one committed transaction.
    """
    skipped_lanes: int = 0
    """Number of lanes that replays did not publish, because an earlier attempt had published them."""
    dead_letters: int = 0
    """Records published as dead letters."""
    dropped: int = 0
    """Number of poison records (undecodable input) that were dropped, as the job requested; `dead_letters`: number of
    those that a dead-letter topic received.
    """
    late_rows: int = 0
    """Number of rows that stateful steps of Spark dropped because the watermark had passed; of an aggregation the
    groups of each partition.
    """
    late_at: Moment | None = None
    """End of the newest epoch that dropped late records; None: none did."""
    mode: Literal["live", "epochs"] | None = None
    """How the newest driver runs it: in ``epochs``, or ``live``, in steps; None: it does not, or none has reported."""
    because: str = ""
    """Why it runs in epochs; empty: it is live, or the job's `trigger.mode` is ``epochs``."""
    operators: dict[str, OperatorMetrics] = Field(default_factory=dict)
    """Determinants of each operator."""
    lag: dict[str, int] = Field(default_factory=dict)
    """Source topic → unread records; empty before the driver's first report. `lag_at`: time of the newest report."""
    lag_at: Moment | None = None
    """Time of the measurement of the lag."""
    waiting_since: Moment | None = None
    """Time at which the control plane received the first report of unread records after the newest epoch; None: there
    is none.
    """
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Topic → partition → unread records, for the partitions with the most unread records."""
    retention: dict[str, int] = Field(default_factory=dict)
    """Topic → unread share in percent, for topics that delete records and hold mostly unread records."""


class KafkaReport(Resource):
    """What a job's driver sees of its Kafka cluster."""

    brokers: int
    """Number of brokers."""
    under_replicated: int = 0
    """Number of partitions of the causal log without all of their replicas in sync."""
    silent_since: Moment | None = None
    """Time of the last answer, if the cluster does not answer; None: it answers."""


class WaitingReport(Resource):
    """What a job's driver waits for: a system that is away, such as a Schema Registry. `since` is its beginning."""

    what: str
    """What the driver waits for."""
    since: Moment


class Metrics(Resource):
    """Totals and rates of a job, by query."""

    at: Moment | None = None
    """End of the newest epoch that a driver of the job reported; None before the first."""
    received_at: Moment | None = None
    """Time at which the control plane received that report, by its own clock."""
    slow_epoch_ms: float = 0.0
    """Duration of slow epochs in milliseconds: a maximum that falls by 2 % with each faster epoch."""
    kafka: KafkaReport | None = None
    """What the newest driver sees of Kafka; None until its first report."""
    waiting: WaitingReport | None = None
    """What the newest driver waits for; None: it works."""
    first_epoch_since: Moment | None = None
    """Since when the newest driver owns the causal log and has neither finished an epoch nor reported its unread
    records; None: it has.
    """
    restarts: int = 0
    """Number of claims after a failure or a move, since the job was created."""
    queries: dict[str, QueryMetrics] = Field(default_factory=dict)
    """Figures of each query, by its name."""
    open_transactions: dict[str, Moment] = Field(default_factory=dict)
    """Topic that the job reads or writes → time since which the topic's ``read_committed`` readers wait for an open
    transaction of any producer. From the last report of the newest driver.
    """
    delivery: dict[str, str] = Field(default_factory=dict)
    """Delivery guarantee of each sink in the newest driver; empty until its first report."""
    sharing_depth: str | None = None
    """Replicas that acknowledge a determinant in the newest driver: ``0`` (nothing is recorded), ``1`` (the leader) or
    ``full`` (all in-sync replicas).
    """


class Offsets(Resource):
    """Source offsets of one query after its newest finished epoch, and its lag."""

    query: str
    epoch: int
    offsets: dict[str, dict[str, int]]
    """Topic → partition → next offset to read."""
    lag: dict[str, int] = Field(default_factory=dict)
    """Source topic → unread records; empty before the driver's first report. `lag_at`: time of the newest report."""
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Topic → partition → unread records, for the partitions with the most unread records."""


class CausalLog(Resource):
    """Overview of a job's causal log."""

    topic: str
    """The log's Kafka topic."""
    determinants: int = 0
    """Number of determinants recorded by the drivers of this job."""
    bytes: int = 0
    """Bytes of these determinants, including truncated ones."""
    replayed: int = 0
    """Number of determinants that replays read."""
    truncations: int = 0
    """How often a driver deleted the log's oldest records."""
    truncated_at: Moment | None = None
    """Time of the newest truncation."""
