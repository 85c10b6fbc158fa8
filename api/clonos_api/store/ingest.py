"""What the events of a run say, as facts about its job; pure, so that the same lines always say the same.

`docs/observing.md` lists the events. A push may repeat lines and may end anywhere between two; what the next one
needs to know is in `Told`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from clonos.errors import SpecError
from clonos.redaction import redact_text
from clonos.resources.checkpoints import Checkpoint
from clonos.resources.failures import kind_of
from clonos.resources.jobs import Failure, OperatorMetrics
from clonos.runner.events import FIGURES

Event = dict[str, Any]
# What columns and sums can hold: a file that a job wrote into must not stop the ingestion of what follows.
_INTEGER: Final = 2**31
_BIG: Final = 2**53
_FIGURE: Final = 2**40
_LONGEST: Final = 200
_STACK: Final = 10_000


@dataclass
class Told:
    """What a run's events have told so far.

    Attributes:
        state: The driver's.
        attempt: Processes that began to claim.
        again: The claim under way is of a process that restarts its queries.
        marks: When the parts of the claim under way began: ``failed``, ``claiming``, ``claimed``, ``running``.
        waiting: Claimed, and no epoch finished since.
        last_at: Of the newest event.
        end: ``clean``, ``failed`` or, while it runs or nobody knows, empty.
    """

    state: str = ""
    attempt: int = 0
    again: bool = False
    lineage: int = 0
    generation: int = 0
    marks: dict[str, float] = field(default_factory=dict)
    waiting: bool = False
    last_at: float = 0.0
    end: str = ""

    def dump(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)


@dataclass(frozen=True)
class Claimed:
    """A driver owns the causal log.

    Attributes:
        cause: Why, as far as this run can tell; None: it is the first claim of the run.
        failed_at: When what was before it ended.
        delivery: What each sink promises; empty: an earlier version does not say.
        sharing_depth: The causal log's.
    """

    at: datetime
    lineage: int
    generation: int
    attempt: int
    driver: str
    cause: Literal["start", "restart", "crash"] | None
    failed_at: datetime | None
    delivery: dict[str, str] = field(default_factory=dict)
    sharing_depth: str | None = None


@dataclass(frozen=True)
class EpochDone:
    """A finished epoch.

    Attributes:
        figures: Its counts, by the names in `clonos.runner.events.FIGURES`.
        marks: Of the claim before it, if it is the first after one.
        operators: Operator → what it recorded and replayed (`OperatorMetrics`).
    """

    lineage: int
    checkpoint: Checkpoint
    figures: dict[str, int]
    marks: dict[str, datetime] | None = None
    operators: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        """When it was finished."""
        return self.checkpoint.completed_at

    @property
    def replay(self) -> bool:
        """Whether an earlier attempt had planned it."""
        return self.checkpoint.trigger == "REPLAY"


@dataclass(frozen=True)
class Troubled:
    """A driver told an error.

    Attributes:
        again: It restarts its queries by itself.
    """

    at: datetime
    generation: int
    failure: Failure
    again: bool


@dataclass(frozen=True)
class Ended:
    """A generation is over, because its driver said so."""

    at: datetime
    generation: int


@dataclass(frozen=True)
class Lag:
    """How far behind a query is."""

    query: str
    topics: dict[str, int]
    partitions: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Retention:
    """Topics that may soon delete what a query has not read: the unread share in percent."""

    query: str
    topics: dict[str, int]


@dataclass(frozen=True)
class OpenTransactions:
    """Topics whose readers wait for a transaction, and since when."""

    generation: int
    topics: dict[str, datetime]


@dataclass(frozen=True)
class Truncated:
    """The causal log was shortened."""

    at: datetime


@dataclass(frozen=True)
class Following:
    """How far a standby has read the log: query → epoch."""

    epochs: dict[str, int]


@dataclass(frozen=True)
class Unreadable:
    """A line that is no event: a driver was killed while it wrote."""


Fact = Claimed | EpochDone | Troubled | Ended | Lag | Retention | OpenTransactions | Truncated | Following | Unreadable


def read_lines(have: int, offset: int, lines: Sequence[str], *, gap: bool = False) -> tuple[list[Event | None], int]:
    """The events behind byte `have`, None for a line that is none, and the byte up to which they go.

    Args:
        have: Bytes that are known.
        offset: Of the first line.
        lines: Whole lines, without their ends of one byte.
        gap: What is between `have` and `offset` is lost.

    Raises:
        SpecError: The lines do not meet `have` between two of them, so they are not from the same file.
    """
    events: list[Event | None] = []
    if offset > have:
        if not gap:
            return events, have  # something in between is missing: the answer says from where
        have = offset
    for line in lines:
        end = offset + len(line.encode("utf-8", "surrogatepass")) + 1
        if offset >= have:
            events.append(_parsed(line))
        elif end > have:
            raise SpecError(
                f"Byte {have} is in the middle of a line.",
                kept="what was told before is kept.",
                hint="send the run's own event file, in whole lines.",
            )
        offset = end
    return events, max(have, offset)


def _parsed(line: str) -> Event | None:
    try:
        event = storable(json.loads(line))
    except (ValueError, RecursionError):
        return None
    whole = isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("at"))
    return event if whole else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def storable(value: Any) -> Any:
    """JSON that every database takes: no NUL, no half surrogate, no number that JSON does not have."""
    match value:
        case str():
            return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {storable(key): storable(one) for key, one in value.items()}
        case list():
            return [storable(one) for one in value]
    return value


def fold(told: Told, events: Iterable[Event | None]) -> list[Fact]:
    """The facts that events tell; `told` goes on."""
    facts: list[Fact] = []
    for event in events:
        if event is None:
            facts.append(Unreadable())
            continue
        try:
            facts.extend(_facts(told, event))
        except (KeyError, TypeError, ValueError):
            facts.append(Unreadable())
        told.last_at = max(told.last_at, event["at"])
    return facts


def _facts(told: Told, event: Event) -> list[Fact]:
    at = event["at"]
    match event["event"]:
        case "state":
            return _entered(told, str(event["state"]), at)
        case "claimed":
            return [_claimed(told, event)]
        case "epoch":
            return [_epoch(told, event)]
        case "restart":
            if told.waiting or "claimed" not in told.marks:
                told.marks.setdefault("failed", at)  # not yet over the failure before
            else:
                told.marks = {"failed": at}
            return [_troubled(event, again=True)]
        case "failed" | "superseded":
            told.end = "failed"
            return [_troubled(event, again=False), Ended(_moment(at), _generation(event))]
        case "stopped" | "finished":
            told.end = "clean"
            return [Ended(_moment(at), _generation(event))]
        case "lag":
            topics = _named(event, "topics")
            partitions = {topic: _numbers(one, _BIG) for topic, one in _named(event, "partitions").items()}
            return [Lag(_short(event["query"]), _numbers(topics, _BIG), partitions)]
        case "retention":
            topics = _named(event, "topics")
            return [Retention(_short(event["query"]), _numbers(topics, 101))]
        case "open-transactions":
            since = _named(event, "topics")
            if not all(map(_is_time, since.values())):
                raise ValueError("topics")
            return [OpenTransactions(_generation(event), {topic: _moment(at) for topic, at in since.items()})]
        case "following":
            epochs = event["epochs"]
            return [Following({_short(query): _number(epochs, query, _BIG) for query in epochs})]
        case "truncated":
            return [Truncated(_moment(at))]
    return []


def _entered(told: Told, state: str, at: float) -> list[Fact]:
    if state == "CLAIMING":
        told.again = told.state == "RESTARTING"
        if not told.again:
            # Another process. What the one before left without a word of its end failed at its last word.
            told.attempt += 1
            failed = told.generation and told.end != "clean"
            told.marks = {"failed": told.last_at} if failed else {}
            told.end = ""
        told.marks["claiming"] = at
    elif state == "RUNNING":
        told.marks["running"] = at
    told.state = state
    return []


def _claimed(told: Told, event: Event) -> Claimed:
    before = told.generation
    told.generation, told.lineage = _number(event, "generation", _INTEGER), _number(event, "lineage", _INTEGER)
    told.marks["claimed"] = event["at"]
    told.waiting = True
    failed_at = told.marks.get("failed")
    cause: Literal["start", "restart", "crash"] | None = None
    if before:
        cause = "restart" if told.again else "crash" if failed_at is not None else "start"
    return Claimed(
        _moment(event["at"]),
        told.lineage,
        told.generation,
        max(told.attempt, 1),
        str(event.get("driver", ""))[:64],
        cause,
        _moment(failed_at) if failed_at is not None else None,
        {_short(sink): str(mode)[:_LONGEST] for sink, mode in _named(event, "delivery").items()},
        str(event["sharing_depth"])[:_LONGEST] if "sharing_depth" in event else None,
    )


def _epoch(told: Told, event: Event) -> EpochDone:
    figures = {name: _number(event, name, _FIGURE) if name in event else 0 for name in FIGURES}
    checkpoint = Checkpoint(
        epoch=_number(event, "epoch", _BIG),
        query=_short(event["query"]),
        status="COMPLETED",
        trigger="REPLAY" if event.get("replay") else "PERIODIC",
        generation=_number(event, "generation", _INTEGER),
        completed_at=_moment(event["at"]),
        duration_ms=_duration(event["duration_ms"]),
        records_in=figures["read"],
        records_out=figures["records"],
        published_lanes=figures["published_lanes"] if "published_lanes" in event else None,
        offsets=event.get("offsets") or {},
        spans=event.get("spans") or [],
    )
    operators = _operators(event)
    marks = {name: _moment(at) for name, at in told.marks.items()} if told.waiting else None
    told.waiting = False
    return EpochDone(told.lineage, checkpoint, figures, marks, operators)


def _operators(event: Event) -> dict[str, dict[str, int]]:
    """Nothing if they cannot be read: an epoch counts without them."""
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
    """A part of an event that earlier versions do not tell."""
    found = event.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(name)
    return found


def _numbers(event: Event, below: int) -> dict[str, int]:
    return {name: _number(event, name, below) for name in event}


def _number(event: Event, name: str, below: int) -> int:
    number = event[name]
    if not isinstance(number, int) or not 0 <= number < below:
        raise ValueError(name)
    return number


def _short(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ValueError(name)
    return name


def _troubled(event: Event, *, again: bool) -> Troubled:
    at = _moment(event["at"])
    return Troubled(at, _generation(event), failure_of(event, at), again)


def _generation(event: Event) -> int:
    return _number(event, "generation", _INTEGER) if event.get("generation") is not None else 0


def failure_of(event: Event, at: datetime) -> Failure:
    """The error that an event tells."""
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
