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
    """Error that stops a job or an operation.

    Attributes:
        error: Slug of the error (`clonos.errors`).
        what: What happened; long texts are shortened.
        domain: Who must fix the error.
        retry: Whether another attempt can help.
        stack: Stack trace of the error's cause, if it has a cause; bounded.
        kept: What was kept safe.
        hint: What to do next.
        codes: For ``checkpoint-mismatch``: hashes of the codes that planned the epochs in doubt.
    """

    error: str
    what: Bounded
    kept: Bounded = ""
    hint: Bounded = ""
    domain: Literal["user", "environment", "consistency", "run", "internal"] = "internal"
    retry: bool = False
    at: Moment | None = None
    stack: Bounded = ""
    codes: list[str] = Field(default_factory=list)


class StartFrom(Resource):
    """An older point from which a job starts once. The start begins a new lineage.

    Attributes:
        savepoint: Id of a savepoint of a job of the same owner.
        epoch: Alternatively a retained epoch of the job's own checkpoint.
        publish_again: Publish the records after that point again. Without this flag the start is refused if records
            after that point are published. The flag is valid for this one start, and the audit log records it.
    """

    savepoint: str | None = None
    epoch: int | None = Field(None, ge=0, le=2**62)
    publish_again: bool = False

    @model_validator(mode="after")
    def _one_point(self) -> StartFrom:
        if (self.savepoint is None) == (self.epoch is None):
            raise ValueError("name a savepoint or an epoch, and not both")
        return self


