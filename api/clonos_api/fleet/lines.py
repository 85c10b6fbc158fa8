"""What a board contains: rows of jobs, columns of hosts, and the systems on which jobs depend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, get_args

from clonos.resources.status import BASES, Basis
from clonos_api.store.tokens import Expiring

# The state of a host whose lease has expired, until the leader marks it LOST; of a driver or standby, on both.
DISCONNECTED: Final = "DISCONNECTED"
# The state of a host that missed heartbeats and whose lease has not expired. What runs there keeps its state.
SILENT: Final = "SILENT"

Health = Literal["good", "weak", "busy", "bad", "idle"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A job's driver or standby on a host."""

    host: str
    role: Literal["driver", "standby"]
    state: str  # of the run or of the standby; DISCONNECTED if the host is


@dataclass(frozen=True, slots=True)
class Last:
    """A job's newest recovery: `at` is its start, `open` whether it is in progress."""

    id: str
    cause: str
    at: datetime
    downtime_ms: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class Stall:
    """A job that should publish and does not."""

    since: datetime  # its last output, or the failure if that was later
    why: str  # what happens now, as a clause: ``the standby on host-3 claims the log``


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens if the driver of a running job fails now."""

    warm: bool  # whether a standby is READY on another host
    host: str = ""  # the host of that standby, or of the one that warms up; empty: there is none
    estimate_s: float | None = None  # expected time without output in seconds; None: nothing shows it
    ready_in_s: float | None = None  # expected time until the standby is READY; None: unknown, or it is READY
    basis: Basis | None = None  # what shows it

    @property
    def source(self) -> str:
        """What shows the expected time, for a person."""
        return f"From {BASES[self.basis]}." if self.basis is not None else ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The newest verification of a job's output."""

    at: datetime  # end of the observation
    clean: bool  # whether epochs are proved up to the newest one of that time
    contradicted: bool  # whether the output contradicts the causal log


@dataclass(frozen=True, slots=True)
class Late:
    """Late rows that Spark dropped: `since` is the end of the newest epoch with some, `rows` their number so far."""

    since: datetime
    rows: int


@dataclass(frozen=True, slots=True)
class Line:
    """The row of one job."""

    id: str
    name: str
    created_by: str
    state: str
    since: datetime  # time when the job entered its state
    health: Health  # weak: degraded guarantee; busy: changes its state; bad: needs attention; idle: needs no driver
    seats: tuple[Seat, ...]  # the job's driver and standbys, with their hosts
    weak: tuple[str, ...]  # reasons why the job's guarantee is degraded; empty if it is not
    failure: str | None  # why the job does not make progress: the `what` of its error
    last: Last | None  # the newest recovery; None if the job had none
    restarts: int
    lag: int | None  # unread records of the job's sources; None: not reported yet, or the job is not RUNNING
    out_per_s: float | None  # records published per second, over about 10 seconds; None: not measured yet
    # whether exactly-once delivery holds in spite of the reasons in `weak`, and a replay computes equal records
    exact: bool = True
    alone: bool = False  # the job runs without a standby because its specification requests none
    stall: Stall | None = None  # None: the job publishes, has no input, or is not to run
    forecast: Forecast | None = None  # None: the job does not run
    proof: Proof | None = None  # None: the output was not verified in the last days
    epochs: tuple[tuple[str, int], ...] = ()  # the newest epoch of each query, by its name
    hint: str = ""  # what to do about `failure`
    dead_letters: bool = False  # it has published some in the last minutes
    first: bool = False  # its newest driver has finished no epoch yet, and may have input
    late: Late | None = None  # None: no late rows were dropped in the last minutes
    unmeasured: bool = False  # it has unread records, and how fast it reads them is not measured yet

    def shape(self) -> Line:
        """Return the line with restarts, lag, published records, late rows, epochs and the time until a standby is
        READY cleared, because these change constantly.
        """
        forecast = replace(self.forecast, ready_in_s=None) if self.forecast is not None else None
        return replace(self, restarts=0, lag=None, out_per_s=None, forecast=forecast, epochs=(), late=None)

    def at(self, host: str) -> tuple[Seat, ...]:
        """Return the job's driver and standbys on the host with this name."""
        return tuple(seat for seat in self.seats if seat.host == host)

    def words(self) -> str:
        """Return the text in which the overview's filter searches: name, owner, state and hosts, in lower case."""
        return " ".join((self.name, self.created_by, self.state, *(seat.host for seat in self.seats))).lower()


