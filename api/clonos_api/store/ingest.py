"""Translates the event lines of a run into facts about its job: a pure function of the lines.

A fact is one change of the job that its event lines prove, such as `Claimed` or `EpochFinished`. The same lines always
result in the same facts. `docs/observing.md` lists the events. A push may repeat lines and may
end after any line; `IngestState` carries the state to the next push.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from clonos.errors import SpecError
from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.failures import kind_of
from clonos.resources.jobs import Failure, OperatorMetrics
from clonos.telemetry.events import FIGURES
from clonos.telemetry.redaction import redact_text
from clonos_api.store.reported_graph import ReportedGraph, parse

Event = dict[str, Any]
# Limits of columns and sums: a corrupt line must not stop the ingestion of the lines behind it.
_INTEGER: Final = 2**31
_BIG: Final = 2**53
_FIGURE: Final = 2**40
_LONGEST: Final = 200
_UI: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/-]{1,300}")
_LOG: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/?&=%+~,-]{1,500}")
_EXECUTORS: Final = 20
MOST_TOPICS: Final = 100
_RECORDED: Final = 100  # operators of an epoch
_TOPIC: Final = 250  # characters; a topic's name has at most 249
_CLASSES: Final = 200  # more than the latencies of any record have
_STACK: Final = 10_000
_LONGEST_EPOCH_S: Final = 86_400.0
_RETURNED: Final = 200  # queries, as many as `clonos_api.store.reported_graph` accepts
_WHAT: Final = 500


@dataclass
class IngestState:
    """The state that the ingestion of a run's events carries from one push to the next."""

    state: str = ""  # of the driver
    attempt: int = 0  # number of the run's driver processes that began a claim
    again: bool = False  # whether the current claim follows a restart of queries in the same process
    lineage: int = 0  # lineage of the newest claim
    generation: int = 0  # generation of the newest claim
    # times of the steps of the current claim, in seconds since 1970: failed, claiming, claimed, running
    marks: dict[str, float] = field(default_factory=dict)
    waiting: bool = False  # whether no epoch has finished since the newest claim
    queries: list[str] = field(default_factory=list)  # of the newest claim; empty: it has named none
    returned: list[str] = field(default_factory=list)  # those that have returned since that claim
    reports_ready: bool = False  # whether the driver reports when its queries are ready to read
    ready: dict[str, float] = field(default_factory=dict)  # query → time when it was, in seconds since 1970
    empty: list[str] = field(default_factory=list)  # the queries without unread records, by their newest report
    code: str = ""  # hash of the code of the newest claim's driver; empty: it has named none
    last_at: float = 0.0  # time of the newest event, in seconds since 1970
    end: str = ""  # ``clean`` or ``failed``; empty while the driver runs, or if its end is unknown
    application_id: str = ""  # of the newest driver's Spark application; empty: it has reported none
    spark_ui: str = ""  # address of that application's web UI; empty: it has none
    executors: dict[str, Any] | None = None  # that application's, as `Executors`; None: it has reported none


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
    graph: ReportedGraph | None = None  # None for drivers of earlier versions of Clonos


@dataclass(frozen=True)
class EpochDone:
    """Fact: an epoch has finished."""

    lineage: int
    checkpoint: EpochCheckpoint
    figures: dict[str, int]  # counts of the epoch, such as ``records_in`` (`clonos.telemetry.events.FIGURES`)
    # `IngestState.marks` of the newest claim, if this is the first epoch after it
    marks: dict[str, datetime] | None = None
    # operator → field of `OperatorMetrics` → its value in this epoch
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    # class of a latency (`clonos_api.store.series`) → records, from their timestamp in Kafka to the end of the epoch
    latencies: dict[str, int] = field(default_factory=dict)
    first: bool = False  # whether the query has returned with this epoch
    waiting: tuple[str, ...] = ()  # if `first`: the queries that have not returned after it

    @property
    def at(self) -> datetime:
        """The end of the epoch."""
        return self.checkpoint.completed_at

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
class Lag:
    """Fact: the number of unread records of a query."""

    at: datetime
    query: str
    topics: dict[str, int]  # topic → unread records
    partitions: dict[str, dict[str, int]]  # topic → partition → unread records
    generation: int = 0


@dataclass(frozen=True)
class NoInput:
    """Fact: a query has returned after a claim: it is ready to read, and has no unread records."""

    at: datetime  # when it was ready; of older drivers, when they reported no unread records
    query: str
    generation: int
    marks: dict[str, datetime]  # `IngestState.marks` of the claim
    waiting: tuple[str, ...] = ()  # as in `EpochDone`


