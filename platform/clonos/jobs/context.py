"""The context of a job function: it reads sources, decodes and encodes records, and names sinks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Final, cast, get_args

from pydantic import ValidationError
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from clonos.causal.derived import Parameters
from clonos.causal.shape import check_shape
from clonos.documents import did_you_mean, explain
from clonos.errors import SpecError
from clonos.extend.sink import DeliveryMode, OutputMode, Sink
from clonos.extend.source import Source
from clonos.formats import columns
from clonos.formats.codec import Format
from clonos.formats.poison import UDF_NAME, Policy, carried, with_dead_letters
from clonos.formats.registry import Pins
from clonos.jobs.spec import Connection, JobSpec, Trigger, check_name
from clonos.kafka import topics_missing, unlisted_topics_error
from clonos.settings import KafkaSettings, Settings


@dataclass(frozen=True)
class Query:
    """One sink and its DataFrame, which run as one streaming query with its own epochs."""

    sink: Sink
    """The sink."""
    frame: DataFrame
    """The streaming DataFrame."""
    interval_ms: int = 0
    """Minimum time between the starts of two epochs, in ms; 0: the next one starts as input arrives."""
    folder: str | None = None
    """The query's folder below the job's checkpoint; None: the sink's name."""

    @property
    def name(self) -> str:
        """The name of the query, which is the name of its sink."""
        return self.sink.name

    def location(self, checkpoint: str) -> str:
        """Return the location of this query's checkpoint, below the job's location `checkpoint`."""
        folder = self.name if self.folder is None else self.folder
        return f"{checkpoint}/{folder}".rstrip("/")


