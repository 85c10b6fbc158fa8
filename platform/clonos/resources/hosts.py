"""Bodies of the agents' routes: registration, heartbeat, work and pushes; and hosts and standbys for users."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator

from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.base import PLAIN, HostName, Moment, Resource
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.jobs import Failure, ResolveRequest, StartFrom, StopMode

_Text = Annotated[str, Field(max_length=256, pattern=PLAIN)]


class HostState(StrEnum):
    """State of a host in the control plane."""

    READY = "READY"  # its lease is valid, and it accepts runs
    DRAINING = "DRAINING"  # its lease is valid, and it receives no new runs
    LOST = "LOST"  # its lease expired
    REMOVED = "REMOVED"  # an admin removed it; its agent can register it again


class HostRegister(Resource):
    """Registration of a host by its agent, at the agent's start."""

    name: HostName
    """Unique name, the same after a restart."""
    instance: str = Field(max_length=100, pattern=PLAIN)
    """Random id of this agent process: the control plane refuses an older process with the same name."""
    failure_domain: str = Field("", max_length=100, pattern=PLAIN)
    """Hosts that fail together (rack, zone); default the host itself."""
    slots: int = Field(2, ge=1, le=1000)
    """Maximum number of drivers at once."""
    versions: dict[_Text, _Text] = Field(default_factory=dict, max_length=20)
    """Versions of Clonos, Python, Java and Spark."""
    labels: dict[_Text, _Text] = Field(default_factory=dict, max_length=64)
    limits: list[_Text] = Field(default_factory=list, max_length=20)
    """Limits that the agent can enforce: ``memory``, ``uid``."""


class HostRegistered(Resource):
    """Response to a registration: the host's id, the duration of its lease, and the interval of its heartbeats, in
    seconds.
    """

    id: str
    lease_s: float
    """Seconds without a heartbeat after which the host is lost."""
    heartbeat_s: float
    """Seconds between heartbeats."""
    standby_heartbeat_s: float = 0.25
    """Interval of heartbeats while the host has a standby, or a driver with a standby."""


class Host(Resource):
    """A host that runs drivers."""

    id: str
    name: str
    state: HostState
    failure_domain: str
    """Name of what fails together, such as a rack or zone."""
    slots: int
    free: int
    """Number of free slots."""
    runs: int
    """Number of drivers on the host."""
    pool_available: int = 0
    """Number of warm drivers without a job."""
    capacity: HostCapacity | None = None
    """Newest measurement of the host; None: its agent has not sent one."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of programs on the host."""
    labels: dict[str, str] = Field(default_factory=dict)
    limits: list[str] = Field(default_factory=list)
    """Limits that the agent can enforce: ``memory``, ``uid``."""
    registered_at: Moment
    heartbeat_at: Moment


class RunRestartPolicy(Resource):
    """When and how often an agent restarts the driver of a run.

    Failures are consecutive unless the driver finishes an epoch, or runs for `reset_after_s`, in between.
    """

    attempts: int = 8
    """Number of consecutive failures after which the agent still restarts the driver."""
    initial_backoff_ms: int = 100
    """Pause before the first restart in milliseconds."""
    max_backoff_ms: int = 10_000
    """Longest pause in milliseconds."""
    reset_after_s: float = 60.0
    """Seconds of work after which attempts count from 0."""
    takeover_wait_s: float = 0.0
    """Seconds to wait before a restart, so that a standby can take over. The agent restarts the driver afterwards if
    the control plane does not answer.
    """
    earlier_failures: int = 0
    """Number of consecutive failures at the end of the job's previous run."""


class NextRun(Resource):
    """How the job continues after a run that could not replay the epochs in doubt of other versions, or finished its
    own.
    """

    version: int
    """Version of the next run."""
    finish_for: int = 0
    """As in `RunSpec`."""
    finished: list[int] = Field(default_factory=list)
    """As in `RunSpec`."""
    accept_unpublished: bool = False
    """As in `RunSpec`."""


