"""What a job is: a decorated function that reads sources and names sinks.

::

    @clonos.job(name="shout")
    def shout(ctx):
        lines = ctx.source("lines")
        ctx.sink(lines.select("key", F.upper(F.col("value").cast("string")).alias("value")), topic="shouted")
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import ValidationError
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from clonos.causal.derived import Parameters
from clonos.causal.naming import forget_uses
from clonos.causal.shape import check_shape
from clonos.errors import ClonosError, JobCodeError, JobMissing, SpecError, TopicMissing
from clonos.formats import columns
from clonos.formats.codec import Format
from clonos.formats.poison import UDF_NAME, Policy, carried, with_dead_letters
from clonos.formats.registry import Pins
from clonos.importing import import_file, line_in
from clonos.kafka import topics_missing
from clonos.settings import KafkaSettings, Settings
from clonos.sinks import DeliveryMode, OutputMode, Sink
from clonos.sources import Source
from clonos.spec import JobSpec, Metadata, Spec, check_name, explain, read_spec

JobFunction = Callable[["JobContext"], None]


@dataclass(frozen=True)
class Query:
    """One sink and what it gets: one streaming query with epochs of its own.

    Attributes:
        folder: The query's folder below the job's checkpoint; the sink's name where it is None.
    """

    sink: Sink
    frame: DataFrame
    folder: str | None = None

    @property
    def name(self) -> str:
        """The query's name, which is its sink's."""
        return self.sink.name

    def location(self, checkpoint: str) -> str:
        """The query's own checkpoint below that of its job."""
        folder = self.name if self.folder is None else self.folder
        return f"{checkpoint}/{folder}".rstrip("/")


