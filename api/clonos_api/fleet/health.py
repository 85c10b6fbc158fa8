"""The health of a job, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from clonos.resources.figures import duration
from clonos.resources.jobs import DesiredState, JobState
from clonos.resources.lag import lag_of_job
from clonos.standby.states import StandbyState
from clonos_api.fleet.facts import Facts
from clonos_api.fleet.forecasts import Estimates, forecast_of
from clonos_api.fleet.lines import DISCONNECTED, Dependencies, Health, Last, Late, Line, Proof, Seat, Stall
from clonos_api.fleet.stalls import computes_first_epoch, stall_of
from clonos_api.store.tables import JobRow, RecoveryRow

# Longer than the transactions of an epoch usually last, including retries.
_STAYS_OPEN: Final = timedelta(minutes=5)
# A cold start takes less; a longer transition needs attention.
_CHANGES_OVER: Final = timedelta(minutes=2)
# Rows that were dropped are gone: the alert lasts until none was dropped for this time.
_LATE_FOR: Final = timedelta(minutes=15)
_WORKS: Final = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING)
# A job that needs longer to read what is unread is behind.
_BEHIND_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Records per second of a job; None: not measured yet."""

    published: float | None = None  # records that it publishes
    read: float | None = None  # records that it reads
    dead_letters: float | None = None  # records that it publishes as dead letters
    unread: float | None = None  # by which its unread records increase
    measured_s: float = 0.0  # the seconds that `read` and `unread` are of


def unread_of(job: JobRow) -> int | None:
    """Return the unread records of a job's sources; None: not reported yet."""
    return lag_of_job(query.lag for query in job.figures.queries.values())


def line_of(job: JobRow, facts: Facts, estimates: Estimates, rates: Rates) -> Line:
    """Return the row of a job; `rates` are its rates of the last seconds."""
    seats = _seats(job, facts)
    doubts = _doubts(job, facts)
    lag = unread_of(job) if job.state == JobState.RUNNING else None
    behind = _behind(job, lag, rates)
    dead_letters = ["it has published dead letters in the last minutes"] if rates.dead_letters else []
    weak = (*doubts, *([behind] if behind else []), *dead_letters, *_unguarded(job, seats, facts))
    stall = stall_of(job, facts)
    first = computes_first_epoch(job) is not None
    recovery = facts.recoveries.get(job.id)
    proof = facts.verifications.get(job.id)
    return Line(
        id=job.id,
        name=job.name,
        created_by=job.created_by,
        state=job.state,
        since=job.state_since,
        health=_health(job, weak, stall, seats, facts.at, first=first),
        seats=tuple(seats),
        weak=weak,
        failure=job.failure.what if job.failure is not None else None,
        hint=job.failure.hint if job.failure is not None else "",
        last=_last(recovery) if recovery is not None else None,
        restarts=job.restarts,
        lag=lag,
        unmeasured=behind is None,
        out_per_s=rates.published if job.state == JobState.RUNNING else None,
        exact=not doubts,
        alone=job.state == JobState.RUNNING and _wanted(job) == 0,
        stall=stall,
        forecast=forecast_of(job, facts, estimates),
        proof=Proof(proof.at, proof.clean, proof.contradicted) if proof is not None else None,
        epochs=_epochs(job),
        dead_letters=bool(rates.dead_letters),
        first=first,
        late=_late(job, facts.at),
    )


_ORDER: Final = {"bad": 0, "busy": 1, "weak": 2, "good": 3, "idle": 4}


def attention(line: Line) -> tuple[int, str]:
    """Return the sort key of a row: jobs that need attention first, jobs that need no driver last."""
    return (_ORDER[line.health] if line.health in ("bad", "busy") else 2 if line.health != "idle" else 3, line.name)


def dependencies_of(jobs: Iterable[JobRow]) -> Dependencies:
    """Return the systems on which jobs depend, as the drivers of running jobs report them."""
    reports = {job.name: job.figures for job in jobs if job.state == JobState.RUNNING}
    kafka = {name: figures.kafka for name, figures in reports.items() if figures.kafka is not None}
    return Dependencies(
        drivers=len(kafka),
        brokers=min((seen.brokers for seen in kafka.values()), default=None),
        silent=tuple(sorted(name for name, seen in kafka.items() if seen.silent_since is not None)),
        waiting=tuple(sorted(name for name, figures in reports.items() if figures.waiting is not None)),
        under_replicated=sum(seen.under_replicated for seen in kafka.values()),
        open_transactions=len({topic for figures in reports.values() for topic in figures.open_transactions}),
    )


def _epochs(job: JobRow) -> tuple[tuple[str, int], ...]:
    return tuple((name, query.epoch) for name, query in job.figures.queries.items())


