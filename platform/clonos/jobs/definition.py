"""A job: a decorated function that reads sources and publishes DataFrames to sinks.

::

    @clonos.job(name="shout")
    def shout(ctx):
        lines = ctx.source("lines")
        ctx.sink(lines.select("key", F.upper(F.col("value").cast("string")).alias("value")), topic="shouted")
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pyspark.sql import SparkSession

from clonos import python_source
from clonos.causal.naming import forget_uses
from clonos.documents import did_you_mean, explain
from clonos.errors import ClonosError, JobCodeError, SpecError, TopicMissing
from clonos.jobs.code_failures import refused_query
from clonos.jobs.context import JobContext
from clonos.jobs.importing import line_in
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.kafka import topics_missing

JobFunction = Callable[[JobContext], None]

_UNKNOWN_ARGUMENT: Final = re.compile(
    r"JobContext\.(?P<method>\w+)\(\) got an unexpected keyword argument '(?P<name>\w+)'"
)
# Arguments with the name of a topic, by method; an empty name is the first positional argument.
_ARGUMENTS: Final = {"source": ("", "topics"), "sink": ("topic",), "decode": ("dead_letters",)}


@dataclass(frozen=True)
class Job:
    """A job function with its specification. The decorator `job` and `load_job` create it."""

    function: JobFunction
    """The job function."""
    spec: JobSpec
    """The specification."""
    code: str = ""
    """Hash of the job's code; empty before `load_job`."""
    directory: Path | None = None
    """The folder of the job file; None before `load_job`."""
    builds_frames: bool = True
    """Whether the function builds its DataFrames itself. False for `clonos.exactly_once`, whose DataFrame exists
    already.
    """
    files: Mapping[str, str] = field(default_factory=dict)
    """The parts of that code: file or package → hash or version (`clonos.jobs.code_files`)."""

    def define(self, context: JobContext) -> None:
        """Run the job function, which adds sources and queries to `context`.

        Raises:
            JobCodeError: The function raised, or stopped the Spark session.
            SpecError: The function defined no sink.
            TopicMissing: A topic does not exist; the error names all missing topics that the code names.
        """
        if self.builds_frames:
            forget_uses()
        failure: Exception | None = None
        try:
            self.function(context)
        except TopicMissing as error:
            code = Path(self.function.__code__.co_filename)
            complete = with_all_missing(error, code, partial(topics_missing, context.kafka))
            if complete is error:  # `raise error from error` would make it its own cause
                raise
            raise complete from error
        except ClonosError:
            raise
        except Exception as error:
            failure = error
        if _stopped(context.spark):
            raise JobCodeError(
                f"The job function of {self.spec.name} stopped the Spark session.",
                kept="nothing was started.",
                hint="remove spark.stop(): Clonos stops the session at the end of the job.",
            ) from failure
        if failure is not None:
            where = line_in(Path(self.function.__code__.co_filename), failure)
            what = f"raised {type(failure).__name__}: {failure}{_intended(failure)}"
            if type(failure).__name__ in {"AnalysisException", "ParseException"}:
                what = f"has a query that Spark refuses: {refused_query(str(failure))}"
            raise JobCodeError(
                f"The job function of {self.spec.name}{where} {what}", kept="nothing was started."
            ) from failure
        if not context.queries:
            raise SpecError(f"The job {self.spec.name} has no sink.", hint="call ctx.sink(df, topic=…) in it.")
        context.check_dead_letters()


def _intended(failure: Exception) -> str:
    """Return the argument of the context's method that a call with an unknown one may have meant."""
    match = _UNKNOWN_ARGUMENT.search(str(failure)) if isinstance(failure, TypeError) else None
    method = getattr(JobContext, match["method"], None) if match is not None else None
    if match is None or method is None:
        return ""
    return did_you_mean(match["name"], inspect.signature(method).parameters, otherwise="")


def _stopped(spark: SparkSession) -> bool:
    context: Any = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None


def job(*, name: str, **spec: Any) -> Callable[[JobFunction], Job]:
    """Declare a job: a decorator for a function that takes a `JobContext`.

    Args:
        name: 1 to 100 of ``a-z``, ``0-9`` and ``-``. The causal log, the transactions and the consumer group are named
            after it.
        spec: Fields of `clonos.jobs.spec.Spec`, such as ``params``, ``spark_conf`` or ``trigger``. The fields of a
            job.yaml take precedence.

    Returns:
        A decorator that returns a `Job`.

    Raises:
        SpecError: (when decorating) The name or a field is invalid.

    Example::

        @clonos.job(name="shout", trigger={"interval": "500ms"})
        def shout(ctx: clonos.JobContext) -> None:
            ctx.sink(ctx.source("lines").select("key", "value"), topic="shouted")
    """

    def wrap(function: JobFunction) -> Job:
        try:
            job_spec = JobSpec(metadata=Metadata(name=name), spec=Spec.model_validate(spec))
        except ValidationError as error:
            raise SpecError(f"Invalid specification of the job {name!r}: {explain(error)}.") from error
        return Job(function, job_spec)

    return wrap


def named_topics(code: Path) -> list[str]:
    """Return the topics that calls like ``ctx.source("orders")`` in a Python file name literally, in order."""
    try:
        tree = python_source.parse(code.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return list(dict.fromkeys(topic for call in calls for topic in _topics_of(call)))


def with_all_missing(error: TopicMissing, code: Path, topics_missing: Callable[[list[str]], list[str]]) -> TopicMissing:
    """Add the other missing topics that the code file names to the error about the first one."""
    others: list[str] = []
    with contextlib.suppress(ClonosError):  # Kafka did not answer again
        others = [topic for topic in topics_missing(named_topics(code)) if repr(topic) not in error.what]
    if not others:
        return error
    verb = "do not exist either" if len(others) > 1 else "does not exist either"
    names = ", ".join(map(repr, others))
    return TopicMissing(
        f"{error.what} {names}, which the code names too, {verb}.",
        kept=error.kept,
        hint=f"{error.hint} The same for {' '.join(others)}.",
    )


def _topics_of(call: ast.Call) -> Iterator[str]:
    assert isinstance(call.func, ast.Attribute)
    names = _ARGUMENTS.get(call.func.attr, ())
    if not names or any(keyword.arg == "connector" for keyword in call.keywords):
        return
    values = [keyword.value for keyword in call.keywords if keyword.arg in names]
    if "" in names:
        values += call.args[:1]
    for value in values:
        elements = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        for element in elements:
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                yield element.value
