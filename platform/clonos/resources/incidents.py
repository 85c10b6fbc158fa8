"""Explains a recovery as an incident: a sentence, what was lost, how it compares with earlier ones, a post-mortem.

REST, the dashboard and `clonos recovery explain` take all these texts from here. The functions are pure: the control
plane reads the epochs and earlier recoveries (`clonos_api.store.incidents`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final, Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource
from clonos.resources.figures import age, clock, duration, number
from clonos.resources.jobs import QueryReturn, Recovery
from clonos.resources.recovery_descriptions import CAUSES, OUTCOMES, PHASES, PLANNED
from clonos.resources.verification import Verification

Kind = Literal["takeover", "cold restart", "query restart", "planned move", "rollback", "stopped agent"]
_KINDS: Final[dict[Kind, tuple[str, str]]] = {
    "takeover": ("takeover by a standby", "takeovers by a standby"),
    "cold restart": ("cold restart", "cold restarts"),
    "query restart": ("restart of a query", "restarts of a query"),
    "planned move": ("planned move", "planned moves"),
    "rollback": ("rollback", "rollbacks"),
    "stopped agent": ("stop of an agent", "stops of an agent"),
}
_KILLED: Final = re.compile(r"was killed by (SIG[A-Z0-9]+|signal \d+)")


class Loss(Resource):
    """What a recovery lost of a job's output, as far as the control plane knows."""

    verdict: Literal["nothing", "duplicates", "pending", "unknown"]
    """``nothing``; ``duplicates``: nothing was lost, but records may be published twice, as configured; ``pending``: no
    epoch has finished since the failure; ``unknown``: see `evidence`.
    """
    summary: str
    """The same as a clause."""
    records: int | None = None
    """Number of lost records; None: unknown."""
    epochs: int | None = None
    """Number of epochs with lost records; None: unknown."""
    evidence: list[str] = Field(default_factory=list)
    """How this is known, in sentences."""


class Comparison(Resource):
    """A recovery beside the job's earlier completed recoveries of the same kind."""

    kind: Kind
    """Kind of the recoveries that are compared."""
    earlier: int
    """Number of these; `median_ms`: their median downtime, None without any."""
    median_ms: float | None = None
    """Their median downtime in milliseconds."""
    rank: int | None = None
    """Position by downtime among them and this one, 1 for the shortest; None: this one has no downtime."""
    summary: str
    """The same in sentences."""


class ListedRecovery(Recovery):
    """A recovery in the list of all jobs."""

    job_name: str
    """Name of the job."""
    summary: str
    """What happened, as a sentence without a full stop."""


class Incident(ListedRecovery):
    """A recovery with its explanation."""

    at: Moment
    """Time of the explanation, up to which the duration of a recovery in progress counts."""
    silent_since: Moment | None = None
    """Begin of the time without output, of a recovery in progress; None: it has ended, or the old driver still
    publishes.
    """
    loss: Loss
    """What is lost or repeated: nothing, with proofs."""
    comparison: Comparison
    """The usual downtime of such a recovery; null: there were too few."""


@dataclass(frozen=True)
class QueryContinuity:
    """The epochs of a query on both sides of a failure."""

    query: str
    before: int | None
    """Newest epoch before it; None: none is stored."""
    after: int | None
    """First epoch after it; None: none has finished."""


def incident(
    recovery: Recovery, job_name: str, loss: Loss, comparison: Comparison, *, at: datetime, silent_since: datetime
) -> Incident:
    """Combine a recovery with its explanation.

    `silent_since` is the beginning of the time without output, of a recovery in progress; `at` the current time.
    """
    since = silent_since if is_silent(recovery) else None
    silent_for = age(since, at)
    fields = {name: getattr(recovery, name) for name in Recovery.model_fields}
    return Incident(
        **fields,
        job_name=job_name,
        at=at,
        silent_since=since,
        summary=sentence(recovery, job_name, silent_for=silent_for, loss=loss),
        loss=loss,
        comparison=comparison,
    )


def is_silent(recovery: Recovery) -> bool:
    """Whether a recovery is in progress and no driver publishes."""
    return recovery.ended_at is None and (recovery.cause not in PLANNED or recovery.generation is not None)


def sentence(recovery: Recovery, job_name: str = "", *, silent_for: str | None = None, loss: Loss | None = None) -> str:
    """Say what happened in a recovery, as a sentence without a full stop; empty or None arguments are left out.

    Returns:
        For instance ``fraud: the driver on host-1 was killed by SIGKILL; the standby on host-3 took over; no output
        for 800 ms; nothing was lost``.
    """
    clauses = [failed(recovery), _successor(recovery), _gap(recovery, silent_for)]
    if loss is not None and loss.verdict != "pending":
        clauses.append(loss.summary)
    return f"{job_name}: {'; '.join(clauses)}" if job_name else "; ".join(clauses)