@dataclass
class JobContext:
    """What a job function gets.

    Attributes:
        spark: The session.
        params: Job parameters.
        rehearsal: Sources are read, but none of their rows gets past them.
    """

    spark: SparkSession
    spec: JobSpec
    kafka: KafkaSettings
    sources: list[Source] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    pins: Pins = field(default_factory=lambda: Pins(Settings().registry.url, {}))
    rehearsal: bool = False
    _decodes: int = 0
    _dead_letters: dict[str, str] = field(default_factory=dict)  # the decode's name in plans → its topic

    @property
    def params(self) -> Mapping[str, str]:
        """Job parameters; one that was not given is named (`ParameterMissing`, which is a `KeyError` too)."""
        return Parameters(self.spec.spec.params)

    def source(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        assign: Mapping[str, Iterable[int]] | None = None,
        starting: str | Mapping[str, Mapping[int, int]] = "earliest",
        max_per_epoch: int | None = None,
        options: Mapping[str, str] | None = None,
        connector: str = "kafka",
    ) -> DataFrame:
        """A repeatable source as a streaming DataFrame with Spark's Kafka columns and ``headers``.

        Args:
            topics: One or several topics.
            pattern: Instead: every topic whose whole name matches this (Java) regular expression, also those that
                are created later; they are read from their beginning. Never the platform's own, ``clonos.…``.
            assign: Instead: topic → partitions, and no others.
            starting: Where the first epoch starts: ``earliest``, ``latest`` or topic → partition → offset.
            max_per_epoch: Rate limit: so many records at the most in one epoch.
            options: Further options of the connector (Spark's Kafka source).
            connector: Name in the entry point group ``clonos.sources``.

        Raises:
            SpecError: An option that would break repeatability, or an unknown connector.
            TopicMissing: A topic, or a partition in `assign`, does not exist.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        which = {"pattern": pattern, "assign": assign and {topic: tuple(some) for topic, some in assign.items()}}
        made: Source = find_connector("clonos.sources", connector)(
            names,
            **{name: given for name, given in which.items() if given is not None},
            starting=starting,
            max_per_epoch=max_per_epoch,
            options=dict(options or {}),
        )
        made.check(self.kafka)
        self.sources.append(made)
        rows = made.load(self.spark, self.kafka, self.spec.name)
        # Not a constant, which the optimiser would know the answer to.
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
    ) -> DataFrame:
        """`frame`, which has the columns of a source, with its records as a struct column.

        Args:
            frame: What `source` returned, or what still has its columns.
            format: `clonos.formats.Json`, `Avro` or `Protobuf`.
            schema: Spark type of the record, as DDL text; default what the format's own schema says.
            column: The column that holds the bytes. Null is not decoded, and is null.
            into: Name of the struct column.
            on_poison: A record that cannot be decoded ``fail``s the job, is ``drop``ped (and counted), or goes to
                the topic `dead_letters`: then each row has a column ``poison``, which is null or holds the record.
                Select it for the sink as well, or pass this DataFrame as ``dead_letters=`` to `sink`.
            dead_letters: The dead-letter topic.

        Raises:
            SpecError: Schema, columns or policy are not usable.
            TopicMissing: The dead-letter topic does not exist.
            RegistryUnavailable: The Schema Registry did not answer.
        """
        if on_poison not in {"fail", "dead-letter", "drop"}:
            raise SpecError(f"on_poison={on_poison!r} is not known.", hint="use fail, dead-letter or drop.")
        if (on_poison == "dead-letter") != (dead_letters is not None):
            raise SpecError("on_poison='dead-letter' and dead_letters='<topic>' belong together.")
        if dead_letters is not None and topics_missing(self.kafka, [dead_letters]):
            raise TopicMissing(
                f"The dead-letter topic {dead_letters!r} does not exist.",
                kept="nothing was started.",
                hint="create it; as many partitions as the source keep the load apart.",
            )
        reader = format.reader(_struct(schema), self.pins)
        self._decodes += 1
        if dead_letters is not None:
            self._dead_letters[f"{UDF_NAME}{self._decodes}"] = dead_letters
        return columns.decode(
            frame,
            reader,
            self._decodes,
            column=column,
            into=into,
            on_poison=on_poison,
            dead_letters=dead_letters or "",
        )

    def encode(self, column: Column | str, format: Format, *, subject: str | None = None) -> Column:  # noqa: A002
        """A struct column as bytes; null stays null.

        The schema is registered here, in the driver, and never in a task.

        Args:
            column: The struct.
            format: `clonos.formats.Json`, `Avro` or `Protobuf`.
            subject: Where the registry keeps the schema, usually ``<topic>-value``.

        Raises:
            SpecError: Subject or schema is missing, or the registry refuses the schema.
            RegistryUnavailable: The Schema Registry did not answer.
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
        dead_letters: DataFrame | None = None,
        connector: str = "kafka",
        **options: Any,
    ) -> None:
        """Publish `frame`; each sink is one streaming query.

        Args:
            frame: Columns ``value`` and optionally ``key``, ``topic``, ``partition``, ``headers``, ``timestamp``.
            topic: Where rows without a ``topic`` go.
            name: Stable name, part of log records, transactional ids and the checkpoint.
            mode: ``append``, ``update`` or ``complete``.
            delivery: ``exactly-once``, ``atomic-epoch`` (the whole epoch becomes visible at once) or
                ``at-least-once``; default the job's.
            dead_letters: What `decode` returned with the policy ``dead-letter``: its poison records are published
                by this sink too. For queries that cannot carry the column ``poison``, such as aggregations.
            connector: Name in the entry point group ``clonos.sinks``.
            options: Further arguments of the connector.

        Raises:
            SpecError: Columns or arguments that cannot be published.
        """
        if topic is not None:
            options["topic"] = topic
        chosen = delivery or self.spec.spec.delivery
        made: Sink = find_connector("clonos.sinks", connector)(name, output_mode=mode, delivery=chosen, **options)
        if dead_letters is not None:
            frame = with_dead_letters(frame, dead_letters)
        self.add(made, frame)

    def add(self, sink: Sink, frame: DataFrame, *, folder: str | None = None) -> None:
        """Publish `frame` to a sink that is made already.

        Args:
            sink: The sink.
            frame: What it gets.
            folder: The query's folder below the job's checkpoint; default the sink's name.

        Raises:
            SpecError: The sink's settings, or columns that it cannot publish.
        """
        _one_of(get_args(OutputMode), sink.output_mode, f"The sink {sink.name!r} has mode")
        _one_of(get_args(DeliveryMode), sink.delivery, f"The sink {sink.name!r} has delivery")
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
        check_shape(frame)
        sink.check_frame(frame)
        sink.check(self.kafka)
        self.queries.append(Query(sink, frame, folder))

    def check_dead_letters(self) -> None:
        """Refuse a job in which poison records of a decode may be lost without a word.

        Raises:
            SpecError: Naming the dead-letter topic and what stands in the way.
        """
        if not self._dead_letters:
            return
        found: set[str] = set()
        losing: set[str] = set()
        for query in self.queries:
            if not getattr(query.sink, "publishes_dead_letters", False):
                continue
            names, nodes = carried(query.frame)
            found |= names
            losing |= nodes
        for name, topic in self._dead_letters.items():
            if name not in found:
                raise SpecError(
                    f"No sink gets all poison records for {topic!r}"
                    + (f": {', '.join(sorted(losing))} may lose some of them." if losing else "."),
                    hint="select the column 'poison' for ctx.sink and keep its rows in filters "
                    "(F.col('poison').isNotNull() | …), or pass the decoded DataFrame as ctx.sink(…, dead_letters=…).",
                )


def _struct(schema: str | StructType | None) -> StructType | None:
    if not isinstance(schema, str):
        return schema
    parsed: DataType = _parse_datatype_string(schema)
    if not isinstance(parsed, StructType):
        raise SpecError(f"schema={schema!r} is not a struct.", hint="for example schema='id long, amount double'.")
    return parsed


def _one_of(known: tuple[str, ...], value: str, what: str) -> None:
    if value not in known:
        raise SpecError(f"{what} {value!r}.", hint=f"use {' or '.join(known)}.")


