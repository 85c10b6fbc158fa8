"""The events of a driver: one type for each, which the driver writes, and the agent and the control plane read.

An event is one JSON object with its name in ``event``. A later version may add fields, which an earlier one ignores,
and events, which an earlier one reads as `Unknown`. So drivers, agents and replicas of two versions run together.

Example:
    >>> line = as_line(State(state="RUNNING", job="orders", generation=2, at=5.0))
    >>> line
    '{"event":"state","state":"RUNNING","job":"orders","generation":2,"at":5.0}'
    >>> from_line(line).state
    'RUNNING'
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import traceback
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
from msgspec import Meta, Struct, field

from clonos.errors import CheckpointMismatch, ClonosError

VERSION: Final = 1
"""Version of the events, which the event ``claimed`` names. It changes if a field gets another meaning."""

# The limits keep corrupt lines, and those that job code writes, out of the columns and sums of the control plane.
Time = Annotated[float, Meta(ge=0, lt=1e11)]
Small = Annotated[int, Meta(ge=0, lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**40)]
Big = Annotated[int, Meta(ge=0, lt=2**53)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Milliseconds = Annotated[float, Meta(ge=0, lt=2**40)]
Name = Annotated[str, Meta(min_length=1, max_length=100)]
_MAX_STACK_CHARACTERS: Final = 8_000


def _event_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", class_name).lower()


class DriverEvent(Struct, kw_only=True, tag_field="event", tag=_event_name):
    """An event of a driver. `clonos.telemetry.events.Events` sets its fields."""

    long: ClassVar[frozenset[str]] = frozenset()  # fields that log lines omit
    usual_level: ClassVar[str] = "info"

    job: str = ""
    """Name of the job."""
    generation: Small = 0
    """Generation of the driver's newest claim; 0 before the first claim."""
    at: Time = 0.0
    """Time of the event, in seconds since 1970."""

    @property
    def name(self) -> str:
        """The value of the field ``event``."""
        return str(type(self).__struct_config__.tag)

    @property
    def level(self) -> str:
        """Level of the event's log line: ``info``, ``warning`` or ``error``."""
        return self.usual_level


class QueryEvent(DriverEvent):
    """An event about one query."""

    query: Name
    """Name of the query."""


class Report(DriverEvent, kw_only=True):
    """An event about an error."""

    usual_level = "warning"

    long = frozenset({"stack"})

    error: str = "unexpected"
    """Name of the kind of error (`clonos.errors.ClonosError.slug`)."""
    what: str = ""
    """What happened."""
    kept: str = ""
    """What was kept safe."""
    hint: str = ""
    """What to do next."""
    stack: str = ""
    """Stack of the cause, of at most 8,000 characters; empty without a cause."""
    codes: list[str] = field(default_factory=list)
    """Hashes of the code that the job can run (`clonos.errors.CheckpointMismatch`); usually empty."""

    @classmethod
    def of(cls, error: BaseException, **fields: Any) -> Self:
        """Return the event that reports `error`; `fields`: further fields of the event."""
        return cls(**(error_fields(error) | fields))


# The life of a driver


class State(DriverEvent):
    """The driver's state changed."""

    state: str
    """``CLAIMING``, ``RECONCILING``, ``RUNNING``, ``RESTARTING``, ``WAITING``, ``STOPPING``, ``STOPPED``, ``FINISHED``,
    ``SUPERSEDED`` or ``FAILED``.
    """


class Session(DriverEvent):
    """The Spark session exists."""

    master: str | None = ""
    """Spark's master."""
    application_id: str = ""
    """Id of the application."""
    ui: str | None = ""
    """Address of Spark's UI; empty: it has none."""
    cluster: str = ""
    """Name of the Spark cluster; empty: none."""


class Executor(Struct):
    """An executor of the application."""

    id: Name
    """Spark's id."""
    host: Name
    """Its host."""
    cores: Small
    """Number of its task slots."""
    stdout: str | None = ""
    """Address of its standard output; empty: unknown."""
    stderr: str | None = ""
    """Address of its standard error; empty: unknown."""


class Executors(DriverEvent):
    """The executors of the Spark cluster changed. They are checked every three seconds; a standby sends none."""

    long = frozenset({"executors"})

    wanted: Small
    """Number of executors that Spark asks for."""
    registered: Small
    """Number of executors that have registered."""
    executors: list[Executor]
    """At most 20 of them."""


class Lint(DriverEvent):
    """One finding of the linter."""

    usual_level = "warning"

    file: str
    """Path of the file."""
    line: int
    """The line, from 1."""
    column: int
    """The column, from 1."""
    code: str
    """Code of the rule."""
    severity: str
    """``error`` or ``warning``."""
    call: str
    """The call as written."""
    runs: str
    """The stage in which the code runs: ``rows``, ``job`` or ``start``."""
    why: str
    """The reason why a replay may differ."""
    instead: str
    """The recommended replacement."""