def failed(recovery: Recovery) -> str:
    """Say what failed, as a clause."""
    host, failure = recovery.from_host, recovery.failure
    on_host = f" on {host}" if host else ""
    match recovery.cause:
        case "host-lost":
            alive = " although its driver worked" if recovery.alive_at is not None else ""
            return f"{host or 'the host'} was lost{alive}"
        case "restart":
            return f"a query{on_host} failed{f' ({failure.error})' if failure else ''}"
        case "move" | "upgrade":
            return f"the driver{on_host} handed over in a planned {recovery.cause}"
        case "rollback":
            return f"the new version{on_host} failed{f' ({failure.error})' if failure else ''}"
        case "shutdown":
            return f"the driver{on_host} was stopped with its agent"
        case "crash":
            killed = _KILLED.search(failure.what) if failure else None
            if killed:
                return f"the driver{on_host} was killed by {killed[1]}"
            if failure and failure.error != "driver-crashed":
                return f"the driver{on_host} failed ({failure.error})"
            return f"the driver{on_host} crashed"
        case _:
            return f"generation {recovery.failed_generation}{on_host} ended"


def _successor(recovery: Recovery) -> str:
    host = recovery.to_host
    if recovery.cause == "restart":
        return "the driver restarts its queries" if recovery.ended_at is None else "the driver restarted its queries"
    if recovery.generation is None and recovery.ended_at is not None:
        return "no driver took over"
    if host is None:
        return "a new driver is being placed"
    place = "the same host" if host == recovery.from_host else host
    driver = f"the standby on {place}" if recovery.standby else f"a new driver on {place}"
    return f"{driver} {'starts to claim the causal log' if recovery.generation is None else 'took over'}"


def _gap(recovery: Recovery, silent_for: str | None) -> str:
    if recovery.ended_at is None:
        if not is_silent(recovery):
            return "the old driver still publishes"
        return f"no output for {silent_for} so far" if silent_for else "no output yet"
    if recovery.outcome == "IDLE" and recovery.downtime_ms is not None:
        return (
            f"ready to read after {duration(recovery.downtime_ms)}, without unread records; {_first_record(recovery)}"
        )
    if recovery.downtime_ms is not None:
        return f"no output for {duration(recovery.downtime_ms)}"
    return OUTCOMES.get(recovery.outcome or "", "it ended without an epoch")


def downtime_of(returned: QueryReturn) -> str:
    """Return the downtime of one query, such as ``350 ms`` or, until it was ready to read, ``350 ms, no input``."""
    text = duration(returned.downtime_ms)
    if returned.idle or text is None:
        return f"{text}, no input" if text else "no input"
    return text


def _first_record(recovery: Recovery) -> str:
    """When input came after a recovery that ended without any, as a clause."""
    if recovery.first_record_at is None or recovery.ended_at is None:
        return "no record has come since"
    later_ms = 1000 * max(0.0, (recovery.first_record_at - recovery.ended_at).total_seconds())
    return f"the first record was published {duration(later_ms)} later"


def loss_of(
    recovery: Recovery,
    queries: Sequence[QueryContinuity],
    *,
    exactly_once: bool,
    diverged: int,
    verification: Verification | None = None,
) -> Loss:
    """Say what a recovery lost, from the epochs of each query on both sides of the failure.

    `exactly_once`: all sinks deliver so, with a causal log. `diverged` is the number of lanes that differed in replays
    of this job, `verification` the newest one of its output.
    """
    evidence = [_continuity(query) for query in queries] + list(_replay(recovery))
    if verification is not None:
        evidence += _verified(queries, verification)
        if verification.contradicted:
            return Loss(verdict="unknown", summary="the output contradicts the causal log", evidence=evidence)
    finished = [query for query in queries if query.after is not None]
    missing = sum(_missing(query) for query in queries)
    if diverged:
        evidence.append(f"{_count(diverged, 'lane')} of replays of this job differed from what was published.")
        return Loss(verdict="unknown", summary="a replay differed from what was published", evidence=evidence)
    if missing:
        what = f"{_count(missing, 'epoch')} {'was' if missing == 1 else 'were'} not reported"
        return Loss(verdict="unknown", summary=what, evidence=evidence)
    if recovery.waits:
        evidence.append("The causal log keeps their epochs in doubt until their replay.")
        waits = f"{', '.join(recovery.waits)} {'has' if len(recovery.waits) == 1 else 'have'}"
        return Loss(verdict="pending", summary=f"{waits} not finished an epoch since the failure", evidence=evidence)
    if not finished and recovery.outcome == "IDLE" and recovery.returned:
        evidence.append("The new driver reported that no query has unread records: no epoch is in doubt.")
        return Loss(verdict="nothing", summary="nothing was lost", records=0, epochs=0, evidence=evidence)
    if not finished and recovery.outcome != "COMPLETED":
        evidence.append("Published records are unchanged. The causal log keeps the epoch in doubt until its replay.")
        return Loss(verdict="pending", summary="no epoch has finished since the failure", evidence=evidence)
    if not finished or any(query.before is None and query.after for query in queries):
        evidence.append("The epochs before the failure are no longer stored.")
        return Loss(verdict="unknown", summary="its epochs are no longer stored", evidence=evidence)
    if not exactly_once:
        evidence.append("The job is configured to deliver at least once, or without a causal log.")
        what = "nothing was lost, but records may be published twice"
        return Loss(verdict="duplicates", summary=what, records=0, epochs=0, evidence=evidence)
    return Loss(verdict="nothing", summary="nothing was lost", records=0, epochs=0, evidence=evidence)


