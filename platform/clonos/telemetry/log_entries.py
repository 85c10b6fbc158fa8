"""Parses the log of a job's drivers into entries: one line each, with the lines that continue it, such as a traceback.

A log mixes the lines of several processes: the driver's events and log lines, Spark's JVM, Python workers, and what the
job prints. The first three write JSON (`clonos.telemetry.logs`, ``spark-log4j2.properties``). `LogParser` also reads
lines of Python's ``logging`` and of Log4j, tracebacks of Python and Java, and the three parts of an error of Clonos.
Any other line is an entry of its own. No line is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from clonos.errors import CLASSES
from clonos.telemetry.events import level_of, text_of
from clonos.telemetry.printable import printable

Level = Literal["debug", "info", "warning", "error"]
Process = Literal["driver", "standby", "spark-jvm", "python-worker"]

LEVELS: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")
PROCESSES: Final[Mapping[Process, str]] = {
    "driver": "driver",
    "standby": "standby",
    "spark-jvm": "Spark JVM",
    "python-worker": "Python worker",
}
# Longer messages are cut; the raw text has all of them.
_MAX_MESSAGE: Final = 4_000
# Lines of continuation; the next one begins an entry with the same time and level.
_MAX_LINES: Final = 500

_LEVEL_OF: Final[Mapping[str, Level]] = {
    **dict.fromkeys(("trace", "debug"), "debug"),
    **dict.fromkeys(("info", "notset"), "info"),
    **dict.fromkeys(("warn", "warning"), "warning"),
    **dict.fromkeys(("error", "exception", "critical", "fatal"), "error"),
}
_LEVEL_NAMES: Final = "|".join(sorted(_LEVEL_OF, key=len, reverse=True))

_DATED: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|\d\d/\d\d/\d\d \d\d:\d\d:\d\d)\s+(\S.*)"
)
_LOG4J: Final = re.compile(r"(TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\s+(\S.*)")  # with a configuration of the job's own
_LOGGING: Final = re.compile(rf"-?\s*(\S+ - )?({_LEVEL_NAMES.upper()})\b[ :-]*(.*)")
_UNDATED: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([^:\s]+:.*)")

_TRACEBACK: Final = "Traceback (most recent call last):"
_JVM: Final = re.compile(r"Exception in thread |Picked up \w+_OPTIONS: |OpenJDK |# A fatal error has been detected by ")
_JVM_ERROR: Final = re.compile(r"Exception in thread |# A fatal error ")
_OWN_ERROR: Final = re.compile(rf"({'|'.join(sorted(cls.slug for cls in CLASSES))}): ")
_OWN_ERROR_PART: Final = re.compile(r"(Kept safe|What to do): ")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.$]*(?:Error|Exception|Warning|Exit|Interrupt|Throwable)(?:: |$)")
_CHAINED: Final = re.compile(r"(?:The above exception was|During handling of the above exception|Caused by: |$)")
# The head of a JSON line whose end is missing.
_CUT_FIELD: Final = re.compile(r'"(event|level|timestamp|at|generation|logger)": ?("(?:[^"\\]|\\.)*"?|[\d.]+)')


@dataclass(frozen=True)
class LogEntry:
    """A line of the log of a job's drivers, with the lines that continue it."""

    time: datetime | None
    """Time of the line, or of the newest earlier line of its run that has one. None: not known."""
    level: Level
    """``debug``, ``info``, ``warning`` or ``error``; ``info`` if the line has none."""
    process: Process
    """The process that wrote it: ``driver``, ``standby``, ``spark-jvm`` or ``python-worker``."""
    run: str
    """Id of the run."""
    message: str
    """Its text as one line, without time and level; cut after 4,000 characters."""
    generation: int | None = None
    """Generation of the driver. None: not known, or before its first claim."""
    query: str | None = None
    """Query that the line is about."""
    epoch: int | None = None
    """Epoch that the line is about."""
    routine: bool = False
    """The line reports a normal epoch or its lag. Displays collapse consecutive routine lines."""
    lines: tuple[str, ...] = ()
    """Lines of continuation, such as a traceback."""


@dataclass(frozen=True)
class LogFilter:
    """Which entries of a log are requested."""

    level: Level | None = None
    """The lowest level. None: all."""
    search: str = ""
    """Text that the entry or its raw lines contain, in any case; empty: all."""
    since: datetime | None = None
    """Entries before this time, or of an unknown time, are omitted."""

    def __bool__(self) -> bool:
        return self.level is not None or bool(self.search) or self.since is not None

    def matches(self, entry: LogEntry, raw: Iterable[str]) -> bool:
        """Whether `entry`, whose lines in the log are `raw`, is requested."""
        if self.level is not None and LEVELS.index(entry.level) < LEVELS.index(self.level):
            return False
        if self.since is not None and (entry.time is None or entry.time < self.since):
            return False
        text = self.search.casefold()
        return not text or any(text in line.casefold() for line in (entry.message, *entry.lines, *raw))