@dataclass(frozen=True)
class Retention:
    """Fact: a query lags so far behind that retention may soon delete records before it reads them.

    `topics` are those where most of the retained records of a partition are unread.
    """

    query: str
    topics: dict[str, int]  # topic → largest unread share of a partition's records, in percent


@dataclass(frozen=True)
class OpenTransactions:
    """Fact: output topics whose readers wait for an open transaction: topic → time since when."""

    generation: int
    topics: dict[str, datetime]


@dataclass(frozen=True)
class KafkaSeen:
    """Fact: what a driver sees of its Kafka cluster."""

    generation: int
    brokers: int
    under_replicated: int  # partitions of the job's causal log without all of their replicas in sync
    silent_since: datetime | None  # None: Kafka answers


@dataclass(frozen=True)
class WaitsFor:
    """Fact: a driver waits for a system that is away, or no longer does."""

    generation: int
    what: str  # empty: it does not wait
    since: datetime


@dataclass(frozen=True)
class Truncated:
    """Fact: a driver has truncated the causal log."""

    at: datetime


@dataclass(frozen=True)
class Following:
    """Fact: how far a standby has read the causal log: query → newest committed epoch."""

    epochs: dict[str, int]


@dataclass(frozen=True)
class Rehearsed:
    """Fact: how long a standby's shortest rehearsal of an epoch took, of its slowest query, in seconds."""

    epoch_s: float


@dataclass(frozen=True)
class Unreadable:
    """Fact: a line is not an event, for example because the driver was killed while it wrote the line."""


Fact = (
    Claimed
    | EpochDone
    | ErrorReported
    | Ended
    | Fenced
    | Lag
    | NoInput
    | Retention
    | OpenTransactions
    | KafkaSeen
    | WaitsFor
    | Truncated
    | Following
    | Rehearsed
    | Unreadable
)


def read_lines(have: int, offset: int, lines: Sequence[str], *, gap: bool = False) -> tuple[list[Event | None], int]:
    """Parse the pushed lines of an event file that are not ingested yet.

    Args:
        have: Number of bytes that are already ingested.
        offset: Byte offset of the first line.
        lines: Complete lines, without their line ends; each line end is one byte.
        gap: Whether the bytes between `have` and `offset` are lost.

    Returns:
        The events, None for an unreadable line, and the new number of ingested bytes.

    Raises:
        SpecError: Byte `have` is not at the begin of a line, so the lines are from another file.
    """
    events: list[Event | None] = []
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


def _parsed(line: str) -> Event | None:
    try:
        event = storable(json.loads(line))
    except (ValueError, RecursionError):
        return None
    valid = isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("at"))
    return event if valid else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def storable(value: Any) -> Any:
    """A copy of a JSON value that every database accepts.

    None replaces infinity and NaN, U+FFFD replaces NUL, and ``?`` replaces a lone surrogate.
    """
    match value:
        case str():
            return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {storable(key): storable(item) for key, item in value.items()}
        case list():
            return [storable(item) for item in value]
    return value


def fold(state: IngestState, events: Iterable[Event | None]) -> list[Fact]:
    """Translate events into facts about their job, in order, and update `state`."""
    facts: list[Fact] = []
    for event in events:
        if event is None:
            facts.append(Unreadable())
            continue
        try:
            facts.extend(_facts(state, event))
        except (KeyError, TypeError, ValueError):
            facts.append(Unreadable())
        state.last_at = max(state.last_at, event["at"])
    return facts