class StartRequest(StartFrom):
    """The request to start a job: from its checkpoint, or from the older point that `savepoint` or `epoch` names.

    Attributes:
        savepoint: Id of a savepoint of a job of the same owner.
        epoch: Alternatively a retained epoch of the job's own checkpoint.
        publish_again: Publish the records after that point again; as in `StartFrom`.
        adopt: Take over the job from another platform that has claimed its causal log: another control plane, or
            ``clonos run``. The flag is valid for this one start, and the audit log records it.
    """

    adopt: bool = False

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

    Attributes:
        query: The query, which has the name of its sink.
        epoch: The epoch, which is Spark's batch id.
        decision: ``keep``: the published lanes stand, the other lanes follow the replay. ``republish``: all lanes of
            the replay are published, so readers get records of this epoch twice. ``dead-letter``: the published lanes
            stand, the other lanes go to `topic`. ``new-code``: the epoch is replayed with the job's changed code; its
            published lanes must be equal. Without `query` and `epoch` that holds for all epochs in doubt.
        topic: For ``dead-letter``: an existing topic.
    """

    query: str | None = Field(None, pattern=r"^[a-z0-9-]+$", max_length=100)
    epoch: int | None = Field(None, ge=0, le=2**62)
    decision: Literal["keep", "republish", "dead-letter", "new-code"]
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,249}$")

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
    """The request to create a job.

    Attributes:
        spec: Specification. `metadata.name` is unique among the jobs that are not deleted.
        artifact: SHA-256 of the uploaded code; `spec.spec.main` is a path inside of it.
        start: Whether the job starts at once.
        start_from: Start from an older point of another job, or of a deleted job of the same name.
        adopt: As in `StartRequest`, for the first start.
    """

    spec: JobSpec
    artifact: str = Field(pattern=r"^[0-9a-f]{64}$")
    start: bool = True
    start_from: StartFrom | None = None
    adopt: bool = False


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
    """A job with its desired state and its actual state, as in a list.

    Attributes:
        id: Stable; the name may be used again after the job was deleted.
        version: Version of the specification and code that the next start runs, from 1; the value of the ETag. A failed
            upgrade and a rollback return to an older one.
        observed_version: Version of the specification that the newest driver runs; 0 before the first driver.
        generation: Newest generation that claimed the causal log; 0 before the first claim.
        state_deadline: Time by which a transient state, such as STOPPING, has to end.
        run: Id of the newest run.
        host: Name of the host of that run.
        restarts: Number of claims after a failure or a move, since the job was created.
        created_by: Subject that created the job; only this subject and admins may change it.
        deleted_at: Time of its deletion; None: it exists.
    """

    id: str
    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    version: int
    observed_version: int
    artifact: str
    desired_state: DesiredState
    state: JobState
    state_since: Moment
    state_deadline: Moment | None = None
    generation: int
    run: str | None = None
    host: str | None = None
    restarts: int = 0
    failure: Failure | None = None
    created_by: str
    created_at: Moment
    updated_at: Moment
    deleted_at: Moment | None = None


class Job(JobSummary):
    """A job with its specification."""

    spec: JobSpec


class StopRequest(Resource):
    """The request to stop a job: the mode, and the seconds after which the driver is killed.

    Attributes:
        mode: How the job stops.
        timeout_s: Seconds until the driver is killed.
    """

    mode: StopMode = StopMode.GRACEFUL
    timeout_s: float = Field(60.0, gt=0, le=3600)


class MoveRequest(Resource):
    """The request to move a job to another host.

    Attributes:
        to: Name or id of a host; default any other.
        timeout_s: Seconds for a standby to become READY there; until then nothing changes for the job.
    """

    to: str | None = Field(None, min_length=1, max_length=100)
    timeout_s: float = Field(180.0, gt=0, le=3600)


class UpgradeRequest(JobPatch):
    """The request to bring a running job to its newest version.

    With `spec` or `artifact`, these first become the newest version, and the request needs the header ``If-Match``. A
    refused upgrade stores nothing.

    Attributes:
        timeout_s: Seconds for a standby of the new version to become READY; until then nothing changes.
            After it the upgrade fails, and the old version continues.
    """

    timeout_s: float = Field(180.0, gt=0, le=3600)


class RollbackRequest(Resource):
    """The request to return a job to another of its versions.

    Attributes:
        version: The version; default the one, other than the present one, whose driver finished an epoch last.
        timeout_s: Seconds for a standby of that version to become READY, if the job runs; as in `UpgradeRequest`.
    """

    version: int | None = Field(None, ge=1)
    timeout_s: float = Field(180.0, gt=0, le=3600)


class VersionDiff(Resource):
    """What differs between two versions of a job, as lines of unified diffs.

    Attributes:
        before: Number of the older side.
        after: Number of the other side.
        spec: Lines about the specification.
        code: Lines about the files of the code.
    """

    before: int
    after: int
    spec: list[str] = Field(default_factory=list)
    code: list[str] = Field(default_factory=list)


class Executor(Resource):
    """An executor of a job on a Spark cluster.

    Attributes:
        id: Spark's id of the executor.
        cores: Number of its task slots.
        stdout: Address of its standard output, at its worker or YARN's node; empty: unknown. The same for `stderr`.
        stderr: Address of its log.
    """

    id: str
    host: str
    cores: int
    stdout: str = ""
    stderr: str = ""


class Executors(Resource):
    """The executors of a driver's Spark application, as the driver last reported them.

    Attributes:
        wanted: Number that the specification requests.
        registered: Number that had registered with the driver.
        listed: These executors by id, at most 20.
    """

    wanted: int
    registered: int
    listed: list[Executor] = Field(default_factory=list)


class Run(Resource):
    """One placement of a job on a host; a run has several attempts if its driver crashes.

    Attributes:
        version: Version of the job's specification.
        state: State of the driver process. ``PENDING``: not started yet; ``STARTING``: starts the JVM and the job;
            ``RUNNING``: works, or waits as a standby; ``STOPPING``: a stop was requested; ``EXITED``: no process runs;
            ``LOST``: the host is unreachable.
        attempts: Number of started driver processes; the agent also restarts while the control plane is unreachable.
        exit_code: Exit code of the newest exited process; negative: a signal.
        standby: Whether the run is a standby.
        cluster: Name of the Spark cluster that the driver uses; None: a local master.
        application_id: Id of the driver's Spark application; empty: the driver has reported none.
        spark_ui: Address of that application's web UI, as the driver's host knows it; empty: it has none.
        executors: Executors of that application; None: a local master, a standby, or no report yet.
        awaited: Queries of the newest claim that have neither finished an epoch nor reported that all records are read;
            None: no driver of the run has claimed, or it reported no queries.
    """

    id: str
    host: str
    version: int
    standby: bool = False
    state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED", "LOST"]
    attempts: int = 0
    pid: int | None = None
    exit_code: int | None = None
    cluster: str | None = None
    application_id: str = ""
    spark_ui: str = ""
    executors: Executors | None = None
    awaited: list[str] | None = None
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None


class Generation(Resource):
    """One claim of a job's causal log by a driver.

    Attributes:
        cause: Cause of the claim: ``start``, ``restart`` (a query failed), ``crash``, ``host-lost``, ``move``,
            ``upgrade``, ``rollback``, ``shutdown``.
        claim_id: Random id of the claim, as in the causal log.
        attempt: Number of the driver process, counted with the processes of the job's earlier runs.
        epochs: Number of epochs that the generation finished; `records`: number of records that it published.
        records: Records that its driver published.
    """

    generation: int
    lineage: int
    claim_id: str
    run: str
    host: str
    attempt: int
    cause: str
    claimed_at: Moment
    ended_at: Moment | None = None
    epochs: int = 0
    records: int = 0


class Phase(Resource):
    """One phase of a recovery; phases follow each other.

    The phases are ``detect``, ``finish`` (only before an upgrade: the old driver's last epoch), ``decide``, ``start``
    (of a new driver) or ``wake`` (of a standby), ``claim``, ``restore``, ``replay`` or (if no epoch was in doubt)
    ``epoch``, ``commit``. The times up to ``decide`` are of the control plane's clock, later ones of the driver's.

    Attributes:
        duration_ms: Duration in milliseconds; null: it has not ended.
    """

    name: str
    started_at: Moment
    duration_ms: float


class QueryReturn(Resource):
    """When a query returned after a failure.

    Attributes:
        at: End of its first epoch, or time at which it was ready to read without unread records.
        downtime_ms: As in `Recovery`, of this query; None: unknown.
        idle: Whether it had no input.
    """

    at: Moment
    downtime_ms: float | None = None
    idle: bool = False


class Recovery(Resource):
    """A recovery: it lasts from the failure of one generation until all queries have returned in the next.

    A query has returned when it has finished an epoch, or is ready to read and has no unread records.

    Attributes:
        cause: ``crash``, ``host-lost``, ``restart`` (a query failed), ``move``, ``upgrade``, ``rollback`` (the new
            version failed) or ``shutdown`` (the driver was stopped with its agent).
        outcome: ``COMPLETED``: all queries have returned, or the job ended after some had published;
            ``SUPERSEDED``: the next failure came first; ``OVERTAKEN``: the job continued before the failure was
            noticed; ``IDLE``: no query had unread records, or the job ran for 300 s without an epoch; ``ABANDONED``:
            the job ended.
        downtime_ms: Time without published output, from the failure to the first epoch after it; from the last epoch of
            the old driver, if that was later; from the first of several failures in succession. The longest one of all
            queries, without those that had no input. If no query had input: until all were ready to read. None if
            unknown.
        first_record_at: If no query had input: end of the first epoch after the recovery. None: there was none.
        replayed_records: Number of records of the epochs in doubt.
        skipped_lanes: Number of lanes of the epochs in doubt that were already published.
        returned: Query → when it returned. `waits`: the queries that have not returned after the newest of these.
        standby: Id of the standby that took over; None: a new driver was started.
        alive_at: Time before the end of the recovery at which the driver on the lost host reported that it was fenced.
            It worked: the takeover was false. None: no such report.
    """

    id: str
    job: str
    cause: str
    standby: str | None = None
    failure: Failure | None = None
    failed_generation: int
    generation: int | None = None
    from_host: str
    to_host: str | None = None
    started_at: Moment
    ended_at: Moment | None = None
    outcome: Literal["COMPLETED", "SUPERSEDED", "OVERTAKEN", "IDLE", "ABANDONED"] | None = None
    downtime_ms: float | None = None
    first_record_at: Moment | None = None
    phases: list[Phase] = Field(default_factory=list)
    replayed_records: int = 0
    skipped_lanes: int = 0
    replayed_determinants: int = 0
    returned: dict[str, QueryReturn] = Field(default_factory=dict)
    waits: list[str] = Field(default_factory=list)
    alive_at: Moment | None = None


class JobException(Resource):
    """One error that a driver of a job reported. `seq` grows with each error."""

    seq: int
    at: Moment
    generation: int
    failure: Failure


class LogLines(Resource):
    """A part of the log of a job's drivers.

    Attributes:
        lines: The lines as they were written; empty if the request has ``parsed=true``.
        next: Value of ``after`` in the next request.
        entries: The parsed lines, if the request has ``parsed=true``.
        more: More lines are stored after `next`, also if this part is empty.
        older: The search for the newest lines ended early: value of ``before`` in the request that continues it.
    """

    lines: list[str]
    next: str
    entries: list[LogEntry] = Field(default_factory=list)
    more: bool = False
    older: str | None = None

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

    Attributes:
        recorded: Determinants that it recorded.
        replayed: Determinants that replays read.
        bytes: Bytes of its determinants.
    """

    recorded: int = 0
    replayed: int = 0
    bytes: int = 0


class QueryMetrics(Resource):
    """Metrics of one query (sink) of a job, as its driver reports them.

    Counts are totals since the job was created. Rates are of the last ten seconds, percentiles of the last minute.

    Attributes:
        epoch: Newest ended epoch; -1 before the first. `epochs`: number of finished epochs.
        at: End of the newest epoch; None before the first, and for a query that the newest driver does not have.
        slow_epoch_ms: As in `Metrics`, of this query.
        epoch_ms_p50: Median duration of an epoch; `epoch_ms_p99`: 99th percentile. None without an epoch in the minute.
        published_lanes: Number of published lanes; with the Kafka sink and delivery ``exactly-once`` each is one
            committed transaction.
        skipped_lanes: Number of lanes that replays did not publish, because an earlier attempt had published them.
        recorded_bytes: Bytes of the query's determinants in the causal log.
        dropped: Number of poison records (undecodable input) that were dropped, as the job requested; `dead_letters`:
            number of those that a dead-letter topic received.
        late_rows: Number of rows that stateful steps of Spark dropped because the watermark had passed; of an
            aggregation the groups of each partition.
        operators: Determinants of each operator.
        lag: Source topic → unread records; empty before the driver's first report. `lag_at`: time of the newest report.
        waiting_since: Time at which the control plane received the first report of unread records after the newest
            epoch; None: there is none.
        partition_lag: Topic → partition → unread records, for the partitions with the most unread records.
        retention: Topic → unread share in percent, for topics that delete records and hold mostly unread records.
        epochs: Finished epochs.
        records_in: Records that finished epochs read.
        records_out: Records that finished epochs published.
        records_in_per_s: Records read a second.
        records_out_per_s: Records published a second.
        epoch_ms_p99: 99th percentile of the duration of epochs in milliseconds.
        recorded_determinants: Determinants written to the causal log.
        dead_letters: Records published as dead letters.
        lag_at: Time of the measurement of the lag.
        late_at: End of the newest epoch that dropped late records; None: none did.
    """

    epoch: int = -1
    epochs: int = 0
    at: Moment | None = None
    slow_epoch_ms: float = 0.0
    records_in: int = 0
    records_out: int = 0
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    epoch_ms_p50: float | None = None
    epoch_ms_p99: float | None = None
    recorded_determinants: int = 0
    recorded_bytes: int = 0
    replayed_determinants: int = 0
    published_lanes: int = 0
    skipped_lanes: int = 0
    dead_letters: int = 0
    dropped: int = 0
    late_rows: int = 0
    late_at: Moment | None = None
    operators: dict[str, OperatorMetrics] = Field(default_factory=dict)
    lag: dict[str, int] = Field(default_factory=dict)
    lag_at: Moment | None = None
    waiting_since: Moment | None = None
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)
    retention: dict[str, int] = Field(default_factory=dict)


