"""Translates the events of a run into facts about its job: a pure function of the event lines.

A fact is one change of the job that its events prove: an event itself (`clonos.telemetry.driver_events`), or what
several events show together, such as `Claimed` or `EpochDone`. The same lines always result in the same facts. A push
may repeat lines and may end after any line; `IngestState` carries the state to the next push.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar

import msgspec

from clonos.errors import SpecError
from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.checkpoints import Span as EpochSpan
from clonos.resources.failures import reported_failure
from clonos.resources.jobs import Failure
from clonos.telemetry import driver_events as reported
from clonos.telemetry.driver_events import DriverEvent, Graph
from clonos.telemetry.redaction import redact_text
from clonos_api.store.columns import IngestState, SeenExecutors

# Job code can write events, and each of these is stored and shown: longer lists and texts are cut.
_LONGEST: Final = 200
_UI: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/-]{1,300}")
_LOG: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/?&=%+~,-]{1,500}")
_EXECUTORS: Final = 20
MOST_TOPICS: Final = 100
_OPERATORS: Final = 100
_TOPIC: Final = 250  # characters; a topic's name has at most 249
_QUERIES: Final = 200
_WHAT: Final = 500
_T = TypeVar("_T")


@dataclass(frozen=True)
class Claimed:
    """Fact: a driver has claimed the causal log."""

    at: datetime
    lineage: int
    generation: int
    attempt: int  # as in `IngestState`
    claim_id: str
    # reason of the claim; None for the first claim of the run, whose reason its events do not show
    cause: Literal["start", "restart", "crash"] | None
    failed_at: datetime | None  # end of the previous claim, if it failed
    # sink → delivery mode; empty for drivers of earlier versions of Clonos
    delivery: dict[str, str] = field(default_factory=dict)
    # replicas that acknowledge a determinant: ``0``, ``1`` or ``full``; None for drivers of earlier versions of Clonos
    sharing_depth: str | None = None
    graph: Graph | None = None  # None for drivers of earlier versions of Clonos


@dataclass(frozen=True)
class EpochDone:
    """Fact: an epoch has finished."""

    lineage: int
    checkpoint: EpochCheckpoint
    figures: dict[str, int]  # counts of the epoch, such as ``records_in`` (`clonos.telemetry.driver_events.FIGURES`)
    # `IngestState.marks` of the newest claim, if this is the first epoch after it
    marks: dict[str, datetime] | None = None
    operators: dict[str, reported.OperatorCounts] = field(default_factory=dict)
    # class of a latency (`clonos_api.store.series`) → records, from their timestamp in Kafka to the end of the epoch
    latencies: dict[str, int] = field(default_factory=dict)
    first: bool = False  # whether the query has returned with this epoch
    waiting: tuple[str, ...] = ()  # if `first`: the queries that have not returned after it

    @property
    def at(self) -> datetime:
        """The end of the epoch."""
        return self.checkpoint.completed_at

    @property
    def live(self) -> bool:
        """Whether the figures are those of a second of a live epoch."""
        return self.checkpoint.live

    @property
    def replay(self) -> bool:
        """Whether the epoch is a replay."""
        return self.checkpoint.trigger == "REPLAY"


@dataclass(frozen=True)
class ErrorReported:
    """Fact: a driver has reported an error."""

    at: datetime
    generation: int
    failure: Failure
    again: bool  # whether the process restarts its queries itself


@dataclass(frozen=True)
class Ended:
    """Fact: a driver has reported its end, and so the end of its generation."""

    at: datetime
    generation: int


@dataclass(frozen=True)
class Fenced:
    """Fact: a driver has reported that a newer generation superseded it, so it was alive at that time."""

    at: datetime
    generation: int


@dataclass(frozen=True)
class NoInput:
    """Fact: a query has returned after a claim: it is ready to read, and has no unread records."""

    at: datetime  # when it was ready; of older drivers, when they reported no unread records
    query: str
    generation: int
    marks: dict[str, datetime]  # `IngestState.marks` of the claim
    waiting: tuple[str, ...] = ()  # as in `EpochDone`


@dataclass(frozen=True)
class WaitsFor:
    """Fact: a driver waits for a system that is away, or no longer does."""

    generation: int
    what: str  # empty: it does not wait
    since: datetime


@dataclass(frozen=True)
class Unreadable:
    """Fact: a line is not an event, for example because the driver was killed while it wrote the line."""


Fact = (
    Claimed
    | EpochDone
    | ErrorReported
    | Ended
    | Fenced
    | NoInput
    | WaitsFor
    | Unreadable
    | reported.Lag
    | reported.Mode
    | reported.Retention
    | reported.OpenTransactions
    | reported.Kafka
    | reported.Truncated
    | reported.Following
    | reported.Rehearsed
)


def read_lines(
    have: int, offset: int, lines: Sequence[str], *, gap: bool = False
) -> tuple[list[DriverEvent | None], int]:
    """Parse the pushed lines of an event file that are not ingested yet.

    Args:
        have: Number of bytes that are already ingested.
        offset: Byte offset of the first line.
        lines: Complete lines, without their line ends; each line end is one byte.
        gap: Whether the bytes between `have` and `offset` are lost.

    Returns:
        The events, None for an unreadable line, and the new number of ingested bytes.

    Raises:
        SpecError: Byte `have` is not at the beginning of a line, so the lines are from another file.
    """
    events: list[DriverEvent | None] = []
    if offset > have:
        if not gap:
            return events, have  # bytes are missing: the response asks for them
        have = offset
    for line in lines:
        end = offset + len(line.encode("utf-8", "surrogatepass")) + 1
        if offset >= have:
            events.append(_parsed(line))
        elif end > have:
            raise SpecError(
                f"Byte {have} is in the middle of a line.",
                kept="earlier events remain.",
                hint="send the run's own event file, in complete lines.",
            )
        offset = end
    return events, max(have, offset)


def _parsed(line: str) -> DriverEvent | None:
    try:
        return reported.from_line(line)
    except ValueError:
        return None


def fold(state: IngestState, events: Iterable[DriverEvent | None]) -> list[Fact]:
    """Translate events into facts about their job, in order, and update `state`; None is an unreadable line."""
    facts: list[Fact] = []
    for event in events:
        if event is None:
            facts.append(Unreadable())
            continue
        facts.extend(_facts(state, event))
        state.last_at = max(state.last_at, event.at)
    return facts


def _facts(state: IngestState, event: DriverEvent) -> list[Fact]:
    at = event.at
    match event:
        case reported.State():
            waited = state.state == "WAITING" and event.state != "WAITING"
            _enter(state, event)
            return [WaitsFor(event.generation, "", moment(at))] if waited else []
        case reported.Waiting():
            return [WaitsFor(event.generation, redact_text(event.what)[:_WHAT], moment(at))]
        case reported.Claimed():
            return [_claimed(state, event)]
        case reported.Epoch():
            return [_epoch(state, event)]
        case reported.Restart():
            if state.waiting or "claimed" not in state.marks:
                state.marks.setdefault("failed", at)  # the previous failure is still open
            else:
                state.marks = {"failed": at}
            return [_error_reported(event, again=True)]
        case reported.Failed() | reported.Superseded():
            state.end = "failed"
            facts: list[Fact] = [_error_reported(event, again=False), Ended(moment(at), event.generation)]
            return facts if isinstance(event, reported.Failed) else [*facts, Fenced(moment(at), event.generation)]
        case reported.Stopped() | reported.Finished():
            state.end = "clean"
            return [Ended(moment(at), event.generation)]
        case reported.Lag():
            event.topics, event.partitions = _first(event.topics), _first(event.partitions)
            query = event.query
            if event.topics and not any(event.topics.values()):
                state.empty = [*({*state.empty, query} if len(state.empty) < _QUERIES else state.empty)]
            else:
                state.empty = [name for name in state.empty if name != query]
            # The driver sends it in a thread of its own, perhaps with the generation before its claim.
            event.generation = state.generation
            return [event, *_no_input(state, query, at)]
        case reported.Ready():
            if len(state.ready) < _QUERIES:
                state.ready[event.query] = at
            return [*_no_input(state, event.query, at)]
        case reported.Mode():
            event.because = event.because[:_WHAT]
            return [event]
        case reported.Retention():
            event.topics = _first(event.topics)
            return [event]
        case reported.OpenTransactions():
            event.topics = _first(event.topics)
            return [event]
        case reported.Kafka() | reported.Following() | reported.Truncated() | reported.Rehearsed():
            return [event]
        case reported.Session():
            state.application_id = (event.application_id or "")[:_LONGEST]
            # Pages link to it, and a job's code can write events.
            state.spark_ui = _linked(event.ui, _UI)
            state.executors = None
        case reported.Executors():
            listed = [_executor(executor) for executor in event.executors[:_EXECUTORS]]
            state.executors = SeenExecutors(event.wanted, event.registered, listed)
    return []


def _first(topics: dict[str, _T]) -> dict[str, _T]:
    """Return the first `MOST_TOPICS` topics."""
    return {name[:_TOPIC]: value for name, value in itertools.islice(topics.items(), MOST_TOPICS)}


def _linked(address: str | None, form: re.Pattern[str]) -> str:
    return address if address and form.fullmatch(address) else ""


def _executor(executor: reported.Executor) -> reported.Executor:
    logs = {"stdout": _linked(executor.stdout, _LOG), "stderr": _linked(executor.stderr, _LOG)}
    return msgspec.structs.replace(executor, **logs)


def _enter(state: IngestState, event: reported.State) -> None:
    if event.state == "CLAIMING":
        state.again = state.state in ("RESTARTING", "WAITING")
        if not state.again:
            # a new process. A previous process that reported no end failed at its last event.
            state.attempt += 1
            failed = state.generation and state.end != "clean"
            state.marks = {"failed": state.last_at} if failed else {}
            state.end = ""
        state.marks["claiming"] = event.at
    elif event.state == "RUNNING":
        state.marks["running"] = event.at
    state.state = event.state[:_LONGEST]


def _claimed(state: IngestState, event: reported.Claimed) -> Claimed:
    before = state.generation
    state.generation, state.lineage = event.generation, event.lineage
    state.marks["claimed"] = event.at
    state.waiting = True
    graph = None if event.queries is None else dict(itertools.islice(event.queries.items(), _QUERIES))
    state.queries, state.returned = sorted(graph or ()), []
    state.reports_ready, state.ready, state.empty = event.reports_ready, {}, []
    state.code = event.code[:64]
    failed_at = state.marks.get("failed")
    cause: Literal["start", "restart", "crash"] | None = None
    if before:
        cause = "restart" if state.again else "crash" if failed_at is not None else "start"
    return Claimed(
        moment(event.at),
        state.lineage,
        state.generation,
        max(state.attempt, 1),
        event.claim_id[:64],
        cause,
        moment(failed_at) if failed_at is not None else None,
        {sink: mode[:_LONGEST] for sink, mode in event.delivery.items()},
        event.sharing_depth[:_LONGEST] if event.sharing_depth is not None else None,
        graph,
    )


def _epoch(state: IngestState, event: reported.Epoch) -> EpochDone:
    figures = {name: int(getattr(event, name)) for name in reported.FIGURES}
    operators = {name[:_LONGEST]: counts for name, counts in event.operators.items()}
    recorded = ((name, counts.recorded) for name, counts in operators.items() if counts.recorded)
    checkpoint = EpochCheckpoint(
        epoch=event.epoch,
        query=event.query,
        status="COMPLETED",
        trigger="REPLAY" if event.replay else "PERIODIC",
        generation=event.generation,
        completed_at=moment(event.at),
        duration_ms=event.duration_ms,
        records_in=event.records_in,
        records_out=event.records_out,
        published_lanes=event.published_lanes,
        offsets=event.offsets,
        spans=[EpochSpan(name=span.name, duration_ms=span.duration_ms) for span in event.spans],
        topics_in=_first(event.topics_in),
        dead_letters=event.dead_letters,
        recorded=dict(itertools.islice(recorded, _OPERATORS)),
        live=event.live,
        steps=event.steps,
    )
    marks = {name: moment(at) for name, at in state.marks.items()} if state.waiting else None
    state.waiting = False
    first = _has_returned(state, checkpoint.query)
    waiting = _not_returned(state) if first else ()
    latencies = {str(number): records for number, records in event.latencies.items()}
    return EpochDone(state.lineage, checkpoint, figures, marks, operators, latencies, first, waiting)


def _no_input(state: IngestState, query: str, at: float) -> list[NoInput]:
    """Return the return of a query without unread records, once it is ready to read."""
    if query not in state.empty or (state.reports_ready and query not in state.ready):
        return []
    if not _has_returned(state, query):
        return []
    marks = {name: moment(mark) for name, mark in state.marks.items()}
    ready = moment(state.ready.get(query, at))
    return [NoInput(ready, query, state.generation, marks, _not_returned(state))]


def _has_returned(state: IngestState, query: str) -> bool:
    """Record that a query has returned since the newest claim; returns whether that is new."""
    if query in state.returned or len(state.returned) >= _QUERIES:
        return False
    state.returned.append(query)
    return True


def _not_returned(state: IngestState) -> tuple[str, ...]:
    return tuple(query for query in state.queries if query not in state.returned)


def _error_reported(event: reported.Report, *, again: bool) -> ErrorReported:
    return ErrorReported(moment(event.at), event.generation, reported_failure(event), again)


def moment(at: float) -> datetime:
    """Return a time of an event (seconds since 1970)."""
    return datetime.fromtimestamp(at, UTC)