def _facts(state: IngestState, event: Event) -> list[Fact]:
    at = event["at"]
    match event["event"]:
        case "state":
            waited = state.state == "WAITING" and event["state"] != "WAITING"
            facts: list[Fact] = [WaitsFor(_generation(event), "", _moment(at))] if waited else []
            return [*facts, *_entered(state, str(event["state"]), at)]
        case "waiting":
            return [WaitsFor(_generation(event), redact_text(str(event["what"]))[:_WHAT], _moment(at))]
        case "kafka":
            since = event.get("silent_since")
            if since is not None and not _is_time(since):
                raise ValueError("silent_since")
            return [
                KafkaSeen(
                    _generation(event),
                    _number(event, "brokers", _INTEGER),
                    _number(event, "under_replicated", _INTEGER),
                    None if since is None else _moment(since),
                )
            ]
        case "claimed":
            return [_claimed(state, event)]
        case "epoch":
            return [_epoch(state, event)]
        case "restart":
            if state.waiting or "claimed" not in state.marks:
                state.marks.setdefault("failed", at)  # the previous failure is still open
            else:
                state.marks = {"failed": at}
            return [_error_reported(event, again=True)]
        case "failed" | "superseded":
            state.end = "failed"
            reported: list[Fact] = [_error_reported(event, again=False), Ended(_moment(at), _generation(event))]
            return reported if event["event"] == "failed" else [*reported, Fenced(_moment(at), _generation(event))]
        case "stopped" | "finished":
            state.end = "clean"
            return [Ended(_moment(at), _generation(event))]
        case "lag":
            topics = _topics(event, "topics")
            partitions = {topic: _numbers(lags, _BIG) for topic, lags in _topics(event, "partitions").items()}
            query, unread = _short(event["query"]), _numbers(topics, _BIG)
            if unread and not any(unread.values()):
                state.empty = [*({*state.empty, query} if len(state.empty) < _RETURNED else state.empty)]
            else:
                state.empty = [name for name in state.empty if name != query]
            return [Lag(_moment(at), query, unread, partitions, state.generation), *_no_input(state, query, at)]
        case "ready":
            if len(state.ready) < _RETURNED:
                state.ready[_short(event["query"])] = at
            return [*_no_input(state, _short(event["query"]), at)]
        case "retention":
            topics = _topics(event, "topics")
            return [Retention(_short(event["query"]), _numbers(topics, 101))]
        case "open-transactions":
            since = _topics(event, "topics")
            if not all(map(_is_time, since.values())):
                raise ValueError("topics")
            return [OpenTransactions(_generation(event), {topic: _moment(at) for topic, at in since.items()})]
        case "following":
            epochs = event["epochs"]
            return [Following({_short(query): _number(epochs, query, _BIG) for query in epochs})]
        case "rehearsed":
            took = event.get("epoch_s")
            return [Rehearsed(float(took))] if isinstance(took, int | float) and 0 <= took < _LONGEST_EPOCH_S else []
        case "truncated":
            return [Truncated(_moment(at))]
        case "session":
            ui = str(event.get("ui") or "")
            state.application_id = str(event.get("application_id") or "")[:_LONGEST]
            # Pages link to it, and a job's code can write events.
            state.spark_ui = ui if _UI.fullmatch(ui) else ""
            state.executors = None
        case "executors":
            state.executors = {
                "wanted": _number(event, "wanted", _INTEGER),
                "registered": _number(event, "registered", _INTEGER),
                "listed": [_executor(executor) for executor in event["executors"][:_EXECUTORS]],
            }
    return []


def _executor(executor: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": _short(executor["id"]),
        "host": _short(executor["host"]),
        "cores": _number(executor, "cores", _INTEGER),
        **{name: log if _LOG.fullmatch(log := str(executor.get(name) or "")) else "" for name in ("stdout", "stderr")},
    }


def _entered(state: IngestState, driver_state: str, at: float) -> list[Fact]:
    if driver_state == "CLAIMING":
        state.again = state.state in ("RESTARTING", "WAITING")
        if not state.again:
            # a new process. A previous process that reported no end failed at its last event.
            state.attempt += 1
            failed = state.generation and state.end != "clean"
            state.marks = {"failed": state.last_at} if failed else {}
            state.end = ""
        state.marks["claiming"] = at
    elif driver_state == "RUNNING":
        state.marks["running"] = at
    state.state = driver_state
    return []


def _claimed(state: IngestState, event: Event) -> Claimed:
    before = state.generation
    state.generation, state.lineage = _number(event, "generation", _INTEGER), _number(event, "lineage", _INTEGER)
    state.marks["claimed"] = event["at"]
    state.waiting = True
    graph = parse(event["queries"]) if "queries" in event else None
    state.queries, state.returned = sorted(graph or ()), []
    state.reports_ready, state.ready, state.empty = bool(event.get("reports_ready")), {}, []
    state.code = str(event.get("code", ""))[:64]
    failed_at = state.marks.get("failed")
    cause: Literal["start", "restart", "crash"] | None = None
    if before:
        cause = "restart" if state.again else "crash" if failed_at is not None else "start"
    return Claimed(
        _moment(event["at"]),
        state.lineage,
        state.generation,
        max(state.attempt, 1),
        str(event.get("claim_id", ""))[:64],
        cause,
        _moment(failed_at) if failed_at is not None else None,
        {_short(sink): str(mode)[:_LONGEST] for sink, mode in _named(event, "delivery").items()},
        str(event["sharing_depth"])[:_LONGEST] if "sharing_depth" in event else None,
        graph,
    )


