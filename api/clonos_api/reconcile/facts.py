"""The facts on which the reconciler's decisions depend, as plain data without the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.transitions import Intent
from clonos_api.store.columns import Moving

# States of a driver that starts or restarts.
_BEFORE_RUNNING = frozenset({"STARTING", "CLAIMING", "RECONCILING", "RESTARTING", "WAITING"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about a run (one placement of a job on a host)."""

    id: str
    host: str
    desired: Literal["RUNNING", "STOPPED", "ABSENT"] = "RUNNING"  # desired state of the driver
    stop_mode: StopMode = StopMode.GRACEFUL
    state: str = "PENDING"  # state of the driver's process, as its agent reported it
    driver_state: str | None = None  # state that the driver reported (`clonos.driver.states`)
    claimed: bool = False  # whether a driver of the run has claimed the causal log
    attempts: int = 0  # number of attempts, including the job's earlier runs
    exit_code: int | None = None
    failure: Failure | None = None
    # whether no further attempt follows: the agent reported the end, or the reconciler closed the run
    ended: bool = False
    created_at: datetime
    started_at: datetime | None = None  # start of the newest attempt
    version: int = 1  # version of the job's specification
    epochs: int = 0  # number of epochs that the run's drivers finished; loaded only for a planned move
    # Queries that have neither published an epoch nor reported that no record is unread, since the newest claim; loaded
    # only for a planned move
    awaited: frozenset[str] = frozenset()
    claimed_at: datetime | None = None  # time of the run's newest claim; loaded only for a planned move
    # Above 0: the run only finishes the epochs in doubt of its version; the job then continues with this version
    finish_for: int = 0
    tried: frozenset[int] = frozenset()  # versions that have had a run to finish their epochs in doubt, since the start
    # Versions that planned the epochs in doubt which the run refused; None: one that is not stored
    planned_by: tuple[int | None, ...] = ()
    unable: frozenset[int] = frozenset()  # versions whose code failed in their newest run
    accepts_unpublished: bool = False  # whether the run computes epochs in doubt without published output
    continued: bool = False  # whether another kind of run follows (`decisions.RunChange.next`)
    attempts_exhausted: bool = False  # whether the agent has used up the attempts of the restart policy

    @property
    def discarded(self) -> bool:
        """Whether the job no longer needs the run: its agent only has to kill the driver."""
        return self.desired == "ABSENT" or self.state == "LOST"

    @property
    def done(self) -> bool:
        """Whether no driver of the run is alive, and none will be started."""
        return self.ended or (self.state == "EXITED" and self.desired == "STOPPED")

    @property
    def running(self) -> bool:
        """Whether the run's newest driver owns the causal log and runs its queries."""
        return self.state == "RUNNING" and self.driver_state == "RUNNING"

    @property
    def restarting(self) -> bool:
        """Whether the run's driver has run before and has to start again."""
        return self.state in ("PENDING", "STARTING", "EXITED") or self.driver_state in _BEFORE_RUNNING

    @property
    def waiting(self) -> bool:
        """Whether the run's driver waits for a system that is away, such as Kafka."""
        return self.state in ("STARTING", "RUNNING") and self.driver_state == "WAITING"

    @property
    def exited(self) -> bool:
        """Whether the run's driver process has exited or hangs, and the agent would start another one.

        False for a PENDING or STARTING run: after a restart the agent may not have found the driver yet.
        """
        return self.state == "EXITED" and not self.ended and not self.attempts_exhausted

    @property
    def finished(self) -> bool:
        """Whether the driver has processed all input of a job with a bounded input (``availableNow``)."""
        return not self.finish_for and self.done and self.exit_code == 0 and self.driver_state == "FINISHED"