class LogParser:
    """Parses the lines of one job's log, one after another.

    It remembers the newest time and generation of each run, because lines of Spark's JVM and of the job lack them.

    Args:
        standbys: Ids of the runs that began as standbys.

    Example:
        >>> parser = LogParser()
        >>> entries = parser.parse([("r1", "2026-01-31 12:00:00,123 WARNING orders: the rates are old")])
        >>> entries[0].level, entries[0].process, entries[0].message
        ('warning', 'driver', 'orders: the rates are old')
    """

    def __init__(self, standbys: Iterable[str] = ()) -> None:
        self.standbys = frozenset(standbys)  # may be replaced between two calls
        self._newest: dict[str, LogEntry] = {}  # by run
        self._continued: dict[str, int] = {}  # number of lines that continue it
        self._blocks: dict[str, str] = {}  # what may follow the newest entry of a run

    def parse(self, lines: Iterable[tuple[str, str]]) -> list[LogEntry]:
        """Return the entries of `lines` (run, text), in their order. The next call may continue the last one."""
        entries: list[LogEntry] = []
        for run, line in lines:
            entry, continues = self.add(run, line)
            if continues and entries and entries[-1].run == run:
                entries[-1] = joined(entries[-1], entry)
            else:
                entries.append(entry)
        return entries

    def add(self, run: str, line: str) -> tuple[LogEntry, bool]:
        """Parse the next line of a run: its entry alone, and whether it continues the newest one (see `joined`)."""
        line = plain(line)
        before = self._newest.get(run)
        if before is not None and _continues(self._blocks[run], line):
            if line.startswith(_TRACEBACK):
                self._blocks[run] = "traceback"
            continued = self._continued[run] + 1
            self._continued[run] = continued % (_MAX_LINES + 1)
            return replace(before, message=line[:_MAX_MESSAGE]), continued <= _MAX_LINES
        entry, block = self._begin(run, line, before)
        self._newest[run] = replace(entry, routine=False, query=None, epoch=None, lines=())
        self._blocks[run], self._continued[run] = block, 0
        return entry, False

    def _begin(self, run: str, line: str, before: LogEntry | None) -> tuple[LogEntry, str]:
        """Return the entry that begins with `line`, and what may follow it."""
        time, generation = (before.time, before.generation) if before is not None else (None, None)
        empty = LogEntry(time, "info", self._driver(run, generation), run, line[:_MAX_MESSAGE], generation)
        if line.startswith("{") and (fields := _json_fields(line)) is not None:
            return self._from_fields(empty, fields, text_of(fields)), "stack"
        if dated := _DATED.match(line):
            return _from_dated(empty, *dated.groups())
        if match := _UNDATED.match(line):
            return replace(empty, level=_LEVEL_OF[match[1].lower()], message=match[2]), "stack"
        if line.startswith(_TRACEBACK):
            return replace(empty, level="error"), "traceback"
        if _OWN_ERROR.match(line):
            return replace(empty, level="error"), "error"
        if _JVM.match(line):
            return replace(empty, process="spark-jvm", level="error" if _JVM_ERROR.match(line) else "info"), "stack"
        return empty, "text"

    def _from_fields(self, empty: LogEntry, fields: Mapping[str, Any], message: str) -> LogEntry:
        level = str(fields.get("level") or level_of(fields))
        own = "generation" in fields
        generation = (_number(fields["generation"]) or None) if own else empty.generation
        if level.isupper() and not own:  # of Log4j
            process: Process = "spark-jvm"
        else:
            process = "python-worker" if "task" in fields else self._driver(empty.run, generation)
        stack = next((str(fields[name]) for name in ("exception", "stack") if fields.get(name)), "")
        parts = [f"{title}: {fields[name]}" for name, title in _ERROR_PARTS if fields.get("error") and fields.get(name)]
        message, *more = message.split("\n")
        return replace(
            empty,
            time=_time(fields.get("timestamp", fields.get("at"))) or empty.time,
            level=_LEVEL_OF.get(level.lower(), "info"),
            process=process,
            message=plain(message)[:_MAX_MESSAGE],
            generation=generation,
            query=None if fields.get("query") is None else plain(str(fields["query"])),
            epoch=_number(fields.get("epoch")),
            routine=_is_routine(fields),
            lines=tuple(plain(line) for line in [*more, *parts, *stack.rstrip("\n").split("\n")] if line),
        )

    def _driver(self, run: str, generation: int | None) -> Process:
        return "standby" if run in self.standbys and not generation else "driver"


def _from_dated(empty: LogEntry, time: str, rest: str) -> tuple[LogEntry, str]:
    empty = replace(empty, time=_time(time) or empty.time)
    if match := _LOG4J.match(rest):
        return replace(empty, level=_LEVEL_OF[match[1].lower()], process="spark-jvm", message=match[2]), "record"
    if match := _LOGGING.match(rest):
        return replace(empty, level=_LEVEL_OF[match[2].lower()], message=f"{match[1] or ''}{match[3]}"), "record"
    return replace(empty, message=rest), "record"


_ERROR_PARTS: Final = (("kept", "Kept safe"), ("hint", "What to do"))