def _epoch(state: IngestState, event: Event) -> EpochDone:
    figures = {name: _number(event, name, _FIGURE) if name in event else 0 for name in FIGURES}
    operators = _operators(event)
    recorded = ((name, tally["recorded"]) for name, tally in operators.items() if tally.get("recorded"))
    checkpoint = EpochCheckpoint(
        epoch=_number(event, "epoch", _BIG),
        query=_short(event["query"]),
        status="COMPLETED",
        trigger="REPLAY" if event.get("replay") else "PERIODIC",
        generation=_number(event, "generation", _INTEGER),
        completed_at=_moment(event["at"]),
        duration_ms=_duration(event["duration_ms"]),
        records_in=figures["records_in"],
        records_out=figures["records_out"],
        published_lanes=figures["published_lanes"] if "published_lanes" in event else None,
        offsets=event.get("offsets") or {},
        spans=event.get("spans") or [],
        topics_in=_topics_in(event),
        dead_letters=figures["dead_letters"],
        recorded=dict(itertools.islice(recorded, _RECORDED)),
    )
    marks = {name: _moment(at) for name, at in state.marks.items()} if state.waiting else None
    state.waiting = False
    first = _has_returned(state, checkpoint.query)
    waiting = _not_returned(state) if first else ()
    return EpochDone(state.lineage, checkpoint, figures, marks, operators, _latencies(event), first, waiting)


def _no_input(state: IngestState, query: str, at: float) -> list[NoInput]:
    """The return of a query without unread records, once it is ready to read."""
    if query not in state.empty or (state.reports_ready and query not in state.ready):
        return []
    if not _has_returned(state, query):
        return []
    marks = {name: _moment(mark) for name, mark in state.marks.items()}
    ready = _moment(state.ready.get(query, at))
    return [NoInput(ready, query, state.generation, marks, _not_returned(state))]


def _has_returned(state: IngestState, query: str) -> bool:
    """Record that a query has returned since the newest claim; returns whether that is new."""
    if query in state.returned or len(state.returned) >= _RETURNED:
        return False
    state.returned.append(query)
    return True


def _not_returned(state: IngestState) -> tuple[str, ...]:
    return tuple(query for query in state.queries if query not in state.returned)


def _topics_in(event: Event) -> dict[str, int]:
    """The records of an epoch by source topic; empty if they are unreadable, because the epoch counts without them."""
    try:
        topics = {name[:_TOPIC]: number for name, number in _topics(event, "topics_in").items()}
        return _numbers(topics, _FIGURE)
    except (TypeError, ValueError):
        return {}


def _latencies(event: Event) -> dict[str, int]:
    """The latencies of an epoch; empty if they are unreadable, because the epoch counts without them."""
    try:
        latencies = _numbers(_named(event, "latencies"), _FIGURE)
        return latencies if all(0 <= int(number) < _CLASSES for number in latencies) else {}
    except (TypeError, ValueError):
        return {}


def _operators(event: Event) -> dict[str, dict[str, int]]:
    """The operators of an epoch; empty if they are unreadable, because the epoch counts without them."""
    figures = OperatorMetrics.model_fields
    try:
        return {
            name[:_LONGEST]: {figure: _number(tally, figure, _FIGURE) for figure in figures if figure in tally}
            for name, tally in _named(event, "operators").items()
        }
    except (TypeError, ValueError):
        return {}


def _duration(ms: Any) -> float:
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < _FIGURE:
        raise ValueError("duration_ms")
    return float(ms)


def _named(event: Event, name: str) -> dict[str, Any]:
    """A mapping within an event; empty in events of earlier versions."""
    value = event.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(name)
    return value


def _numbers(event: Event, below: int) -> dict[str, int]:
    return {name: _number(event, name, below) for name in event}


def _topics(event: Event, name: str) -> dict[str, Any]:
    """A mapping of topics within an event. More than `MOST_TOPICS` are left out: each is stored and shown."""
    return dict(itertools.islice(_named(event, name).items(), MOST_TOPICS))


def _number(event: Event, name: str, below: int) -> int:
    number = event[name]
    if not isinstance(number, int) or not 0 <= number < below:
        raise ValueError(name)
    return number


def _short(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ValueError(name)
    return name


def _error_reported(event: Event, *, again: bool) -> ErrorReported:
    at = _moment(event["at"])
    return ErrorReported(at, _generation(event), failure_of(event, at), again)


def _generation(event: Event) -> int:
    return _number(event, "generation", _INTEGER) if event.get("generation") is not None else 0


def failure_of(event: Event, at: datetime) -> Failure:
    """The failure that an error event describes, with the time `at`."""
    slug = str(event.get("error", "unexpected"))
    domain, retry = kind_of(slug)
    return Failure(
        error=slug,
        what=redact_text(str(event.get("what", ""))),
        kept=str(event.get("kept", "")),
        hint=str(event.get("hint", "")),
        domain=domain,
        retry=retry,
        at=at,
        stack=redact_text(str(event.get("stack", "")))[:_STACK],
    )


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