class GraphOperator(Struct, frozen=True):
    """An operator of a query."""

    name: str
    """Its name."""
    takes: str = "columns"
    """What its function receives: ``columns``, ``batches``, ``groups`` or ``state``."""
    timers: bool = False
    """Whether it may set timers."""


class GraphQuery(Struct, frozen=True):
    """What a query reads, runs and writes."""

    sink: str = ""
    """Name of the sink's class."""
    topics: list[str] = field(default_factory=list)
    """Topics that it reads by name."""
    patterns: list[str] = field(default_factory=list)
    """Patterns of further topics."""
    operators: list[GraphOperator] = field(default_factory=list)
    """Its operators, in the order of the data."""
    state: list[str] = field(default_factory=list)
    """Spark's own steps that keep state, such as ``aggregate``."""
    outputs: list[str] = field(default_factory=list)
    """Topics that it writes."""
    dead_letters: list[str] = field(default_factory=list)
    """Topics for records that cannot be decoded."""
    more_outputs: bool = False
    """Whether its rows may name further topics."""
    interval_ms: int | None = None
    """Minimum time between the starts of two epochs; None: an earlier version of Clonos."""


Graph = dict[str, GraphQuery]
"""Query → what it reads, runs and writes."""


class Claimed(DriverEvent):
    """The driver claimed the causal log."""

    long = frozenset({"queries"})

    lineage: Small
    """Number of the lineage."""
    lanes: int = 0
    """Number of lanes with records in the log."""
    claim_id: str = ""
    """Random id of the claim."""
    code: str = ""
    """Hash of the job's code."""
    delivery: dict[Name, str] = field(default_factory=dict)
    """Query → delivery guarantee of its sink."""
    sharing_depth: str | None = None
    """Replicas that acknowledge a determinant: ``0``, ``1`` or ``full``; null from earlier versions."""
    reports_ready: bool = False
    """Whether the driver sends ``ready``."""
    queries: Graph | None = None
    """Query → what it reads, runs and writes; at most 100 entries of each kind, and no query if the whole is longer
    than 200 KB; null from earlier versions.
    """
    version: int = VERSION
    """Version of the driver's events."""


class Reconciled(QueryEvent):
    """A checkpoint was repaired from the causal log."""

    done: str
    """The repair."""


class Resolved(QueryEvent):
    """The decision about an epoch in doubt was recorded."""

    epoch: Big
    """The epoch."""
    action: str
    """The decision."""


class Rescaled(QueryEvent):
    """The query has another number of shuffle partitions ([rescaling](clusters.md#rescaling))."""

    epoch: Big
    """The first epoch with this number."""
    partitions_before: int | None
    """The number before; null: unknown."""
    partitions: int
    """The number from this epoch on."""
    duration_ms: Milliseconds
    """Duration of the change, in milliseconds."""


class SinkAdded(QueryEvent):
    """The causal log does not know this sink yet."""


class TopicCreatedAgain(QueryEvent):
    """A sink topic was deleted and created again."""

    topic: str
    """The topic."""


class SourceTopicsDeleted(QueryEvent):
    """Topics of a pattern were read to their end and deleted."""

    topics: list[str]
    """The topics."""


class StaticInputUnpinned(QueryEvent):
    """A replay cannot detect changes of a table that the query is joined with."""

    input: str
    """The table."""


class Pinned(DriverEvent):
    """The driver defined the job again, with the schemas in the plan of the epoch in doubt."""

    schemas: dict[str, int]
    """Lookup in the Schema Registry → its answer."""


class Ready(QueryEvent):
    """A query has loaded its state, and asks its sources for records; sent once after each start."""


class Restart(Report):
    """The driver restarts its queries after an error."""

    attempt: int = 0
    """Number of consecutive restarts."""
    pause_s: float = 0.0
    """Pause before the restart, in seconds."""


class Waiting(Report):
    """Kafka, the registry, a service or the checkpoint's file system is away. The driver waits."""


class Superseded(Report):
    """A driver with a newer claim owns the job."""

    usual_level = "error"


class Failed(Report):
    """The driver failed."""

    usual_level = "error"


class Stopped(DriverEvent):
    """The driver stopped after a request."""


class Finished(DriverEvent):
    """The job has processed all of its input."""


# Epochs


class Span(Struct, frozen=True):
    """A part of an epoch."""

    name: str
    """``plan``, ``publish`` or ``commit``."""
    duration_ms: float
    """Its duration, in milliseconds."""