def _missing(query: QueryContinuity) -> int:
    """Count the epochs between those on both sides of the failure."""
    return 0 if query.before is None or query.after is None else max(0, query.after - query.before - 1)


def _continuity(query: QueryContinuity) -> str:
    before, after, name = query.before, query.after, query.query
    if after is None:
        return f"{name}: no epoch has finished since the failure; the newest one is epoch {before}."
    if before is None:
        return f"{name}: epoch {after} is the first one that is stored."
    if _missing(query):
        gap = f"epoch {after - 1}" if after == before + 2 else f"epochs {before + 1} to {after - 1}"
        return f"{name}: the control plane has no report of {gap}."
    return f"{name}: epoch {before} before the failure and epoch {after} after it are consecutive."


def _verified(queries: Sequence[QueryContinuity], verification: Verification) -> Iterator[str]:
    if verification.contradicted:
        yield f"A verification at {clock(verification.at)} found that the output contradicts the causal log."
        return
    for query in queries:
        first, last = verification.verified.get(query.query, (0, -1))
        if query.after is not None and first <= query.after <= last:
            read = f"A verification at {clock(verification.at)} read the output of {query.query}"
            yield f"{read}: epochs {first} to {last} were published once and completely."


def _replay(recovery: Recovery) -> Iterator[str]:
    if recovery.generation is not None and recovery.cause != "restart":
        yield f"Generation {recovery.failed_generation} is fenced: it cannot publish any more."
    if recovery.outcome != "COMPLETED":
        return
    if not recovery.replayed_records and not recovery.skipped_lanes:
        yield "No epoch was in doubt: the job continued after the last committed epoch."
        return
    replayed = f"The epoch in doubt ({_count(recovery.replayed_records, 'record')}) was replayed"
    if recovery.replayed_determinants:
        replayed += f" with {_count(recovery.replayed_determinants, 'recorded determinant')}"
    yield f"{replayed}."
    if recovery.skipped_lanes:
        lanes, verb = _count(recovery.skipped_lanes, "lane"), "was" if recovery.skipped_lanes == 1 else "were"
        yield f"{lanes} of it {verb} already published, as markers prove, and {verb} skipped."


def kind_of(recovery: Recovery) -> Kind:
    """Return the kind of a recovery: only recoveries of one kind are compared."""
    if recovery.cause in PLANNED:
        return "planned move"
    by_cause: dict[str, Kind] = {"restart": "query restart", "rollback": "rollback", "shutdown": "stopped agent"}
    if recovery.cause in by_cause:
        return by_cause[recovery.cause]
    return "takeover" if recovery.standby else "cold restart"


def compare(recovery: Recovery, earlier: Sequence[Recovery]) -> Comparison:
    """Compare a recovery with the job's earlier ones; only completed ones of the same kind count."""
    kind = kind_of(recovery)
    singular, plural = _KINDS[kind]
    if recovery.outcome == "IDLE":
        what = (
            "It had no unread records: its time until it was ready to read is not compared with times without output."
        )
        return Comparison(kind=kind, earlier=0, summary=what)
    sample = [
        other.downtime_ms
        for other in earlier
        if other.outcome == "COMPLETED" and other.downtime_ms is not None and kind_of(other) == kind
    ]
    if not sample:
        first = f"The job had no completed {singular} before, so there is nothing to compare with."
        rank = None if recovery.downtime_ms is None else 1
        return Comparison(kind=kind, earlier=0, rank=rank, summary=first)
    middle, total = median(sample), len(sample) + 1
    if len(sample) == 1:
        before = f"The job's only earlier {singular} took {duration(middle)}."
    else:
        before = f"The job's {number(len(sample))} earlier {plural} had a median downtime of {duration(middle)}."
    if recovery.downtime_ms is None:
        return Comparison(kind=kind, earlier=len(sample), median_ms=middle, summary=before)
    rank = 1 + sum(downtime_ms < recovery.downtime_ms for downtime_ms in sample)
    place = "the shortest" if rank == 1 else "the longest" if rank == total else f"number {rank}, from the shortest,"
    text = f"{before} This one took {duration(recovery.downtime_ms)}: {place} of {total}."
    return Comparison(kind=kind, earlier=len(sample), median_ms=middle, rank=rank, summary=text)