@dataclass
class JobContext:
    """The argument of a job function: it reads sources and publishes sinks.

    Example::

        @clonos.job(name="shout", params={"out": "shouted"})
        def shout(ctx: clonos.JobContext) -> None:
            lines = ctx.source("lines")
            ctx.sink(lines.select("key", F.upper(F.col("value").cast("string")).alias("value")),
                     topic=ctx.params["out"])
    """

    spark: SparkSession
    """The Spark session."""
    spec: JobSpec
    """The job's specification."""
    kafka: KafkaSettings
    """The Kafka cluster of the causal log and of Kafka sources and sinks."""
    sources: list[Source] = field(default_factory=list)
    """The sources that the job function has read so far."""
    queries: list[Query] = field(default_factory=list)
    """The queries that the job function has defined so far, one for each sink."""
    pins: Pins = field(default_factory=lambda: Pins(Settings().registry.url, {}))
    """The pinned answers of the Schema Registry."""
    rehearsal: bool = False
    """Whether this is a standby's trial run, in which all rows of the sources are filtered out."""
    dead_letter_topics: dict[str, str] = field(default_factory=dict)
    """Name of a `decode` in Spark's plans → its dead-letter topic."""
    _decodes: int = 0

    @property
    def params(self) -> Mapping[str, str]:
        """The job's parameters. A missing name raises `ParameterMissing`, which is a `KeyError`."""
        return Parameters(self.spec.spec.params)

    def source(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        assign: Mapping[str, Iterable[int]] | None = None,
        starting: str | Mapping[str, Mapping[int, int]] = "earliest",
        max_per_epoch: int | None = None,
        compacted: bool = False,
        options: Mapping[str, str] | None = None,
        connector: str = "kafka",
    ) -> DataFrame:
        """Read a repeatable source: a replayed epoch reads the same records in the same order.

        Name exactly one of `topics`, `pattern` and `assign`.

        Args:
            topics: One or several topics.
            pattern: A Java regular expression for whole topic names. Topics that are created later are included and
                read from their beginning. The platform's own topics, ``clonos.…``, never match.
            assign: Topic → partitions to read.
            starting: Start of the first epoch: ``earliest``, ``latest`` or topic → partition → offset.
            max_per_epoch: Maximum number of records in one epoch; None: as many as the job processes in some seconds
                (`docs/adr/0025-epoch-bound.md`).
            compacted: Accept compacted topics: a replay may lack records that Kafka has removed. A topic with
                ``min.compaction.lag.ms`` of a day or more is always accepted.
            options: Further options of the connector (Spark's Kafka source).
            connector: Name in the entry point group ``clonos.sources``.

        Returns:
            A streaming DataFrame with the columns of Spark's Kafka source, ``headers`` included.

        Raises:
            SpecError: An option would break repeatability, or the connector is unknown.
            SourceNotRepeatable: A topic is compacted.
            TopicMissing: A topic, or a partition in `assign`, does not exist.
            BrokerUnavailable: Kafka did not answer.

        Example::

            orders = ctx.source("orders", starting="latest", max_per_epoch=100_000)
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        selection: dict[str, Any] = {}
        if pattern is not None:
            selection["pattern"] = pattern
        if assign is not None:
            selection["assign"] = {topic: tuple(partitions) for topic, partitions in assign.items()}
        if compacted:
            selection["compacted"] = True
        source: Source = _connector("clonos.sources", connector, selection)(
            names, **selection, starting=starting, max_per_epoch=max_per_epoch, options=dict(options or {})
        )
        source.check(self.kafka)
        self.sources.append(source)
        rows = source.load(self.spark, self.kafka, self.spec.name)
        # rand() and not a constant, which the optimiser would evaluate.
        return rows.where(functions.rand() < 0) if self.rehearsal else rows

    def decode(
        self,
        frame: DataFrame,
        format: Format,  # noqa: A002
        *,
        schema: str | StructType | None = None,
        column: str = "value",
        into: str = "record",
        on_poison: Policy = "fail",
        dead_letters: str | None = None,
        event_time: str | None = None,
        max_ahead: str | None = None,
    ) -> DataFrame:
        """Decode the records of a source into a struct column.

        Args:
            frame: The DataFrame that `source` returned, or a DataFrame with its columns.
            format: `clonos.formats.Json`, `Avro` or `Protobuf`.
            schema: Spark type of the record, as DDL text; default the type of the format's own schema.
            column: The column with the bytes. Null is not decoded and stays null.
            into: Name of the struct column.
            on_poison: Policy for a record that cannot be decoded. ``fail`` stops the job. ``drop`` drops and counts the
                record. ``dead-letter`` publishes it to the topic `dead_letters`: each row then has a column
                ``poison``, null or the record. Select ``poison`` for the sink too, or pass the returned DataFrame as
                ``dead_letters=`` to `sink`.
            dead_letters: The dead-letter topic, for the policy ``dead-letter``.
            event_time: Field of the record, of type ``timestamp``, that a watermark uses.
            max_ahead: Longest time, such as ``5min``, by which `event_time` may be after the time of the epoch. A
                record beyond it is a poison record: one wrong clock could otherwise move the watermark, and Spark would
                drop all rows of the right clocks as late.

        Returns:
            `frame` with the column `into`, and with ``poison`` for the policy ``dead-letter``.

        Raises:
            SpecError: The schema, the columns or the policy cannot be used.
            TopicMissing: The dead-letter topic does not exist.
            RegistryUnavailable: The Schema Registry did not answer.

        Example::

            orders = ctx.decode(ctx.source("orders"), Json(), schema="id long, amount double",
                                on_poison="dead-letter", dead_letters="orders-dead")
            ctx.sink(orders.select("key", F.to_json("record").alias("value"), "poison"), topic="clean")
        """
        if on_poison not in {"fail", "dead-letter", "drop"}:
            raise SpecError(f"on_poison={on_poison!r} is unknown.", hint="use fail, dead-letter or drop.")
        if (on_poison == "dead-letter") != (dead_letters is not None):
            raise SpecError("on_poison='dead-letter' and dead_letters='<topic>' belong together.")
        if dead_letters is not None and topics_missing(self.kafka, [dead_letters]):
            raise unlisted_topics_error(self.kafka, "dead-letter", [dead_letters], ())
        if (event_time is None) != (max_ahead is None):
            raise SpecError("event_time='<field>' and max_ahead='<duration>' belong together.")
        reader = format.reader(_struct(schema), self.pins)
        bound = columns.Bound.of(event_time, max_ahead, reader.spark_type) if event_time and max_ahead else None
        self._decodes += 1
        if dead_letters is not None:
            self.dead_letter_topics[f"{UDF_NAME}{self._decodes}"] = dead_letters
        return columns.decode(
            frame,
            reader,
            self._decodes,
            column=column,
            into=into,
            on_poison=on_poison,
            dead_letters=dead_letters or "",
            bound=bound,
        )

    def encode(self, column: Column | str, format: Format, *, subject: str | None = None) -> Column:  # noqa: A002
        """Encode a struct column as bytes; null stays null.

        If the format uses a Schema Registry, this call registers the schema or looks it up. Tasks never register any.

        Args:
            column: The struct column, or its name.
            format: `clonos.formats.Json`, `Avro` or `Protobuf`.
            subject: Subject of the schema in the registry, usually ``<topic>-value``.

        Returns:
            A binary column.

        Raises:
            SpecError: The subject or the schema is missing, or the registry refuses the schema.
            RegistryUnavailable: The Schema Registry did not answer.

        Example::

            value = ctx.encode(F.struct("id", "amount"), Avro(avsc=SCHEMA), subject="orders-value")
        """
        return columns.encode(column, format.writer(subject, self.pins))

    def sink(
        self,
        frame: DataFrame,
        *,
        topic: str | None = None,
        name: str = "output",
        mode: str = "append",
        delivery: str | None = None,
        every: str | None = None,
        dead_letters: DataFrame | None = None,
        connector: str = "kafka",
        connection: str | None = None,
        **options: Any,
    ) -> None:
        """Publish `frame`. Each sink is one streaming query.

        Args:
            frame: A streaming DataFrame. For Kafka: ``value``, and optionally ``key``, ``topic``, ``partition``,
                ``headers`` and ``timestamp``.
            topic: Topic of the rows without a ``topic`` column value.
            name: Stable name, part of log records, transactional ids and the checkpoint.
            mode: Spark's output mode: ``append``, ``update`` or ``complete``.
            delivery: ``exactly-once``, ``atomic-epoch`` (the whole epoch becomes visible at once) or
                ``at-least-once``; default the job's.
            every: Minimum time between the starts of two epochs of this sink, such as ``30s``; ``0s`` starts the next
                one as soon as input arrives. Default the job's ``trigger.interval``.
            dead_letters: A DataFrame of `decode` with the policy ``dead-letter``, whose poison records this sink
                publishes too. For queries that cannot carry the column ``poison``, such as aggregations.
            connector: Name in the entry point group ``clonos.sinks``.
            connection: Name of a database in ``connections`` of the specification, for the connector ``sql``.
            options: Further arguments of the connector.

        Raises:
            SpecError: The sink cannot publish these columns, or refuses an argument.
            TopicMissing: The topic does not exist.
            BrokerLimit: The broker does not allow the sink's transaction timeout.
            BrokerUnavailable: Kafka did not answer.

        Example::

            ctx.sink(totals, topic="totals", name="totals", mode="update", delivery="atomic-epoch")
        """
        if topic is not None:
            options["topic"] = topic
        if connection is not None:
            options["connection"] = self._connection(connection)
        sink: Sink = _connector("clonos.sinks", connector, options)(
            name, output_mode=mode, delivery=delivery or self.spec.spec.delivery, **options
        )
        if dead_letters is not None:
            frame = with_dead_letters(frame, dead_letters)
        self.add(sink, frame, every=every)

    def _connection(self, name: str) -> Connection:
        known = self.spec.spec.connections
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise SpecError(
                f"The specification has no connection {name!r}{did_you_mean(name, known)}",
                hint=f"add it to spec.connections of the job.yaml; there are: {names}.",
            )
        return known[name]

    def add(self, sink: Sink, frame: DataFrame, *, every: str | None = None, folder: str | None = None) -> None:
        """Publish `frame` to a sink object, as one streaming query. `sink` calls this with the connector's sink.

        Args:
            sink: The sink.
            frame: The streaming DataFrame to publish.
            every: As in `sink`.
            folder: The query's folder below the job's checkpoint; default the sink's name.

        Raises:
            SpecError: The sink's settings are invalid, or it cannot publish these columns.
        """
        _require_member(get_args(OutputMode), sink.output_mode, f"The sink {sink.name!r} has mode")
        _require_member(get_args(DeliveryMode), sink.delivery, f"The sink {sink.name!r} has delivery")
        try:
            check_name(sink.name)
        except ValueError as error:
            raise SpecError(f"The sink name {error}.") from error
        if any(query.name == sink.name for query in self.queries):
            raise SpecError(f"Two sinks are named {sink.name!r}.", hint="give each ctx.sink a name of its own.")
        if not frame.isStreaming:
            raise SpecError(
                f"The sink {sink.name!r} got a DataFrame without a streaming source.", hint="start at ctx.source."
            )
        interval_ms = self.spec.spec.trigger.interval_ms if every is None else _interval_ms(sink, every)
        check_shape(frame)
        sink.check_frame(frame)
        sink.check(self.kafka)
        self.queries.append(Query(sink, frame, interval_ms, folder))

    def check_dead_letters(self) -> None:
        """Refuse a job that may lose poison records although their policy is ``dead-letter``.

        Raises:
            SpecError: No sink publishes all poison records. The error names the dead-letter topic and the plan nodes
                that may lose some.
        """
        if not self.dead_letter_topics:
            return
        published: set[str] = set()
        losing: set[str] = set()
        for query in self.queries:
            if not getattr(query.sink, "publishes_dead_letters", False):
                continue
            names, nodes = carried(query.frame)
            published |= names
            losing |= nodes
        for name, topic in self.dead_letter_topics.items():
            if name not in published:
                raise SpecError(
                    f"No sink gets all poison records for {topic!r}"
                    + (f": {', '.join(sorted(losing))} may lose some of them." if losing else "."),
                    hint="select the column 'poison' for ctx.sink and keep its rows in filters "
                    "(F.col('poison').isNotNull() | …). Join a table with how='left', on a field of the record, or "
                    "with F.col('poison').isNull() in the condition. Otherwise pass the decoded DataFrame as "
                    "ctx.sink(…, dead_letters=…).",
                )


def _struct(schema: str | StructType | None) -> StructType | None:
    if not isinstance(schema, str):
        return schema
    parsed: DataType = _parse_datatype_string(schema)
    if not isinstance(parsed, StructType):
        raise SpecError(f"schema={schema!r} is not a struct.", hint="for example schema='id long, amount double'.")
    return parsed


def _interval_ms(sink: Sink, every: str) -> int:
    try:
        return Trigger.model_validate({"interval": every}).interval_ms
    except ValidationError as error:
        raise SpecError(f"The sink {sink.name!r} has every={every!r}: {explain(error)}.") from error


def _require_member(allowed: tuple[str, ...], value: str, subject: str) -> None:
    if value not in allowed:
        raise SpecError(f"{subject} {value!r}.", hint=f"use {' or '.join(allowed)}.")


# What the context itself passes to a connector.
_PASSED: Final = frozenset({"output_mode", "delivery", "starting", "max_per_epoch", "options"})


def _connector(group: str, name: str, options: Iterable[str]) -> Callable[..., Any]:
    """Return the class of a connector, if it takes these options.

    The context passes the first parameter by position: topics or a sink's name.
    """
    kind = find_connector(group, name)
    parameters = list(inspect.signature(kind).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return kind
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = next((parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY), None)
    known = [
        other.name for other in parameters if other.kind in by_name and other is not first and other.name not in _PASSED
    ]
    of_context = inspect.signature(JobContext.sink if group == "clonos.sinks" else JobContext.source).parameters
    for option in options:
        if option not in known:
            names = [*(other for other in of_context if other not in ("self", "options")), *known]
            raise SpecError(
                f"The connector {name!r} has no option {option!r}{did_you_mean(option, names)}",
                hint=f"its options are {', '.join(sorted(known))}.",
            )
    return kind


def find_connector(group: str, name: str) -> Callable[..., Any]:
    """Import the class of a source or sink by its entry point; `SpecError` if no installed package has it, or it
    needs a package that is missing.
    """
    installed = {point.name: point for point in entry_points(group=group)}
    if name not in installed:
        names = ", ".join(sorted(installed)) or "none"
        raise SpecError(f"No connector {name!r} in {group}.", hint=f"installed are: {names}.")
    try:
        return cast("Callable[..., Any]", installed[name].load())
    except ModuleNotFoundError as error:
        raise SpecError(
            f"The connector {name!r} needs the package {error.name!r}, which is not installed.",
            hint="install it; for the connector sql: pip install 'clonos[sql]'.",
        ) from error