def plain(line: str) -> str:
    """`line` without control sequences of terminals. Of text that a carriage return overwrites, the last remains."""
    if line.isprintable():
        return line
    parts = printable(line.replace("\r", "\n")).split("\n")
    return next((part for part in reversed(parts) if part), "")


def joined(entry: LogEntry, more: LogEntry) -> LogEntry:
    """`entry` and a line that continues it. The message of a traceback is its exception, which comes last."""
    if not entry.lines and entry.message.startswith(_TRACEBACK):
        entry = replace(entry, lines=(entry.message,))
    is_exception = entry.message in entry.lines and _EXCEPTION.match(more.message)
    message = more.message if is_exception else entry.message
    return replace(entry, message=message, lines=(*entry.lines, more.message))


@dataclass(frozen=True)
class EpochSpan:
    """Consecutive routine entries, for a display in one line."""

    first: LogEntry
    """The first entry."""
    last: LogEntry
    """The last entry."""
    epochs: Mapping[str, tuple[int, int]]
    """Query → its first and last epoch."""
    lags: Mapping[str, str]
    """Query → the newest line about its lag; shown if there is no epoch."""
    lines: int
    """Number of log lines."""

    def __str__(self) -> str:
        if not self.epochs:
            return f"{'; '.join(self.lags.values())} (newest of {self.lines} lines)"
        parts = []
        for query, (low, high) in self.epochs.items():
            name = f"{query}: " if len(self.epochs) > 1 and query else ""
            parts.append(f"{name}epoch {low}" if low == high else f"{name}epochs {low}–{high}")
        return f"{', '.join(parts)} committed, {self.lines} lines"


def collapse_epochs(entries: Sequence[LogEntry]) -> list[LogEntry | EpochSpan]:
    """`entries`, with one span instead of consecutive routine entries.

    Example:
        >>> line = '{"event": "epoch", "query": "out", "epoch": %d, "replay": false, "generation": 1}'
        >>> entries = LogParser().parse([("r1", line % epoch) for epoch in (47, 48, 49)])
        >>> [str(shown) for shown in collapse_epochs(entries)]
        ['epochs 47–49 committed, 3 lines']
    """
    collapsed: list[LogEntry | EpochSpan] = []
    routine: list[LogEntry] = []

    def end() -> None:
        epochs: dict[str, tuple[int, int]] = {}
        lags: dict[str, str] = {}
        for entry in routine:
            if entry.epoch is None:
                lags[entry.query or ""] = entry.message
            else:
                low, high = epochs.get(entry.query or "", (entry.epoch, entry.epoch))
                epochs[entry.query or ""] = (min(low, entry.epoch), max(high, entry.epoch))
        if len(routine) > max(1, 0 if epochs else len(lags)):
            collapsed.append(EpochSpan(routine[0], routine[-1], epochs, lags, len(routine)))
        else:
            collapsed.extend(routine)
        routine.clear()

    for entry in entries:
        if routine and (not entry.routine or (entry.run, entry.generation) != (routine[0].run, routine[0].generation)):
            end()
        (routine if entry.routine else collapsed).append(entry)
    end()
    return collapsed


def _continues(block: str, line: str) -> bool:
    """Whether `line` continues an entry after which `block` may follow."""
    if line[:1] in ("\t", " ") and line.strip():
        return True
    if block == "error":
        return _OWN_ERROR_PART.match(line) is not None
    if block == "traceback":
        return line.startswith(_TRACEBACK) or bool(_EXCEPTION.match(line) or _CHAINED.match(line))
    if block in ("record", "stack"):
        follows = line.startswith("Caused by: ") or (block == "record" and bool(_EXCEPTION.match(line)))
        return follows or (block == "record" and line.startswith(_TRACEBACK))
    return False


def _is_routine(fields: Mapping[str, Any]) -> bool:
    if fields.get("event") == "lag":
        return True
    exceptional = ("replay", "diverged_lanes", "skipped_lanes", "dead_letters", "dropped", "late_rows")
    return (
        fields.get("event") == "epoch"
        and _number(fields.get("epoch")) is not None
        and not any(fields.get(name) for name in exceptional)
    )


def _json_fields(line: str) -> dict[str, Any] | None:
    """Return the fields of a JSON line with an event; of one whose end is missing, those at its start."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = {name: _value(text.strip('"')) for name, text in _CUT_FIELD.findall(line)}
    if not isinstance(fields, dict):
        return None
    if "event" not in fields and isinstance(fields.get("message"), str):
        fields["event"] = fields.pop("message")  # of other libraries
    return fields if isinstance(fields.get("event"), str) else None


def _value(text: str) -> Any:
    """Return the value of a field of a line whose end is missing."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: Any) -> datetime | None:
    """Return a time from seconds since 1970, or from text. A time without a zone is read as UTC.

    None: not a time, or in the first or last year of `datetime`, where conversions between zones fail.
    """
    try:
        if isinstance(value, int | float):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            text = str(value).replace(",", ".")
            is_short = text[2:3] == "/"
            moment = datetime.strptime(text, "%y/%m/%d %H:%M:%S") if is_short else datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment if datetime.min.year < moment.year < datetime.max.year else None
