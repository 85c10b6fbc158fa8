"""Jobs, their runs, generations and recoveries, and what one can do to them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from clonos.resources.base import Moment, Resource
from clonos.spec import JobSpec


class JobState(StrEnum):
    """What the control plane knows of a job; `clonos_api.reconcile.transitions` has the table."""

    CREATED = "CREATED"  # never started
    STARTING = "STARTING"  # placed on a host; its driver has not claimed yet
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"  # its driver ended or its host is lost; another attempt is under way
    STOPPING = "STOPPING"  # the epoch in flight is being finished
    STOPPED = "STOPPED"  # can be started again where it ended
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"  # for good
    FAILED = "FAILED"  # no attempt can help until somebody mends what `failure` names
    FINISHED = "FINISHED"  # a bounded job has worked through its input


class DesiredState(StrEnum):
    """What somebody asked for."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    CANCELED = "CANCELED"


class StopMode(StrEnum):
    """How a job is stopped. Output is exactly once with each of them."""

    GRACEFUL = "graceful"  # finish and commit the epoch in flight
    CHECKPOINT = "checkpoint"  # the same, then a savepoint
    FORCE = "force"  # kill; the epoch in flight is replayed at the next start


class Failure(Resource):
    """Why a job or an operation does not go on.

    Attributes:
        error: Slug of the error (`clonos.errors`).
        domain: Whose to mend.
        retry: Whether another attempt can help.
        stack: What was raised behind it, if anything was; bounded.
    """

    error: str
    what: str
    kept: str = ""
    hint: str = ""
    domain: Literal["user", "environment", "consistency", "run", "internal"] = "internal"
    retry: bool = False
    at: Moment | None = None
    stack: str = ""


class StartFrom(Resource):
    """Start from an older point, once: a new lineage.

    Attributes:
        savepoint: Id of a savepoint, of a job of one's own.
        epoch: Or a retained epoch of the job's own checkpoint.
        publish_again: What was published after that point is published again; without this word a job only starts
            there if nothing was. It counts for this one start, and the audit log has it.
    """

    savepoint: str | None = None
    epoch: int | None = Field(None, ge=0, le=2**62)
    publish_again: bool = False

    @model_validator(mode="after")
    def _one_point(self) -> StartFrom:
        if (self.savepoint is None) == (self.epoch is None):
            raise ValueError("name a savepoint or an epoch, and not both")
        return self


class JobCreate(Resource):
    """A new job.

    Attributes:
        spec: Its specification. `metadata.name` is unique among the jobs that are not deleted.
        artifact: SHA-256 of the uploaded code; `spec.spec.main` is a path inside of it.
        start: Start it at once.
        start_from: From an older point of another job or of a deleted one of the same name.
    """

    spec: JobSpec
    artifact: str = Field(pattern=r"^[0-9a-f]{64}$")
    start: bool = True
    start_from: StartFrom | None = None


class JobPatch(Resource):
    """Another specification or other code; it counts from the next start. Needs ``If-Match``."""

    spec: JobSpec | None = None
    artifact: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")


class JobVersion(Resource):
    """A specification, and the code with it, that a job has or had."""

    version: int
    spec: JobSpec
    artifact: str
    created_at: Moment
    created_by: str


class Job(Resource):
    """A job.

    Attributes:
        id: Stable; the name may be used again after the job was deleted.
        version: Of the specification, from 1; the ETag.
        observed_version: The version that the newest driver runs; 0 before the first.
        generation: The newest that claimed the causal log; 0 before the first.
        state_deadline: When a transient state is given up.
        run: Id of the newest run.
        agent: Name of the agent that has it.
        restarts: Claims that followed a failure or a move, since the job was created.
        owner: Who created it.
    """

    id: str
    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    spec: JobSpec
    version: int
    observed_version: int
    artifact: str
    desired_state: DesiredState
    state: JobState
    state_since: Moment
    state_deadline: Moment | None = None
    generation: int
    run: str | None = None
    agent: str | None = None
    restarts: int = 0
    failure: Failure | None = None
    owner: str
    created_at: Moment
    updated_at: Moment


class StopRequest(Resource):
    """How to stop."""

    mode: StopMode = StopMode.GRACEFUL
    timeout_s: float = Field(60.0, gt=0, le=3600)


class MoveRequest(Resource):
    """Where to move a job.

    Attributes:
        to: Name or id of a host; default any other.
        timeout_s: For so long a standby may take to be READY there; until then nothing changes for the job.
    """

    to: str | None = Field(None, min_length=1, max_length=100)
    timeout_s: float = Field(180.0, gt=0, le=3600)


class UpgradeRequest(Resource):
    """How to bring a job to its newest version.

    Attributes:
        timeout_s: For so long a standby of the new version may take to be READY; until then nothing changes.
    """

    timeout_s: float = Field(180.0, gt=0, le=3600)


class Run(Resource):
    """One placement of a job on a host; a run has several attempts if its driver crashes.

    Attributes:
        attempts: Driver processes started, by the agent alone if the control plane is away.
        exit_code: Of the newest process that ended; negative: a signal.
        standby: It only waits, to take over.
    """

    id: str
    agent: str
    version: int
    standby: bool = False
    state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED", "LOST"]
    attempts: int = 0
    pid: int | None = None
    exit_code: int | None = None
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None


