"""Agents: what they tell, and what they are told to do."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator

from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure, StartFrom, StopMode
from clonos.spec import JobSpec


class HostState(StrEnum):
    """What the control plane knows of an agent."""

    READY = "READY"
    DRAINING = "DRAINING"  # gets nothing new
    LOST = "LOST"  # its lease ran out
    REMOVED = "REMOVED"


class AgentRegister(Resource):
    """An agent starts.

    Attributes:
        name: Unique; the same after a restart.
        instance: Random, of this process: an older process with the name is told to stop.
        failure_domain: What fails together (rack, zone); default the host itself.
        slots: Drivers that it may run at once.
        versions: Of Clonos, Python, Java, Spark.
        limits: What it can enforce: ``memory``, ``uid``.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,98}[a-zA-Z0-9])?$")
    instance: str
    failure_domain: str = ""
    slots: int = Field(2, ge=1, le=1000)
    versions: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    limits: list[str] = Field(default_factory=list)


class AgentRegistered(Resource):
    """The answer: who it is, and how often it must be heard of.

    Attributes:
        guarded_heartbeat_s: The same while it has a driver that a standby would take over from, or a standby.
    """

    id: str
    lease_s: float
    heartbeat_s: float
    guarded_heartbeat_s: float = 0.3


class Agent(Resource):
    """A host that runs drivers.

    Attributes:
        runs: Drivers that it has.
        free: Slots left.
        spares: Warm drivers without a job.
    """

    id: str
    name: str
    state: HostState
    failure_domain: str
    slots: int
    free: int
    runs: int
    spares: int = 0
    versions: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    limits: list[str] = Field(default_factory=list)
    registered_at: Moment
    heartbeat_at: Moment


class RestartOrder(Resource):
    """How an agent restarts a driver by itself.

    A driver that finishes an epoch, or runs for `healthy_s`, starts the count anew.

    Attributes:
        yield_s: Wait so long first: a standby is about to take over. Without word from the control plane, the agent
            then starts it all the same.
        failed_before: Drivers of the job's runs before this one that ended too early, one after another.
    """

    attempts: int = 8
    backoff_ms: int = 100
    max_backoff_ms: int = 10_000
    healthy_s: float = 60.0
    yield_s: float = 0.0
    failed_before: int = 0


class RunOrder(Resource):
    """Have this driver: the whole truth for as long as the order stands.

    Attributes:
        goal: ``RUN``; ``STOP`` as `stop_mode` says, and then leave it; ``GONE``: it belongs elsewhere, kill and forget.
        spec: It may refer to secrets (``${secret:name}``); the agent reads them where it is, they never travel.
        wish: Key of `start_from` (``clonos run --wish``): runs that repeat it go back to that point only once.
        attempt_base: Attempts of earlier runs, so that numbers go on.
        standby: Only wait, warm. An order that says so no more is the order to take over.
        accept_code: Replay what another version left in doubt with this one: the job goes back to it.
    """

    run: str
    job: str
    name: str
    version: int
    spec: JobSpec
    artifact: str
    goal: Literal["RUN", "STOP", "GONE"]
    stop_mode: StopMode = StopMode.GRACEFUL
    stop_timeout_s: float = 60.0
    restart: RestartOrder = RestartOrder()
    start_from: StartFrom | None = None
    restore_location: str | None = None
    wish: str = ""
    attempt_base: int = 0
    standby: bool = False
    accept_code: bool = False


class TaskOrder(Resource):
    """Do this once and tell how it went: ``savepoint`` (copy a checkpoint), ``delete-savepoint``."""

    task: str
    kind: Literal["savepoint", "delete-savepoint"]
    arguments: dict[str, Any] = Field(default_factory=dict)


class Work(Resource):
    """All that an agent is to do. What is not in it any more is to be forgotten.

    Attributes:
        revision: Pass it as ``after`` to wait for the next.
    """

    revision: int
    runs: list[RunOrder] = Field(default_factory=list)
    tasks: list[TaskOrder] = Field(default_factory=list)


class RunReport(Resource):
    """How a run is doing, whole with each heartbeat.

    Attributes:
        state: `clonos.resources.jobs.Run` has the same; an agent never says ``LOST``.
        driver_state: What the driver itself says (`clonos.runner.states`); before it takes over, what a standby says
            (`clonos.standby.states`).
        attempts: Driver processes started, `RunOrder.attempt_base` included.
        in_row: Of these, how many ended too early one after another, `RestartOrder.failed_before` included.
        exit_code: Of the newest process that ended, also while the next one runs; so is `failure`.
        final: It ended and the agent will not start it again: exit code, failure, or the attempts are used up.
        checkpoint_bytes: Query → size of its checkpoint, as last measured; None where that cannot be done.
    """

    run: str
    state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED"]
    driver_state: str | None = None
    attempts: int = 0
    in_row: int = 0
    pid: int | None = None
    generation: int = 0
    exit_code: int | None = None
    failure: Failure | None = None
    final: bool = False
    checkpoint_bytes: dict[str, Annotated[int, Field(ge=0, lt=2**53)]] | None = Field(None, max_length=1000)
    started_at: Moment | None = None
    ended_at: Moment | None = None


