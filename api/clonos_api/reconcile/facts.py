"""What decisions look at: a job, its runs and the hosts, as plain values. `reading` makes them from rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.transitions import Asked
from clonos_api.store.moves import Moving

# A driver on the way to work, for the first time or again.
_ON_THE_WAY = frozenset({"STARTING", "CLAIMING", "RECONCILING", "RESTARTING"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A placement of a job.

    Attributes:
        goal: What its agent is ordered.
        claimed: A driver of it has owned the causal log.
        ended: No attempt follows, as its agent said or as we decided.
        started_at: The start of its newest attempt.
        version: Of the job's specification that it has.
        epochs: That its drivers finished, as far as somebody asks for it.
        spent: Its drivers ended too early so often that its agent gives it up.
    """

    id: str
    agent: str
    goal: Literal["RUN", "STOP", "GONE"] = "RUN"
    stop_mode: StopMode = StopMode.GRACEFUL
    state: str = "PENDING"
    driver_state: str | None = None
    claimed: bool = False
    attempts: int = 0
    exit_code: int | None = None
    failure: Failure | None = None
    ended: bool = False
    created_at: datetime
    started_at: datetime | None = None
    version: int = 1
    epochs: int = 0
    spent: bool = False

    @property
    def ours(self) -> bool:
        """Whether it still counts: a run that belongs elsewhere only waits to be killed."""
        return self.goal != "GONE" and self.state != "LOST"

    @property
    def over(self) -> bool:
        """Whether no driver of it is there or will be."""
        return self.ended or (self.state == "EXITED" and self.goal == "STOP")

    @property
    def works(self) -> bool:
        """Whether its driver owns the log and runs its queries, as the newest attempt tells."""
        return self.state == "RUNNING" and self.driver_state == "RUNNING"

    @property
    def fell(self) -> bool:
        """Whether a driver that worked is on the way to work again."""
        return self.state in ("PENDING", "STARTING", "EXITED") or self.driver_state in _ON_THE_WAY

    @property
    def gone(self) -> bool:
        """Whether its driver has ended, or gives no sign of life, and its agent would start another one.

        One that is on its way is not: its agent may only have been started again, and know nothing of it yet.
        """
        return self.state == "EXITED" and not self.ended and not self.spent

    @property
    def finished(self) -> bool:
        """Whether it ended because a bounded job has worked through its input."""
        return self.over and self.exit_code == 0 and self.driver_state == "FINISHED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A standby that has not been told to take over.

    Attributes:
        run: Its run, and its own id.
        state: What it said last (`clonos.standby.states`).
        version: Of the job's specification that it has.
        over: It ended, and its agent starts it no more.
        drives: It took over by itself, while the control plane was away.
    """

    run: str
    agent: str
    state: str = "STARTING"
    version: int = 1
    over: bool = False
    drives: bool = False

    @property
    def ready(self) -> bool:
        """Whether it takes over at once."""
        return self.state in ("READY", "STALE") and not self.over


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job.

    Attributes:
        restart: Somebody asked to start it anew.
        home: The agent that has its checkpoint, if that is a path of that host.
        local: Its checkpoint is a path of whatever host runs it.
        start_from: Its start is from an older point: the checkpoint that it has does not bind it.
        lost_start: Why that point cannot be had.
        ghosts: Runs of it whose drivers may still live on hosts that cannot be reached, or are being killed.
        savepoint: The newest one since it is STOPPING.
        failed_domain: Failure domain of the host that it was lost with.
        version: Of its specification.
        standbys: Those that could take over.
        alone: Its standbys may take over by themselves.
        warm: It may have standbys, and they may be on other hosts than the one that has its checkpoint.
        moving: Its planned move.
        relief: The run that is to take over then.
        pooled: Its driver is to be a spare, where there is one.
    """

    id: str
    name: str
    state: JobState
    desired: DesiredState
    since: datetime
    deadline: datetime | None = None
    stop: StopRequest | None = None
    restart: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    home: str | None = None
    start_from: bool = False
    lost_start: str | None = None
    failure: Failure | None = None
    ghosts: int = 0
    savepoint: Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None = None
    failed_domain: str | None = None
    version: int = 1
    standbys: tuple[Waiting, ...] = ()
    alone: bool = False
    warm: bool = False
    moving: Moving | None = None
    relief: Run | None = None
    pooled: bool = False

    @property
    def asked(self) -> Asked:
        """What somebody asked for."""
        return Asked(self.desired, self.restart)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host with its agent.

    Attributes:
        used: Slots taken, by drivers that are being ended too.
        silent: Several of its heartbeats are missing; it may be lost, and is not yet.
        spares: Warm drivers that it has for whatever job of mode ``pool`` comes.
    """

    id: str
    name: str
    state: HostState = HostState.READY
    domain: str = ""
    slots: int = 2
    used: int = 0
    silent: bool = False
    spares: int = 0

    @property
    def alive(self) -> bool:
        """Whether it is heard of."""
        return self.state in (HostState.READY, HostState.DRAINING)

    @property
    def open(self) -> bool:
        """Whether it takes another driver."""
        return self.state is HostState.READY and self.used < self.slots