class OperatorCounts(Struct, frozen=True):
    """The determinants of an operator in one epoch."""

    recorded: Count = 0
    """Number of determinants that it recorded."""
    replayed: Count = 0
    """Number of determinants that it read."""
    bytes: Count = 0
    """Bytes of those that it recorded."""


class Counted(DriverEvent, kw_only=True):
    """Counts of an epoch, or their sums."""

    records_in: Count = 0
    """Records read."""
    records_out: Count = 0
    """Records published, by all attempts."""
    recorded_determinants: Count = 0
    """Determinants that were recorded."""
    recorded_bytes: Count = 0
    """Bytes of these determinants."""
    replayed_determinants: Count = 0
    """Determinants that were read from the causal log."""
    published_lanes: Count = 0
    """Lanes with records."""
    skipped_lanes: Count = 0
    """Lanes that an earlier attempt had published."""
    diverged_lanes: Count = 0
    """Lanes that failed the replay audit."""
    dead_letters: Count = 0
    """Records that could not be decoded."""
    dropped: Count = 0
    """Records dropped by a setting of the job."""
    late_rows: Count = 0
    """[Late rows](howto/keep-state.md#late-rows) that Spark dropped."""


FIGURES: Final = tuple(name for name in Counted.__struct_fields__ if name not in DriverEvent.__struct_fields__)
"""Names of the counts."""


class Epoch(Counted, kw_only=True):
    """An epoch is finished, or a live epoch has published for a second."""

    long = frozenset({"spans", "operators", "topics_in", "latencies", "offsets"})

    query: Name
    """Name of the query."""
    epoch: Big
    """Its number."""
    duration_ms: Milliseconds
    """Its duration, in milliseconds."""
    replay: bool = False
    """Whether it was a replay."""
    spans: list[Span] = field(default_factory=list)
    """Its parts."""
    operators: dict[str, OperatorCounts] = field(default_factory=dict)
    """Operator → its determinants."""
    topics_in: dict[str, Count] = field(default_factory=dict)
    """Source topic → records read."""
    latencies: dict[Annotated[int, Meta(ge=0, lt=200)], Count] = field(default_factory=dict)
    """Class of an end-to-end latency → records; the longest latency of class *n* is 2^(n/4) ms."""
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Topic → partition → next offset to read."""
    steps: Count = 0
    """Of a live epoch: the number of steps in that second."""
    live: bool = False
    """Whether this is a second of a live epoch, which lasts."""

    @property
    def level(self) -> str:
        """An error if a lane diverged; a warning if Spark dropped late rows."""
        if self.diverged_lanes:
            return "error"
        return "warning" if self.late_rows else "info"


class Mode(QueryEvent):
    """A query starts; sent if the trigger's mode is ``live`` or ``auto``."""

    live: bool
    """Whether it publishes in steps while its tasks read."""
    because: str = ""
    """Why it runs in epochs; empty: it is live."""


class Lag(QueryEvent):
    """The number of unread records changed; also sent after each start."""

    topics: dict[str, Big]
    """Topic → unread records."""
    partitions: dict[str, dict[int, Big]] = field(default_factory=dict)
    """Topic → partition → unread records, for the partitions with the largest lag, at most 200."""


class Retention(QueryEvent):
    """A query is close to losing unread records, or no longer. Checked every 30 s."""

    topics: dict[str, Percent]
    """Topic → largest unread share of a partition, in percent. A partition counts if Kafka has deleted records from it,
    and 80 % or more, and at least 100, of its records are unread.
    """


class OpenTransactions(DriverEvent):
    """Open transactions block `read_committed` readers. Sent every three seconds while one is older than 5 s, and once
    afterwards.
    """

    topics: dict[str, Time]
    """Source or sink topic → time since when, in seconds since 1970. The transaction is one of the job or of another
    producer.
    """


class Kafka(DriverEvent, kw_only=True):
    """What the driver sees of Kafka changed. It asks each second."""

    silent_since: Time | None = None
    """Time of the last answer if Kafka did not answer within 1.5 s; null: it answers."""
    brokers: Small
    """Number of brokers."""
    under_replicated: Small
    """Partitions of the causal log without all of their replicas in sync."""

    @property
    def level(self) -> str:
        """A warning while Kafka does not answer."""
        return "info" if self.silent_since is None else "warning"


class LogTopicUnsafe(Report):
    """A setting of the causal log's topic could make Kafka lose its records. Checked every minute. The job continues,
    but its next start is refused.
    """


class Truncated(QueryEvent):
    """The causal log was truncated."""

    partitions: int = 0
    """Number of truncated partitions of the log."""


class NotTruncated(Report):
    """The user lacks the right to truncate the causal log, which grows."""

    query: Name
    """Name of the query."""


# Standbys


class Standby(DriverEvent):
    """The state of a standby changed ([standbys](standbys.md))."""

    state: str
    """``WARMING``, ``READY``, ``STALE`` or ``PROMOTING``."""