def post_mortem(incident: Incident) -> str:
    """Write a post-mortem of an incident as Markdown: summary, timeline in UTC, impact, cause, actions, numbers."""
    parts = [
        f"# {incident.job_name}: recovery at {clock(incident.started_at)}",
        "## Summary",
        f"{_capital(incident.summary.removeprefix(f'{incident.job_name}: '))}.",
        "## Timeline (UTC)",
        _table(("time", "what"), ((_instant(at), what) for at, what in timeline(incident))),
        "## Impact",
        "\n".join(f"- {line}" for line in _impact(incident)),
        "## Cause",
        _cause(incident),
        "## What happened automatically",
        "\n".join(f"{position}. {line}" for position, line in enumerate(_actions(incident), 1)),
        "## Numbers",
        _table(("figure", "value"), _numbers(incident)),
        incident.comparison.summary,
    ]
    return "\n\n".join(parts) + "\n"


def timeline(incident: Recovery) -> list[tuple[datetime, str]]:
    """Return the failure, and the end of each phase, as sentences with their times."""
    steps = [(incident.started_at, f"{_capital(failed(incident))}.")]
    for phase in incident.phases:
        what = PHASES.get(phase.name, f"until the phase {phase.name} ended").removeprefix("until ")
        steps.append((phase.started_at + timedelta(milliseconds=phase.duration_ms), f"{_capital(what)}."))
    if incident.ended_at is not None and incident.outcome not in (None, "COMPLETED"):
        steps.append((incident.ended_at, f"The recovery ended: {OUTCOMES.get(incident.outcome, incident.outcome)}."))
    return steps


def _impact(incident: Incident) -> Iterator[str]:
    if incident.outcome == "IDLE" and incident.downtime_ms is not None:
        yield f"The job was {_gap(incident, None)}."
    elif incident.downtime_ms is not None:
        yield f"Readers got no output for {duration(incident.downtime_ms)}."
    else:
        yield f"Readers: {_gap(incident, age(incident.silent_since, incident.at))}."
    loss = incident.loss
    counts = f" ({loss.records} records, {loss.epochs} epochs)" if loss.records is not None else ""
    yield f"Lost: {loss.summary}{counts}."
    yield from loss.evidence
    yield f"To check the published records against the markers: `clonos verify {incident.job_name}`."


def _cause(incident: Incident) -> str:
    text = f"{_capital(CAUSES.get(incident.cause, incident.cause))}."
    if incident.failure is None:
        return text
    # In a fence, so that no text of a driver is Markdown; one line, so that none ends the fence.
    return f"{text}\n\n~~~text\n{incident.failure.error}: {' '.join(incident.failure.what.split())}\n~~~"


def _actions(incident: Incident) -> Iterator[str]:
    took = {phase.name: duration(phase.duration_ms) for phase in incident.phases}
    if "detect" in took:
        yield f"The failure was detected after {took['detect']}."
    yield f"{_capital(_successor(incident))}."
    if incident.generation is not None:
        yield f"Generation {incident.generation} claimed the causal log."
    yield from _replay(incident)


def _numbers(incident: Incident) -> Iterator[tuple[str, str]]:
    idle = incident.outcome == "IDLE"
    yield "until ready to read" if idle else "downtime of readers", duration(incident.downtime_ms) or "–"
    if idle:
        yield "first record after it", clock(incident.first_record_at) or "none yet"
    if len(incident.returned) > 1:
        for query, returned in sorted(incident.returned.items()):
            yield f"downtime of {query}", downtime_of(returned)
    yield "generation", f"{incident.failed_generation} → {incident.generation or '…'}"
    yield "hosts", f"{incident.from_host} → {incident.to_host or '…'}"
    yield "replayed records", number(incident.replayed_records) or "0"
    yield "replayed determinants", number(incident.replayed_determinants) or "0"
    yield "skipped lanes", number(incident.skipped_lanes) or "0"
    for phase in incident.phases:
        yield f"phase {phase.name}", duration(phase.duration_ms) or "–"
    yield "recovery", incident.id


def _table(head: tuple[str, str], rows: Iterator[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {left} | {right.replace('|', chr(92) + '|')} |" for left, right in lines)


def _instant(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _count(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