def _behind(job: JobRow, lag: int | None, rates: Rates) -> str | None:
    """Return the reason of a job that needs minutes to read what is unread, or reads none of it while more records
    arrive.

    Empty: it needs less. None: it has unread records, and how fast it reads was not measured for long enough.
    """
    if not lag:
        return ""
    queries = job.figures.queries.values()
    longest_ms = max((query.paced_ms(job.spec) + query.slow_epoch_ms for query in queries), default=0.0)
    limit_s = max(_BEHIND_S, 3 * longest_ms / 1000)
    if not rates.read:
        # A job reads nothing while it computes an epoch, or waits for the next one.
        if rates.read is None or rates.unread is None or rates.measured_s < limit_s:
            return None
        return "its unread records increase, and it has read none in the last minute" if rates.unread else ""
    if lag / rates.read <= limit_s:
        return ""
    # In whole minutes: a reason that changes each second would be sent each second.
    minutes = int(lag / rates.read // 60)
    return f"its unread records take more than {duration(60_000 * minutes)} at its present rate"


def _seats(job: JobRow, facts: Facts) -> list[Seat]:
    seats = []
    if (
        job.run is not None
        and job.run in facts.drivers
        and job.state in (*_WORKS, JobState.STOPPING, JobState.CANCELLING)
    ):
        host, state = facts.drivers[job.run]
        seats.append(Seat(host, "driver", state))
    seats += [Seat(standby.host, "standby", standby.state) for standby in facts.standbys.get(job.id, [])]
    unreachable = facts.disconnected | facts.lost
    return [Seat(seat.host, seat.role, DISCONNECTED) if seat.host in unreachable else seat for seat in seats]


def _late(job: JobRow, at: datetime) -> Late | None:
    """Return the late rows of a job whose queries dropped some in the last minutes."""
    queries = job.figures.queries.values()
    newest = max((query.late_at for query in queries if query.late_at is not None), default=None)
    if newest is None or at - newest > _LATE_FOR:
        return None
    return Late(newest, sum(query.late_rows for query in queries))


def _last(row: RecoveryRow) -> Last:
    return Last(row.id, row.body.cause, row.started_at, row.body.downtime_ms, row.ended_at is None)


def _doubts(job: JobRow, facts: Facts) -> list[str]:
    """Reasons why records may be published twice, or differently in a replay."""
    # The running driver decides: its code may override the specification, which may also be of a later version.
    spec, figures = job.spec.spec, job.figures
    delivery = figures.delivery or {"": spec.delivery}
    reasons = []
    if "at-least-once" in delivery.values():
        sinks = ", ".join(sorted(sink for sink, mode in delivery.items() if sink and mode == "at-least-once"))
        reasons.append(f"delivers at least once{f' ({sinks})' if sinks else ''}, as configured")
    if (figures.sharing_depth or spec.sharing_depth) == "0":
        reasons.append("records no answers (sharingDepth 0): clock and service reads are not replayed")
    if facts.diverged.get(job.id):
        reasons.append(f"{facts.diverged[job.id]} lanes differed in a replay")
    proof = facts.verifications.get(job.id)
    if proof is not None and proof.contradicted:
        reasons.append("its output contradicts its causal log, as a verification found")
    return reasons


def _unguarded(job: JobRow, seats: list[Seat], facts: Facts) -> list[str]:
    """Reasons that leave the guarantee intact: records that may be deleted unread, or a slow recovery."""
    close = {topic: share for query in job.figures.queries.values() for topic, share in query.retention.items()}
    reasons = [
        f"{share} % of the records in {topic} are unread, and its retention deletes records: unread records may be lost"
        for topic, share in sorted(close.items())
    ]
    if job.state == JobState.RUNNING:
        reasons += [
            f"readers of {topic} wait for a long open transaction"
            for topic, since in sorted(job.figures.open_transactions.items())
            if facts.at - since > _STAYS_OPEN
        ]
        wanted = _wanted(job) or 0
        waiting = [seat for seat in seats if seat.role == "standby"]
        ready = sum(seat.state == StandbyState.READY for seat in waiting)
        if ready < wanted:
            reasons.append(f"{ready} of {wanted} standbys ready: a failure may lead to a cold restart")
        drivers = {seat.host for seat in seats if seat.role == "driver"}
        if wanted and ready and all(seat.host in drivers for seat in waiting):
            reasons.append("the standby is on the driver's host: a host failure takes both")
        if _wanted(job) is None and not facts.pool_available - drivers:
            reasons.append("no pool driver on another host: a failure leads to a cold restart")
    return reasons


def _wanted(job: JobRow) -> int | None:
    """Return the number of standbys that the specification requests; None: it uses the warm pool."""
    standby = job.spec.spec.standby
    return None if standby.mode == "pool" else standby.dedicated_replicas


def _health(
    job: JobRow, weak: tuple[str, ...], stall: Stall | None, seats: list[Seat], moment: datetime, *, first: bool
) -> Health:
    late = moment - job.state_since > _CHANGES_OVER
    if job.state == JobState.FAILED or stall is not None:
        return "bad"
    if job.state in (JobState.RECOVERING, JobState.STARTING, JobState.STOPPING, JobState.CANCELLING):
        return "bad" if late else "busy"
    if job.state == JobState.RUNNING:
        if not any(seat.role == "driver" and seat.state != DISCONNECTED for seat in seats):
            return "bad" if late else "busy"
        return "busy" if first else "weak" if weak else "good"
    if job.state in (JobState.CREATED, JobState.STOPPED) and job.desired_state == DesiredState.RUNNING:
        return "bad" if late or job.failure else "busy"
    return "idle"