class Rehearsed(DriverEvent):
    """A standby finished its rehearsals."""

    seconds: float = 0.0
    """Duration of the rehearsals."""
    state: dict[str, str] = field(default_factory=dict)
    """Query → part of its checkpoint that the rehearsal used: ``nothing``, ``offsets``, ``changes`` of state, or a
    ``snapshot``.
    """
    epoch_s: Annotated[float, Meta(ge=0, lt=86_400)] | None = None
    """Shortest duration of its rehearsals, from the start of the slowest query to the end of its epoch, in seconds;
    null: none ended.
    """


class NotRehearsed(DriverEvent):
    """A rehearsal failed. The standby can take over, but its takeover is slower."""

    usual_level = "warning"

    what: str
    """The reason."""


class StandbyTrouble(Report):
    """The reason for the state ``STALE`` of a standby."""


class Following(DriverEvent):
    """How far a standby has read the causal log."""

    epochs: dict[Name, Big]
    """Query → newest committed epoch."""
    state: str = ""
    """The standby's state."""


class PrimaryStalled(QueryEvent):
    """The job's driver makes no progress in the causal log although input waits (``selfPromoteAfter``)."""

    usual_level = "warning"

    seconds: float
    """Time without progress."""


class Summary(Counted, kw_only=True):
    """The last event of a process, with the sums of its epochs."""

    state: str = ""
    """State of the driver."""
    seconds: float = 0.0
    """Time since the process started."""
    epochs: int = 0
    """Number of finished epochs."""
    restarts: int = 0
    """Number of restarts."""


class Unknown(DriverEvent, tag=""):
    """An event of a later version."""


def _kinds(base: type[DriverEvent]) -> Iterator[type[DriverEvent]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


_BASES: Final = frozenset({QueryEvent, Report, Counted, Unknown})
TYPES: Final = {str(kind.__struct_config__.tag): kind for kind in _kinds(DriverEvent) if kind not in _BASES}
"""Name of an event → its type."""


class _Header(Struct):
    event: str
    job: str = ""
    generation: Small = 0
    at: Time = 0.0


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(functools.reduce(operator.or_, TYPES.values()))


def as_line(event: DriverEvent) -> str:
    """Return an event as one line of JSON. U+FFFD replaces a lone surrogate, which UTF-8 cannot encode."""
    try:
        return _encoder.encode(event).decode()
    except UnicodeEncodeError:
        return _encoder.encode(storable(msgspec.to_builtins(event, str_keys=True))).decode()


def from_line(line: str | bytes) -> DriverEvent:
    """Return the event in a line of JSON.

    None replaces infinity and NaN, U+FFFD replaces NUL and lone surrogates: not every database stores them.

    Raises:
        ValueError: The line is not an event, or one of its fields has another type than the event, or breaks a limit.
    """
    try:
        if (b"\\u0000" if isinstance(line, bytes) else "\\u0000") not in line:  # type: ignore[operator]
            event: DriverEvent = _decoder.decode(line)
            return event
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass  # of a later version, or with text that msgspec refuses
    try:
        return from_fields(storable(json.loads(line)))
    except RecursionError as error:
        raise ValueError("the line is nested too deep") from error


def from_fields(fields: Any) -> DriverEvent:
    """Return the event with these fields, one of which is ``event``; raises as `from_line`."""
    header = msgspec.convert(fields, _Header)
    kind = TYPES.get(header.event)
    if kind is None:
        return Unknown(job=header.job, generation=header.generation, at=header.at)
    event: DriverEvent = msgspec.convert(fields, kind, str_keys=True)
    return event


def storable(value: Any) -> Any:
    """Return a copy of a JSON value that every database accepts.

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


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return the fields of a `Report` of `error`; ``stack`` if it has a cause."""
    if not isinstance(error, ClonosError):
        return {"what": f"{type(error).__name__}: {error}"}
    fields = {"error": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
    codes = list(error.codes) if isinstance(error, CheckpointMismatch) else []
    cause = error.__cause__
    seen = {id(error)}  # `raise error from error` makes a circle
    # RestartsExhausted wraps the error that wraps the original exception
    while isinstance(cause, ClonosError) and cause.__cause__ is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__
    return {**fields, "codes": codes, "stack": "" if cause is None else _stack(cause)}


def _stack(cause: BaseException) -> str:
    """Return the stack as text; an exception of Spark contains the traceback of the worker, then the one of the JVM."""
    text = "".join(traceback.format_exception(cause, chain=False))
    half = _MAX_STACK_CHARACTERS // 2
    return text if len(text) <= _MAX_STACK_CHARACTERS else f"{text[:half]}\n…\n{text[-half:]}"
