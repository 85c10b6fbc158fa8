"""The decision of the reconciler about one job, as data: one record, whose parts `applying` writes in one transaction.

Pure functions return it: `decide.decide` about a job and its driver, `standbys.decide` about its standbys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from clonos.resources.hosts import NextRun
from clonos.resources.jobs import Failure, JobState, StopMode
from clonos_api.reconcile.placement import Placement
from clonos_api.store.columns import Moving

RecoveryCause = Literal["crash", "host-lost", "restart", "move", "upgrade", "rollback", "shutdown"]


@dataclass(frozen=True)
class StateChange:
    """The state, the deadline and the failure of a job. `transitions.RULES` has the allowed changes of the state."""

    to: JobState | None  # None: the job stays in its state
    within_s: float | None = None  # seconds until the deadline; None: the job waits for nothing, or for a host
    failure: Failure | None = None  # failure to show; None: no failure


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """Changes of the job's row and of the savepoint that its stop takes."""

    state: StateChange | None = None
    # Whether the run has the first claim after a start: the start point and the resolutions are used up, and the run's
    # host has the checkpoint
    first_claim: bool = False
    restart_acknowledged: bool = False  # whether the start in progress satisfies the pending restart request
    driver: str | None = None  # standby that is the job's run from now on
    # "take": a host task copies the checkpoint of the stopped job. "give-up": that copy timed out
    savepoint: Literal["take", "give-up"] | None = None


@dataclass(frozen=True, kw_only=True)
class RunChange:
    """Changes of the job's run, or the next run."""

    desired: Literal["STOPPED", "ABSENT"] | None = None  # the host's agent then stops or kills the driver
    mode: StopMode = StopMode.GRACEFUL
    timeout_s: float = 60.0  # after this time the agent kills a driver that has not stopped
    lost: bool = False  # whether its host is unreachable; if the host returns, its agent kills the driver
    closed: bool = False  # whether it has ended although its agent has not reported that
    next: NextRun | None = (
        None  # a run of another version, or with other permissions, follows this one, which has ended
    )
    takeover_wait_s: float | None = None  # how long its agent waits for a standby before it restarts a failed driver
    place: Placement | None = None  # creates a run of the job on this host


@dataclass(frozen=True)
class BeginRecovery:
    """The start of a recovery, after the failure of the job's run or for a planned move that replaces it."""

    cause: RecoveryCause
    failure: Failure | None = None


@dataclass(frozen=True)
class AddStandby:
    """A new standby of the job on a host; `why` is the reason for this host."""

    host: str
    why: str
    newest: bool = False  # whether the standby has the newest version of the job; otherwise it has the driver's version
    for_move: bool = False  # whether the planned move waits for this standby


@dataclass(frozen=True)
class DropStandby:
    """The end of a standby of the job; `why` is the reason."""

    run: str
    why: str


@dataclass(frozen=True, kw_only=True)
class StandbyChange:
    """Changes of the job's standbys."""

    promote: str | None = None  # claims the log; it is the job's run at once only with `JobChange.driver`
    drop: tuple[DropStandby, ...] = ()
    add: tuple[AddStandby, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MoveChange:
    """The next step of the job's planned move."""

    after: Moving | None = None  # the move from now on; None: it ends
    failure: Failure | None = None  # why it ends; None: it succeeded
    version: int | None = None  # version of the job's next start, after a failed upgrade; None: the choice stays


@dataclass(frozen=True, kw_only=True)
class Decision:
    """All changes to write now about one job; false if there are none."""

    job: JobChange = JobChange()
    run: RunChange = RunChange()
    recovery: BeginRecovery | None = None
    standbys: StandbyChange = StandbyChange()
    move: MoveChange | None = None

    def __bool__(self) -> bool:
        return self != NOTHING

    @property
    def is_simple(self) -> bool:
        """Whether it changes only the job, its run and the work of their agents."""
        several = self.recovery or self.move or self.standbys != StandbyChange() or self.job.driver
        return not (several or self.job.savepoint or self.run.lost or self.run.next)


NOTHING: Final = Decision()
ABSENT: Final = RunChange(desired="ABSENT")
LOST: Final = RunChange(lost=True)


def enter(to: JobState, within_s: float | None = None, failure: Failure | None = None) -> JobChange:
    """Return the change of the job's state to `to`, with its deadline in seconds and the failure to show."""
    return JobChange(state=StateChange(to, within_s, failure))


def stay(within_s: float | None, failure: Failure | None = None) -> JobChange:
    """Return the change of the deadline and the failure of the job's current state."""
    return JobChange(state=StateChange(None, within_s, failure))


def promote(standby: str, job: JobChange) -> Decision:
    """Return the decision that makes a standby the job's driver, with the other changes of the job."""
    return Decision(job=replace(job, driver=standby), standbys=StandbyChange(promote=standby))