def find_connector(group: str, name: str) -> Callable[..., Any]:
    """The class that an entry point names.

    Raises:
        SpecError: Nothing of that name is installed.
    """
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        known = ", ".join(sorted(point.name for point in entry_points(group=group))) or "none"
        raise SpecError(f"No connector {name!r} in {group}.", hint=f"installed are: {known}.")
    return cast("Callable[..., Any]", found[0].load())


@dataclass(frozen=True)
class Job:
    """A job function with its specification, and the hash of the code that both came from.

    Attributes:
        builds_frames: Whether the function builds its DataFrames itself; otherwise they were there before, and their
            operators are numbered already.
    """

    function: JobFunction
    spec: JobSpec
    code: str = ""
    directory: Path | None = None
    builds_frames: bool = True

    def define(self, context: JobContext) -> None:
        """Run the job function.

        Raises:
            JobCodeError: It raised.
            SpecError: It defined no sink.
        """
        if self.builds_frames:
            forget_uses()
        failure: Exception | None = None
        try:
            self.function(context)
        except ClonosError:
            raise
        except Exception as error:
            failure = error
        if _stopped(context.spark):
            raise JobCodeError(
                f"The job function of {self.spec.name} stopped the Spark session.",
                kept="nothing was started.",
                hint="leave spark.stop() out: the session ends with the job.",
            ) from failure
        if failure is not None:
            where = line_in(Path(self.function.__code__.co_filename), failure)
            raise JobCodeError(
                f"The job function of {self.spec.name}{where} raised {type(failure).__name__}: {failure}",
                kept="nothing was started.",
            ) from failure
        if not context.queries:
            raise SpecError(f"The job {self.spec.name} has no sink.", hint="call ctx.sink(df, topic=…) in it.")
        context.check_dead_letters()


def _stopped(spark: SparkSession) -> bool:
    context: Any = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None


def job(*, name: str, **spec: Any) -> Callable[[JobFunction], Job]:
    """Declare a job.

    Args:
        name: ``[a-z0-9-]``; names the causal log, transactions and the consumer group.
        spec: Fields of `clonos.spec.Spec`, such as ``params``, ``spark_conf`` or ``trigger``.

    Raises:
        SpecError: A field is wrong.
    """

    def wrap(function: JobFunction) -> Job:
        try:
            made = JobSpec(metadata=Metadata(name=name), spec=Spec.model_validate(spec))
        except ValidationError as error:
            raise SpecError(f"The job {name!r} is not specified well: {explain(error)}.") from error
        return Job(function, made)

    return wrap


def load_job(path: Path) -> Job:
    """The job in a Python file, or in the one that a YAML file names; the YAML's fields win.

    Raises:
        JobMissing: No such file, or it holds no job (or several).
        JobNotImportable: It raised.
        SessionNeeded: It uses Spark while it is imported, and there is no session yet.
        SpecError: The YAML is wrong.
    """
    path = path.resolve()
    if path.is_dir():
        found = [path / name for name in ("job.yaml", "job.py") if (path / name).exists()]
        if not found:
            raise JobMissing(f"The folder {path} holds neither a job.yaml nor a job.py.")
        path = found[0]
    if path.suffix in {".yaml", ".yml"}:
        spec = read_spec(path)
        main = path.parent / (spec.spec.main or "job.py")
        if main.suffix in {".yaml", ".yml"}:
            raise SpecError(f"{path} names {main.name} as its job file.", hint="main: is a Python file.")
        inner = load_job(main)
        return Job(inner.function, _merged(inner.spec, spec), inner.code, inner.directory)
    if not path.is_file():
        raise JobMissing(f"There is no job file {path}.")
    module = import_file(path)
    jobs = list({id(value): value for value in vars(module).values() if isinstance(value, Job)}.values())
    if not jobs:
        raise JobMissing(f"{path} holds no job.", hint="decorate one function in it with @clonos.job(name=…).")
    if len(jobs) > 1:
        names = ", ".join(one.spec.name for one in jobs)
        raise JobMissing(f"{path} holds {len(jobs)} jobs: {names}.", hint="give each a file of its own.")
    return Job(jobs[0].function, jobs[0].spec, code_hash(path), path.parent)


def code_hash(path: Path) -> str:
    """Hash of a Python file and of the modules beside and below it that are imported."""
    beside = {
        Path(file).resolve()
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and file.endswith(".py") and "site-packages" not in file
    }
    digest = hashlib.sha256()
    for file in sorted({path, *(one for one in beside if one.is_relative_to(path.parent))}):
        digest.update(str(file.relative_to(path.parent)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _merged(code: JobSpec, text: JobSpec) -> JobSpec:
    """The YAML's fields over the decorator's."""
    given: dict[str, Any] = {name: getattr(text.spec, name) for name in text.spec.model_fields_set}
    for name in ("params", "spark_conf"):
        given[name] = {**getattr(code.spec, name), **given.get(name, {})}
    return JobSpec(metadata=text.metadata, spec=code.spec.model_copy(update=given))
