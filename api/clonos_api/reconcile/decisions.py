"""The decisions of the reconciler, as data. `applying` writes all decisions about one job in one transaction.

Pure functions return them: `decide.decide` about a job and its driver, `standbys.decide` about its standbys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from clonos.resources.hosts import NextRun
from clonos.resources.jobs import Failure, JobState, StopMode

D = TypeVar("D", bound="Decision")
RecoveryCause = Literal["crash", "host-lost", "restart", "move", "upgrade", "rollback", "shutdown"]


class Decision:
    """A change of a job, of its run, its standbys or its planned move."""


# The job


@dataclass(frozen=True)
class Transition(Decision):
    """Changes the state of the job. `transitions.RULES` has the allowed changes and their effects."""

    to: JobState
    # Seconds until the deadline of the new state; None: the state waits for nothing, or for a host.
    within_s: float | None = None
    failure: Failure | None = None  # failure to show with the new state; None: no failure


@dataclass(frozen=True)
class SetDeadline(Decision):
    """Sets the deadline and the failure of the job's current state."""

    within_s: float | None  # seconds until the deadline; None: no deadline
    failure: Failure | None = None  # failure to show; None: no failure


@dataclass(frozen=True)
class AcknowledgeRestart(Decision):
    """Clears the job's pending restart request, because the start in progress satisfies it."""


@dataclass(frozen=True)
class RecordFirstClaim(Decision):
    """Records the first claim after a start: the start point and the resolutions are used up; `host` has the
    checkpoint.
    """

    host: str


@dataclass(frozen=True)
class TakeSavepoint(Decision):
    """Creates a host task for `host`: copy the checkpoint of the stopped job."""

    host: str


@dataclass(frozen=True)
class GiveUpSavepoint(Decision):
    """Fails the savepoint of a stopping job, because its copy timed out."""


# The job's run


@dataclass(frozen=True)
class PlaceRun(Decision):
    """Creates a run of the job on a host; `why` is the reason for this host."""

    host: str
    why: str


@dataclass(frozen=True)
class UpdateRun(Decision):
    """Changes the desired state of a run; the host's agent then stops or kills the driver."""

    run: str
    desired: Literal["STOPPED", "ABSENT"]
    mode: StopMode = StopMode.GRACEFUL
    timeout_s: float = 60.0  # after this time the agent kills a driver that has not stopped


@dataclass(frozen=True)
class CloseRun(Decision):
    """Marks a run as ended although its agent has not reported its end."""

    run: str


@dataclass(frozen=True)
class MarkLost(Decision):
    """Marks a run as LOST because its host is unreachable. If the host returns, its agent kills the driver."""

    run: str


@dataclass(frozen=True)
class BeginRecovery(Decision):
    """Records the start of a recovery, after the failure of a run or for a planned move."""

    run: str  # run of the driver that failed, or that the planned move replaces
    cause: RecoveryCause
    failure: Failure | None = None


@dataclass(frozen=True)
class ContinueWith(Decision):
    """Lets the run `run`, which has ended, be followed by one of another version, or with other permissions."""

    run: str
    next: NextRun


# Standbys


@dataclass(frozen=True)
class AddStandby(Decision):
    """Creates a standby of the job on a host; `why` is the reason for this host."""

    host: str
    why: str
    newest: bool = False  # whether the standby has the newest version of the job; otherwise it has the driver's version
    for_move: bool = False  # whether the planned move waits for this standby


@dataclass(frozen=True)
class DropStandby(Decision):
    """Ends a standby of the job; `why` is the reason."""

    run: str
    why: str


@dataclass(frozen=True)
class PromoteStandby(Decision):
    """Makes the standby with the id `run` the job's driver."""

    run: str
    host: str


@dataclass(frozen=True)
class SetTakeoverWait(Decision):
    """Changes how long the agent of the driver waits for a standby before it restarts a failed driver."""

    run: str
    seconds: float


# The planned move


@dataclass(frozen=True)
class BeginMove(Decision):
    """Begins a planned move because the driver's host drains; a standby must be READY within `within_s` seconds."""

    within_s: float


@dataclass(frozen=True)
class SetMoveStandby(Decision):
    """Selects the standby that the planned move waits for; None: there is none."""

    standby: str | None
    failed: bool = False  # whether the previously selected standby counts as failed


@dataclass(frozen=True)
class HandOver(Decision):
    """Begins the last step of a planned move: the standby `run` replaces the driver."""

    run: str
    claim: bool  # the standby claims the log from the running driver; otherwise that driver stops first


@dataclass(frozen=True)
class AdoptStandby(Decision):
    """Records that the standby `run` has claimed the log: it is the job's run from now on."""

    run: str


@dataclass(frozen=True)
class RevertVersion(Decision):
    """Rolls the job back to an older version because the newest one failed.

    The planned move ends when the older version runs.
    """

    version: int
    failure: Failure


@dataclass(frozen=True)
class EndMove(Decision):
    """Ends the planned move; `failure` is None if it succeeded.

    `version` is the version that the next start runs after a failed upgrade; None: the choice stays.
    """

    failure: Failure | None = None
    version: int | None = None


class Decided:
    """All decisions about one job, by kind; at most one of each kind, except new and ended standbys."""

    def __init__(self, decisions: Iterable[Decision]) -> None:
        self._by_kind: dict[type[Decision], list[Any]] = {}
        for decision in decisions:
            self._by_kind.setdefault(type(decision), []).append(decision)

    def get(self, kind: type[D]) -> D | None:
        """Return the decision of this kind; None: there is none."""
        return next(iter(self.every(kind)), None)

    def every(self, kind: type[D]) -> list[D]:
        """All decisions of this kind."""
        return self._by_kind.get(kind, [])