class KafkaReport(Resource):
    """What a job's driver sees of its Kafka cluster.

    Attributes:
        brokers: Number of brokers.
        under_replicated: Number of partitions of the causal log without all of their replicas in sync.
        silent_since: Time of the last answer, if the cluster does not answer; None: it answers.
    """

    brokers: int
    under_replicated: int = 0
    silent_since: Moment | None = None


class WaitingReport(Resource):
    """What a job's driver waits for: a system that is away, such as a Schema Registry. `since` is its beginning.

    Attributes:
        what: What the driver waits for.
    """

    what: str
    since: Moment


class Metrics(Resource):
    """Totals and rates of a job, by query.

    Attributes:
        at: End of the newest epoch that a driver of the job reported; None before the first.
        received_at: Time at which the control plane received that report, by its own clock.
        slow_epoch_ms: Duration of slow epochs in milliseconds: a maximum that falls by 2 % with each faster epoch.
        kafka: What the newest driver sees of Kafka; None until its first report.
        waiting: What the newest driver waits for; None: it works.
        first_epoch_since: Since when the newest driver owns the causal log and has neither finished an epoch nor
            reported its unread records; None: it has.
        restarts: Number of claims after a failure or a move, since the job was created.
        open_transactions: Topic that the job reads or writes → time since which the topic's ``read_committed`` readers
            wait for an open transaction of any producer. From the last report of the newest driver.
        delivery: Delivery guarantee of each sink in the newest driver; empty until its first report.
        sharing_depth: Replicas that acknowledge a determinant in the newest driver: ``0`` (nothing is recorded), ``1``
            (the leader) or ``full`` (all in-sync replicas).
        queries: Figures of each query, by its name.
    """

    at: Moment | None = None
    received_at: Moment | None = None
    slow_epoch_ms: float = 0.0
    kafka: KafkaReport | None = None
    waiting: WaitingReport | None = None
    first_epoch_since: Moment | None = None
    restarts: int = 0
    queries: dict[str, QueryMetrics] = Field(default_factory=dict)
    open_transactions: dict[str, Moment] = Field(default_factory=dict)
    delivery: dict[str, str] = Field(default_factory=dict)
    sharing_depth: str | None = None


class Offsets(Resource):
    """Source offsets of one query after its newest finished epoch, and its lag.

    Attributes:
        offsets: Topic → partition → next offset to read.
        lag: Source topic → unread records; empty before the driver's first report. `lag_at`: time of the newest report.
        partition_lag: Topic → partition → unread records, for the partitions with the most unread records.
    """

    query: str
    epoch: int
    offsets: dict[str, dict[str, int]]
    lag: dict[str, int] = Field(default_factory=dict)
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)


class CausalLog(Resource):
    """Overview of a job's causal log.

    Attributes:
        topic: The log's Kafka topic.
        determinants: Number of determinants recorded by the drivers of this job.
        bytes: Bytes of these determinants, including truncated ones.
        replayed: Number of determinants that replays read.
        truncations: How often a driver deleted the log's oldest records.
        truncated_at: Time of the newest truncation.
    """

    topic: str
    determinants: int = 0
    bytes: int = 0
    replayed: int = 0
    truncations: int = 0
    truncated_at: Moment | None = None