@dataclass(frozen=True, slots=True)
class Head:
    """The overview's column of one host: its state, and its used and total slots.

    `rival_at` is when a process that another one has replaced as its agent sent a request, within the last hour.
    """

    name: str
    state: str
    failure_domain: str
    used: int
    slots: int
    rival_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The systems on which running jobs depend, as their drivers see them."""

    drivers: int = 0  # number of drivers that have reported what they see of Kafka
    brokers: int | None = None  # smallest number of brokers that a driver sees; None: no driver has reported it
    silent: tuple[str, ...] = ()  # names of the jobs whose driver gets no answer of Kafka
    waiting: tuple[str, ...] = ()  # names of the jobs whose driver waits for another system, such as a Schema Registry
    under_replicated: int = 0  # number of partitions of causal logs without all of their replicas in sync
    open_transactions: int = 0  # number of topics whose readers wait for an open transaction

    @property
    def health(self) -> Health:
        """Of Kafka: ``bad`` if drivers get no answer, ``weak`` if a further failure may block them, ``idle`` if no
        driver has reported it.
        """
        if self.silent:
            return "bad"
        if self.under_replicated:
            return "weak"
        return "good" if self.drivers else "idle"


@dataclass(frozen=True, slots=True)
class Bar:
    """The recoveries of one job that began in the same half hour, as one bar of the strip."""

    slot: int  # number of the half hour, from 0
    # Of the worst of them: ``bad``: in progress, or without an epoch; ``weak``: a cold restart; ``good``: a takeover,
    # or a restart of a query; ``busy``: planned; ``idle``: no failure.
    health: Health
    height: int  # from the longest time without output, 1 to 10
    recovery: str  # id of the worst of them
    text: str  # what happened, as a sentence


@dataclass(frozen=True, slots=True)
class Lane:
    """The bars of one job."""

    job: str
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The recoveries of the last 24 hours."""

    until: datetime  # end of the newest half hour
    summary: str  # their number and the longest time without output, as a sentence
    lanes: tuple[Lane, ...] = ()  # the jobs with recoveries, those with the worst first
    more: int = 0  # number of further jobs with recoveries


@dataclass(frozen=True)
class Board:
    """All jobs at one moment."""

    number: int  # sequence number of the board, from 1
    at: datetime
    hosts: tuple[Head, ...]
    lines: tuple[Line, ...]  # rows of the jobs: those that need attention first, then by name
    led: bool = True  # whether a replica is the leader, so that failures are handled
    dependencies: Dependencies = Dependencies()
    strip: Strip | None = None  # None: not read
    tokens: Expiring = field(default_factory=Expiring)  # in use, and about to expire
    free_bytes: int | None = None  # of the disk with the database; None: not known

    def proofs(self) -> list[Proof]:
        """Return the newest verifications of the jobs' outputs, oldest first."""
        return sorted((line.proof for line in self.lines if line.proof is not None), key=lambda proof: proof.at)

    def contradicted(self) -> list[str]:
        """Names of the jobs whose output contradicts their causal log."""
        return [line.name for line in self.lines if line.proof is not None and line.proof.contradicted]

    def counts(self) -> dict[Health, int]:
        """Return the number of jobs by health."""
        counts: dict[Health, int] = dict.fromkeys(get_args(Health), 0)
        for line in self.lines:
            counts[line.health] += 1
        return counts