class RunSpec(Resource):
    """Specification of a run: the job, its code, and the desired state of its driver on a host."""

    run: str
    job: str
    name: str
    platform: str = ""
    """Identity of the control plane, for the claims of the driver; empty: unknown."""
    adopt: bool = False
    """Take over the job from another platform."""
    owner: str = ""
    """Subject that created the job: the job gets this subject's secrets only."""
    folder_owners: list[str] = Field(default_factory=list)
    """Further subjects whose checkpoints and savepoints the run may open: earlier owners of the name, and the owner of
    the savepoint that it restores.
    """
    owner_number: int = 0
    """Number of the owner, from 1: agents with ``--uids`` derive the user of its drivers from it."""
    version: int
    spec: JobSpec
    """Specification of the job. It may refer to secrets (``${secret:name}``), which the agent reads on its host;
    nothing sends them.
    """
    artifact: str
    desired: Literal["RUNNING", "STOPPED", "ABSENT"]
    """``RUNNING``; ``STOPPED`` by `stop_mode`; ``ABSENT``: kill the driver and forget the run."""
    stop_mode: StopMode = StopMode.GRACEFUL
    """How the driver stops."""
    stop_timeout_s: float = 60.0
    """Seconds until a driver that does not stop is killed."""
    restart: RunRestartPolicy = RunRestartPolicy()
    """How the agent restarts the driver; null: it does not."""
    start_from: StartFrom | None = None
    """Older point from which the job starts; null: it continues."""
    restore_location: str | None = None
    """Location of the checkpoint or savepoint that `start_from` names; the agent restores it before the driver starts.
    None: continue with the job's checkpoint.
    """
    request_key: str = ""
    """Idempotency key of `start_from`: runs with the same key restore that point only once."""
    earlier_attempts: int = 0
    """Number of attempts of earlier runs, so that attempt numbers continue."""
    standby: bool = False
    """The driver is a standby. The change to false promotes it."""
    accept_new_code: bool = False
    """Replay epochs that another version left in doubt with this version, because the user decided so, or because the
    job is rolled back to it.
    """
    resolutions: list[ResolveRequest] = Field(default_factory=list)
    """The user's decisions about epochs in doubt."""
    finish_for: int = 0
    """Above 0: the run only finishes the epochs in doubt that its version planned; the job then continues with version
    `finish_for`.
    """
    finished: list[int] = Field(default_factory=list)
    """Versions that have had such a run since the job's start."""
    accept_unpublished: bool = False
    """As `accept_new_code`, for epochs in doubt without any published output."""
    next: NextRun | None = None
    """The run that follows this one, which has ended; None: a run that replaces this one is like it."""
    cluster: ClusterSpec | None = None
    """The Spark cluster that the specification names; None: a local master. It may refer to secrets, which the agent
    reads on its host.
    """


class HostTask(Resource):
    """One-time work for the agent of a host: ``savepoint`` (copy a checkpoint), ``delete-savepoint``,
    ``check-cluster`` or ``verify``.
    """

    task: str
    """Id of the task."""
    kind: Literal["savepoint", "delete-savepoint", "check-cluster", "verify"]
    """What the agent does."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Id of the ``savepoint``, the ``location`` to copy or delete, the name of its ``job``, the ``subjects`` whose
    folders the task may open, and for a copy the ``target``. With a location on HDFS or S3 also ``storage``: the job's
    ``spec``, its ``owner`` and its ``cluster``. For a check the id of the ``cluster``, its description (``spec``, a
    `ClusterSpec`), the ``version`` of that, and ``timeout_s``, after which the agent ends the check. For ``verify``,
    the fields of `VerifyTask`.
    """
    owner_number: int = 0
    """Number of the job's owner, as in `RunSpec`; for a check, of the subject that added the cluster."""


class Work(Resource):
    """All runs and host tasks of a host. The agent removes runs that are not in this list."""

    revision: int
    """Number of this version of the work; ``after`` in the request that waits for the next one."""
    runs: list[RunSpec] = Field(default_factory=list)
    """Drivers that the host should have."""
    tasks: list[HostTask] = Field(default_factory=list)
    """Tasks that the agent should do."""


class RunReport(Resource):
    """State of a run, as its agent reports it in each heartbeat."""

    run: str
    state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED"]
    """State of the driver process, as in `clonos.resources.jobs.Run`; an agent never reports ``LOST``."""
    driver_state: str | None = None
    """State that the driver reports (`clonos.driver.states`); for a standby before its takeover the standby's state
    (`clonos.standby.states`).
    """
    attempts: int = 0
    """Number of started driver processes, `RunSpec.earlier_attempts` included."""
    consecutive_failures: int = 0
    """Number of consecutive failures, `RunRestartPolicy.earlier_failures` included."""
    pid: int | None = None
    generation: int = 0
    """Generation of the newest claim of the run's drivers; 0 before the first."""
    exit_code: int | None = None
    """Exit code of the newest process that exited, also while the next process runs. The same holds for `failure`."""
    failure: Failure | None = None
    final: bool = False
    """The run has ended, and the agent does not restart its driver."""
    checkpoint_bytes: dict[str, Annotated[int, Field(ge=0, lt=2**53)]] | None = Field(None, max_length=1000)
    """Query → newest measured size of its checkpoint; None if it cannot be measured."""
    started_at: Moment | None = None
    ended_at: Moment | None = None