class Heartbeat(Resource):
    """An agent lives.

    Attributes:
        beat_s: Its next heartbeat comes within about so long. Where a standby is ready, four that are missing are
            enough.
        spares: Warm drivers that it has for jobs with ``standby: {mode: pool}``.
    """

    instance: str
    beat_s: float = Field(1.0, gt=0, le=60)
    spares: int = Field(0, ge=0, le=1000)
    runs: list[RunReport] = Field(default_factory=list)


class HeartbeatAnswer(Resource):
    """What an agent hears back.

    Attributes:
        revision: Of its work: if it is not what it has, it asks for it.
        drain: It gets nothing new.
        forward_ms: Push what drivers wrote about as often; more seldom the more drivers there are.
    """

    revision: int
    drain: bool = False
    forward_ms: int = Field(200, ge=1)


class EventsPush(Resource):
    """Lines of one run's event file, from byte `offset` on; `lines` are as the driver wrote them.

    The control plane takes what it does not have and answers with the offset that it has now, so that a push may be
    repeated and nothing is counted twice. A line counts its bytes in UTF-8 and one for its end, which is not sent.
    A push without lines asks for the offset; one from beyond the offset is not taken, unless it
    says that there is a gap.

    Attributes:
        gap: What is between the control plane's offset and this one is lost on the host: go on here.
        last: Nothing comes after it: all that was pushed is on the control plane's disk before it answers. Any other
            push may be forgotten in a crash of its database; the next one finds out.
    """

    instance: str
    offset: int = Field(ge=0)
    lines: list[str] = Field(max_length=5000)
    gap: bool = False
    last: bool = False


class LogPush(Resource):
    """A piece of one run's log, from byte `offset` of all that the run ever wrote; else as `EventsPush`.

    Attributes:
        gap: As there: the log was rotated during an outage.
    """

    instance: str
    offset: int = Field(ge=0)
    text: str = Field(max_length=262_144)
    gap: bool = False


class Pushed(Resource):
    """Up to where the control plane has it."""

    offset: int


class EventsPiece(Resource):
    """As `EventsPush`, of this run."""

    run: str
    offset: int = Field(ge=0)
    lines: list[str] = Field(max_length=5000)
    gap: bool = False
    last: bool = False


class LogPiece(Resource):
    """As `LogPush`, of this run."""

    run: str
    offset: int = Field(ge=0)
    text: str = Field(max_length=262_144)
    gap: bool = False


_P = TypeVar("_P", EventsPiece, LogPiece)


class Pushes(Resource):
    """What all drivers of an agent wrote, in one request: at most one piece of each kind of a run."""

    instance: str
    events: list[EventsPiece] = Field(default_factory=list, max_length=1000)
    logs: list[LogPiece] = Field(default_factory=list, max_length=1000)

    @field_validator("events", "logs")
    @classmethod
    def _once(cls, pieces: list[_P]) -> list[_P]:
        if len({one.run for one in pieces}) < len(pieces):
            raise ValueError("a run has more than one piece")
        return pieces


class PieceTaken(Resource):
    """What became of a piece.

    Attributes:
        offset: Up to where the control plane has it; None: it was refused.
        status: Why, as the request for this run alone would be answered: 404, 422.
        detail: The same in words.
    """

    run: str
    offset: int | None = None
    status: int = 200
    detail: str = ""


class PushesTaken(Resource):
    """What became of each piece, in their order."""

    events: list[PieceTaken] = Field(default_factory=list)
    logs: list[PieceTaken] = Field(default_factory=list)


class TaskResult(Resource):
    """How a task went."""

    instance: str
    ok: bool
    result: dict[str, Any] = Field(default_factory=dict)
    failure: Failure | None = None


class Standby(Resource):
    """A warm driver that waits; jobs get them with `standby.replicas`.

    Attributes:
        lag_epochs: So many epochs ended that it had not read of in the causal log when it told last (every two seconds
            at most); it reads them when it takes over.
        why_here: Why it was placed on this host.
    """

    id: str
    job: str | None = None
    agent: str
    mode: Literal["dedicated"]
    state: Literal["STARTING", "WARMING", "READY", "STALE", "PROMOTING", "PROMOTED", "FAILED"]
    lag_epochs: int | None = None
    why_here: str = ""
    since: Moment
