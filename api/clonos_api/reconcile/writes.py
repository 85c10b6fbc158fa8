"""What a decision wants written. `applying` does it, all of one decision in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clonos.resources.jobs import Failure, JobState, StopMode


@dataclass(frozen=True)
class Move:
    """The job goes to another state.

    Attributes:
        within_s: Its deadline from now on; None: it waits for nothing, or for a host.
        failure: Why it does not go on; None: nothing is wrong.
        fresh: It starts: earlier runs and attempts do not count any more, and a wish to start anew is fulfilled.
    """

    to: JobState
    within_s: float | None = None
    failure: Failure | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Wait:
    """The job stays in its state, but its deadline or what holds it up is another one."""

    within_s: float | None
    failure: Failure | None = None


@dataclass(frozen=True)
class Heed:
    """A wish to start anew is fulfilled by what is under way already."""


@dataclass(frozen=True)
class Settle:
    """A start has claimed: the older point that it began at is used up, and its checkpoint is on that host."""

    agent: str


@dataclass(frozen=True)
class Place:
    """A new run."""

    agent: str
    why: str


@dataclass(frozen=True)
class Promote:
    """A standby takes over: its run is the job's now."""

    run: str
    agent: str


@dataclass(frozen=True)
class BeginMove:
    """The driver's host is drained: it is to go on elsewhere, through a standby."""

    within_s: float


@dataclass(frozen=True)
class Note:
    """The planned move has another standby, or none for now.

    Attributes:
        failed: One more has ended before it could take over.
    """

    standby: str | None
    failed: bool = False


@dataclass(frozen=True)
class PlaceStandby:
    """A new standby, for the planned move; `version` is the driver's, or the newest."""

    agent: str
    why: str
    newest: bool = False


@dataclass(frozen=True)
class HandOver:
    """The time has come for a standby.

    Attributes:
        claim: It takes the log from the driver at once; otherwise that one ends first.
    """

    run: str
    claim: bool


@dataclass(frozen=True)
class Take:
    """The standby that took the log from a driver has the job's run now."""

    run: str


@dataclass(frozen=True)
class Revert:
    """The job has an older version again, because the newest one failed; the planned move ends when that runs."""

    version: int
    failure: Failure


@dataclass(frozen=True)
class EndMove:
    """The planned move is over; None: it came true."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Order:
    """A run's agent is ordered something else."""

    run: str
    goal: Literal["STOP", "GONE"]
    mode: StopMode = StopMode.GRACEFUL
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Close:
    """A run is over, although its agent did not say that no attempt follows."""

    run: str


@dataclass(frozen=True)
class Lose:
    """A run's host is lost; if it comes back, it kills the driver."""

    run: str


@dataclass(frozen=True)
class Fall:
    """A run's driver fell or its host is lost: a recovery begins."""

    run: str
    cause: Literal["crash", "host-lost", "restart", "move", "upgrade"]
    failure: Failure | None = None


@dataclass(frozen=True)
class Save:
    """Copy the checkpoint of the job, which has stopped."""

    agent: str


@dataclass(frozen=True)
class GiveUpSave:
    """The copy did not come in time."""


Planned = BeginMove | Note | PlaceStandby | HandOver | Take | Revert | EndMove
Write = Move | Wait | Heed | Settle | Place | Promote | Planned | Order | Close | Lose | Fall | Save | GiveUpSave