@dataclass(frozen=True, kw_only=True, slots=True)
class StandbyFacts:
    """Facts about a standby whose promotion is not requested."""

    run: str  # id of the standby, which is also the id of its run
    host: str
    state: str = "STARTING"  # the standby's last reported state (`clonos.standby.states`)
    version: int = 1  # version of the job's specification
    ended: bool = False  # whether the standby exited and its agent does not restart it
    self_promoted: bool = False  # whether the standby promoted itself while the control plane was unavailable

    @property
    def ready(self) -> bool:
        """Whether the standby can take over immediately."""
        return self.state in ("READY", "STALE") and not self.ended


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts:
    """Facts about the Spark cluster that a job uses."""

    name: str
    exists: bool = True
    hosts: frozenset[str] = frozenset()  # names of the hosts that reach it; empty: all hosts

    def reached_from(self, host: str) -> bool:
        """Whether drivers on the host with this name can use the cluster."""
        return self.exists and (not self.hosts or host in self.hosts)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """Facts about a job."""

    id: str
    name: str
    state: JobState
    desired: DesiredState
    since: datetime  # time when the job entered its state
    deadline: datetime | None = None  # the end of the time for a transient state, such as STOPPING
    stop: StopRequest | None = None  # the request that stops the job, with its mode
    restart: bool = False  # whether a restart request is pending
    labels: Mapping[str, str] = field(default_factory=dict)
    local: bool = False  # whether only one host can access the job's checkpoint
    home: str | None = None  # host that has the checkpoint, if the checkpoint is local
    # whether the job starts from an older point, so that its current checkpoint does not bind it to a host
    start_from: bool = False
    resolutions: bool = False  # whether the start has the user's decisions about epochs in doubt
    adopt: bool = False  # whether the start may take the job over from another platform
    start_error: str | None = None  # reason why that older point is not available; None if it is available
    failure: Failure | None = None
    unreachable_runs: int = 0  # number of earlier runs whose drivers may still be alive, for instance on a lost host
    # state of the savepoint that a STOPPING job takes
    savepoint: Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None = None
    failed_domain: str | None = None  # failure domain of the lost host that ran the job last
    version: int = 1  # newest version of the job's specification
    standbys: tuple[StandbyFacts, ...] = ()
    self_promotion: bool = False  # whether standbys may promote themselves
    relocatable: bool = False  # whether the job may have standbys, and every host can access its checkpoint
    planned_move: Moving | None = None
    successor: RunFacts | None = None  # run that takes over in the planned move
    next_stored: bool = True  # whether the version is stored that the job continues with after its run
    previous_stored: bool = True  # whether the version is stored that the job goes back to if the planned move fails
    prefers_pool: bool = False  # whether a pool driver can run the job
    cluster: ClusterFacts | None = None  # the Spark cluster of the next driver; None: a local master
    newest_cluster: ClusterFacts | None = None  # the cluster of the newest version, which an upgrade starts

    @property
    def intent(self) -> Intent:
        """The user's request: the desired state, and whether a restart is requested."""
        return Intent(self.desired, self.restart)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandbyDemand:
    """The facts about a job that decide how many standbys it has, and where."""

    id: str
    state: JobState
    desired: DesiredState
    replicas: int  # number of standbys to have: those in the specification, or more for a planned move
    version: int  # version of the specification that the driver runs
    host: str | None  # host of the driver; None: there is no driver
    run: str | None = None  # run of the driver, if its desired state is RUNNING
    # How long the agent of `run` waits for a standby before it restarts a failed driver.
    takeover_wait_s: float = 0.0
    bound: str | None = None  # the only host that can access the checkpoint; None: every host can
    named_host: str | None = None  # name of the only host that the label of `version` allows; None: every host
    failed_recently: int = 0  # number of standbys that failed by themselves and are not replaced yet
    previous_version: int | None = None  # version that an upgrade may roll back to; standbys with that version stay
    # standby that a planned move waits for; it stays even if there are more than `replicas`
    successor: str | None = None
    cluster: ClusterFacts | None = None  # the Spark cluster of the driver, and so of its standbys
    recovery_open: bool = False  # whether a recovery began recently and has not ended


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """Facts about a host and its agent."""

    id: str
    name: str
    state: HostState = HostState.READY
    domain: str = ""
    slots: int = 2
    used: int = 0  # slots in use, including slots of drivers that are stopping
    unresponsive: bool = False  # whether several heartbeats are missing although the host's lease has not expired
    pool_available: int = 0  # number of pool drivers that are ready
    capacity: HostCapacity | None = None  # newest measurement by its agent

    @property
    def alive(self) -> bool:
        """Whether the host's lease is valid."""
        return self.state in (HostState.READY, HostState.DRAINING)

    @property
    def open(self) -> bool:
        """Whether the host accepts another driver."""
        return self.state is HostState.READY and self.used < self.slots