class Generation(Resource):
    """One claim of the causal log.

    Attributes:
        cause: Why there was a new claim: ``start``, ``restart`` (a query failed), ``crash``, ``host-lost``, ``move``,
            ``upgrade``.
    """

    generation: int
    lineage: int
    driver: str
    run: str
    agent: str
    attempt: int
    cause: str
    claimed_at: Moment
    ended_at: Moment | None = None
    epochs: int = 0
    records: int = 0


class Phase(Resource):
    """A part of a recovery, which follows the one before it.

    ``detect``, ``decide`` (before an upgrade ``finish``: the old driver's last epoch), ``start`` (a new driver) or
    ``wake`` (a standby), ``claim``, ``restore``, ``replay`` or ``epoch`` (none was in doubt), ``commit``. Each is by
    the clock of the host that it happened on: the control plane's up to ``decide``, the driver's from then on.
    """

    name: str
    started_at: Moment
    duration_ms: float


class Recovery(Resource):
    """From the failure of one generation to the first epoch of the next.

    Attributes:
        outcome: How it ended: its first epoch was told (``finished``), the next failure came first (``superseded``), an
            epoch came that it did not wait for (``overtaken``), the job had no input to work on (``idle``), or the job
            ended (``abandoned``).
        gap_ms: Time without published output, from the last epoch before to the first one after; None if that was not
            told.
        replayed_records: What the epoch in doubt held.
        skipped_lanes: Lanes of it that were published already.
        standby: The one that took over; None: a new driver was started.
    """

    id: str
    job: str
    cause: str
    standby: str | None = None
    failure: Failure | None = None
    failed_generation: int
    generation: int | None = None
    from_agent: str
    to_agent: str | None = None
    started_at: Moment
    ended_at: Moment | None = None
    outcome: Literal["finished", "superseded", "overtaken", "idle", "abandoned"] | None = None
    gap_ms: float | None = None
    phases: list[Phase] = Field(default_factory=list)
    replayed_records: int = 0
    skipped_lanes: int = 0
    replayed_determinants: int = 0


class JobException(Resource):
    """One error that a job's drivers told."""

    seq: int
    at: Moment
    generation: int
    failure: Failure


class LogLines(Resource):
    """A piece of the drivers' log.

    Attributes:
        next: Pass it as ``after`` to go on.
    """

    lines: list[str]
    next: str


class OperatorMetrics(Resource):
    """Determinants of one operator: written to the causal log, read from it by replays, and what they took there."""

    recorded: int = 0
    replayed: int = 0
    bytes: int = 0


class QueryMetrics(Resource):
    """One query (sink) of a job, as its driver tells.

    Attributes:
        published_lanes: Lanes (partitions of an epoch's output) of ended epochs: with the Kafka sink and delivery
            exactly once each is a transaction that was committed.
        recorded_bytes: What its determinants took in the causal log.
        operators: What each operator had of those.
        lag: Topic → records not yet read; empty until known.
        partition_lag: The same for the partitions that are furthest behind; not for those that are not.
        retention: Topics that delete records and hold hardly anything that is read: the unread share, in percent.
    """

    epoch: int = -1
    epochs: int = 0
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
    operators: dict[str, OperatorMetrics] = Field(default_factory=dict)
    lag: dict[str, int] = Field(default_factory=dict)
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)
    retention: dict[str, int] = Field(default_factory=dict)


class Metrics(Resource):
    """Sums and rates of a job.

    Attributes:
        open_transactions: Topics that it writes whose ``read_committed`` readers wait for a transaction, anybody's,
            that is open for seconds; since when they were seen to. What the newest driver told last.
        delivery: What each sink promises, as the newest driver runs it; empty until it has told.
        sharing_depth: The causal log's, likewise.
    """

    at: Moment | None = None
    restarts: int = 0
    queries: dict[str, QueryMetrics] = Field(default_factory=dict)
    open_transactions: dict[str, Moment] = Field(default_factory=dict)
    delivery: dict[str, str] = Field(default_factory=dict)
    sharing_depth: str | None = None


class Offsets(Resource):
    """Where the sources of one query are.

    Attributes:
        offsets: Topic → partition → next offset to read.
        lag: Topic → records not yet read; empty until known.
        partition_lag: The same for the partitions that are furthest behind; not for those that are not.
    """

    query: str
    epoch: int
    offsets: dict[str, dict[str, int]]
    lag: dict[str, int] = Field(default_factory=dict)
    partition_lag: dict[str, dict[str, int]] = Field(default_factory=dict)


class CausalLog(Resource):
    """The causal log of a job.

    Attributes:
        partitions: One for each log partition: what it holds, its first and its end offset.
        determinants: Recorded so far, by the drivers of this job.
        bytes: What these took, whether truncated since or not.
        truncations: How often it was truncated.
    """

    topic: str
    partitions: list[dict[str, Any]] = Field(default_factory=list)
    determinants: int = 0
    bytes: int = 0
    replayed: int = 0
    truncations: int = 0
    truncated_at: Moment | None = None