class Heartbeat(Resource):
    """Heartbeat of an agent: it renews the host's lease and reports all runs."""

    instance: str
    """Random id of the agent process."""
    heartbeat_interval_s: float = Field(1.0, gt=0, le=60)
    """Longest usual time until the next heartbeat, in seconds; a busy host announces a longer one. If a standby is
    ready, four missing heartbeats start a takeover.
    """
    pool_available: int = Field(0, ge=0, le=1000)
    """Number of warm drivers without a job, for recoveries and standbys."""
    capacity: HostCapacity | None = None
    """A new measurement of the host; None: there is none since the last heartbeat."""
    runs: list[RunReport] = Field(default_factory=list)
    """The state of each driver of the host."""


class HeartbeatResponse(Resource):
    """Response to a heartbeat."""

    revision: int
    """Revision of the agent's work; the agent requests the work if it has another revision."""
    drain: bool = False
    """Whether the agent receives no new runs."""
    push_interval_ms: int = Field(200, ge=1)
    """Interval of pushes of the drivers' output; longer with more drivers."""


class EventsBatch(Resource):
    """Lines of one run's event file, as part of a push.

    A batch may be repeated: the control plane skips the bytes that it already has. A line counts its UTF-8 bytes and
    one byte for its line end, which is not sent. A batch without lines only requests the control plane's offset.
    """

    run: str
    """Id of the run."""
    offset: int = Field(ge=0)
    """Byte of the event file at which the first line begins. A batch beyond the control plane's offset is ignored
    unless `gap` is set.
    """
    lines: list[str] = Field(max_length=5000)
    """Complete lines of the event file."""
    gap: bool = False
    """The host lost the bytes from the control plane's offset to `offset`, at which the control plane continues."""
    last: bool = False
    """No batch follows. The control plane writes this batch to disk before it responds. Any other batch may be lost if
    the database crashes; the response to the next batch then has the smaller offset.
    """


class LogBatch(Resource):
    """Text of one run's log, as part of a push."""

    run: str
    """Id of the run."""
    offset: int = Field(ge=0)
    """Byte at which the text begins, counted over everything that the run ever logged."""
    text: str = Field(max_length=262_144)
    """The text."""
    gap: bool = False
    """The host lost the bytes from the control plane's offset to `offset`, by a log rotation in an outage."""


_P = TypeVar("_P", EventsBatch, LogBatch)


class Push(Resource):
    """New events and log text of all drivers of an agent, in one request: at most one batch of each kind for a run.

    `instance` is the random id of the agent process.
    """

    instance: str
    events: list[EventsBatch] = Field(default_factory=list, max_length=1000)
    """New lines of event files."""
    logs: list[LogBatch] = Field(default_factory=list, max_length=1000)
    """New parts of logs."""

    @field_validator("events", "logs")
    @classmethod
    def _once(cls, pieces: list[_P]) -> list[_P]:
        if len({piece.run for piece in pieces}) < len(pieces):
            raise ValueError("a run has more than one piece")
        return pieces


class BatchResult(Resource):
    """Result of one batch of a push."""

    run: str
    offset: int | None = None
    """Byte up to which the control plane has the run's file; None if it refused the batch."""
    status: int = 200
    """HTTP status that a request with this batch alone would have, such as 200, 404 or 422."""
    detail: str = ""
    """Reason of a refusal."""


class PushResult(Resource):
    """Results of all batches of a push, in the order of the request."""

    events: list[BatchResult] = Field(default_factory=list)
    """Result of each batch of events, in order."""
    logs: list[BatchResult] = Field(default_factory=list)
    """Result of each part of a log, in order."""


class TaskResult(Resource):
    """Result of a host task: `result` if it succeeded (`ok`), else `failure`."""

    instance: str
    """Random id of the agent process."""
    ok: bool
    """Whether the task succeeded."""
    result: dict[str, Any] = Field(default_factory=dict)
    """For a copied savepoint: its ``epochs`` (query → newest finished epoch) and ``size_bytes``. For a check of a
    cluster: a `ClusterReport`.
    """
    failure: Failure | None = None


class Standby(Resource):
    """A standby of a job: a warm second driver that waits to take over."""

    id: str
    job: str | None = None
    host: str
    mode: Literal["dedicated"]
    """Always ``dedicated``: the process is for this job."""
    state: Literal["STARTING", "WARMING", "READY", "STALE", "PROMOTING", "PROMOTED", "FAILED", "RETIRED"]
    """State of the driver. ``STALE``: it cannot follow the causal log, so a takeover would be slow but correct."""
    lag_epochs: int | None = None
    """Number of ended epochs that the standby had not read in the causal log at its last report (at most every two
    seconds); it reads them when it takes over.
    """
    placement_reason: str = ""
    """Reason for its placement on this host."""
    since: Moment
