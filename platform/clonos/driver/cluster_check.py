"""Checks a Spark cluster on each executor: versions, Python packages, modules of the job, and shared locations.

``python -m clonos.driver.cluster_check`` reads a `ClusterSpec` as JSON, starts a small application on the cluster and
prints a `ClusterReport` as JSON. The value of the cluster's secret is in the environment variable
``CLONOS_CLUSTER_SECRET``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pydantic import ValidationError
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from clonos.deadline import Deadline
from clonos.documents import explain
from clonos.driver.checkpoint import CheckpointDirectory
from clonos.embedded.jars import ensure_jars
from clonos.errors import CheckpointUnwritable, ClonosError, ClusterUnavailable, SessionIncompatible, SpecError
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.jobs.spec import ExecutorResources
from clonos.settings import Settings
from clonos.spark.clusters import ClusterUse, require_master, use_cluster
from clonos.spark.internals import hadoop_configuration, jvm_of
from clonos.spark.session import build_session

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_EXECUTOR_S: Final = 60.0  # for the first executor
_OTHERS_S: Final = 10.0  # for the others after the first
_POLL_S: Final = 0.1
_CHECK_MB: Final = 512
_OWN: Final = "clonos"
_REASON_CHARACTERS: Final = 500
# In the text of a failed task: of a function, of the worker's start, and of an interpreter that does not exist.
_PYTHON_FAILED: Final = ("Traceback (most recent call last)", "Error from python worker", "Cannot run program")
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \((\S+) executor (\w+)\)")
_WHOLE_S: Final = 240.0  # for the whole check
_PYTHON_ERROR: Final = re.compile(
    r"^ *((?:\w+\.)*\w*(?:Error|Exception|Found)\b(?! from python worker).*)$", re.MULTILINE
)


class ExecutorFacts(msgspec.Struct, frozen=True):
    """What one task saw of its executor."""

    executor: str  # Spark's id of the executor
    host: str  # the executor's host
    spark: str  # version of Spark
    java: str  # version of Java
    unreadable: str = ""  # why it cannot read the probe file; empty: it can, or there is none
    python: str = ""  # version of Python
    clonos: str = ""  # version of Clonos
    missing: tuple[str, ...] = ()  # modules and packages that its Python lacks

    @property
    def name(self) -> str:
        """The executor in a message."""
        return f"Executor {self.executor} on {self.host}"


@dataclass(frozen=True)
class CheckRequest:
    """What an executor must have."""

    modules: tuple[str, ...] = ()  # modules of the job, on top level
    packages: tuple[str, ...] = ()  # installed packages


def require_fit(spark: SparkSession, use: ClusterUse, request: CheckRequest, checkpoint: str) -> None:
    """Refuse a cluster on which the job would fail, before the driver claims the log.

    Args:
        spark: The session.
        use: The cluster.
        request: What each executor must have.
        checkpoint: Path or URI of the job's checkpoint. Executors keep state in it.

    Raises:
        ClusterUnavailable: The cluster gives no executor.
        SessionIncompatible: An executor differs; the error names its host and the differences.
        CheckpointUnwritable: The checkpoint is a folder of this machine outside the cluster's shared locations, or an
            executor cannot read a file that the driver wrote there.
    """
    _require_shared(spark, use, checkpoint)
    await_executors(spark, use)
    with probe_file(spark, checkpoint) as probe:
        facts = check_executors(spark, use, request, probe=probe)
        unreadable = unreadable_by(facts, probe)
    problems = differences(facts, driver_facts())
    if problems:
        raise SessionIncompatible(
            f"Jobs cannot run on {use.described}: {' '.join(problems)}",
            hint="install the same versions on the hosts of the executors, or name `python` or `environment` in the "
            "cluster file.",
        )
    if unreadable:
        raise CheckpointUnwritable(
            f"Executors do not see the checkpoint {checkpoint}: {' '.join(unreadable)}",
            kept="nothing was started.",
            hint="choose a location that the driver and all executors share.",
        )


def _require_shared(spark: SparkSession, use: ClusterUse, checkpoint: str) -> None:
    folder = CheckpointDirectory(spark, checkpoint).local
    locations = use.settings.shared_locations
    if folder is None or use.any_folder or is_shared(f"file://{folder}", locations):
        return
    raise CheckpointUnwritable(
        f"The checkpoint {checkpoint} is on the driver's disk, but executors of {use.described} keep state in it.",
        kept="nothing was started.",
        hint=f"choose a checkpoint below {' or '.join(locations)}."
        if locations
        else "name a folder that all hosts mount in sharedLocations of the cluster file, or use hdfs: or s3a:.",
    )


def await_executors(spark: SparkSession, use: ClusterUse) -> None:
    """Wait until the executors have registered, or some of them and 10 s have passed.

    Raises:
        ClusterUnavailable: None has registered within 60 s.
    """
    deadline = Deadline(_EXECUTOR_S)
    first = True
    while (number := _executors(spark)) < use.executor.instances and not deadline.passed():
        if number and first:
            first, deadline = False, Deadline(min(deadline.left_s(), _OTHERS_S))
        time.sleep(_POLL_S)
    if not number:
        executor = use.executor
        raise ClusterUnavailable(
            f"The application got no executor from {use.described} within {_EXECUTOR_S:.0f} s.",
            hint=f"check that a worker has {executor.cores} free cores and {executor.memory_mb} MiB, that executors "
            "reach the driver (spark.driver.host), and that Spark's version and the secret are the same: the logs of "
            "executors that exited have the reason.",
        )


def _executors(spark: SparkSession) -> int:
    status: Any = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return int(status.size()) - 1  # without the driver's own


def check_executors(
    spark: SparkSession, use: ClusterUse, request: CheckRequest, *, probe: str = ""
) -> list[ExecutorFacts]:
    """Look at each registered executor, with a task in each of its slots at the same time.

    Args:
        spark: The session.
        use: The cluster.
        request: What each executor must have.
        probe: URI of a file that each executor must be able to read; empty: none.

    Raises:
        SessionIncompatible: An executor cannot run the driver's Python functions.
        ClusterUnavailable: The tasks failed otherwise, for instance because an executor was lost.
    """
    conf = spark.sparkContext.getConf()
    cores, needed = (int(conf.get(f"spark.{name}", "1") or "1") for name in ("executor.cores", "task.cpus"))
    slots = _executors(spark) * (cores // needed)
    jvm = spark.range(0, slots, 1, slots).select(
        F.call_function("java_method", F.lit("clonos.ExecutorFacts"), F.lit("describe"), F.lit(probe)).alias("facts")
    )

    def run(*, barrier: bool) -> list[Row]:
        return jvm.mapInArrow(partial(_add_python, request=request), "facts string", barrier=barrier).collect()

    try:
        # A barrier: Spark starts all of its tasks together, so that none waits for a slot of another executor.
        rows = run(barrier=True)
    except Exception as failure:
        if not any(sign in str(failure) for sign in _PYTHON_FAILED):
            reason = str(failure).partition("\n")[0][:_REASON_CHARACTERS]
            raise ClusterUnavailable(f"The executors of {use.described} did not run the check: {reason}") from failure
        raise SessionIncompatible(
            f"Jobs cannot run on {use.described}: {_failed(_with_host(failure, partial(run, barrier=False)))}",
            hint="install the driver's versions of Python, clonos and its packages on the hosts of the executors, or "
            "name `python` or `environment` in the cluster file.",
        ) from failure
    facts = (msgspec.json.decode(row.facts, type=ExecutorFacts) for row in rows)
    return list({fact.executor: fact for fact in facts}.values())


def _with_host(failure: Exception, run: Callable[[], object]) -> str:
    """Return the text of a failure with the host of a task: Spark omits it for tasks with a barrier."""
    try:
        run()
    except Exception as again:
        return str(again)
    return str(failure)


def driver_facts() -> ExecutorFacts:
    """Return the versions of the driver."""
    return ExecutorFacts(
        "driver", platform.node(), pyspark.__version__, "", python=platform.python_version(), clonos=version(_OWN)
    )


def differences(facts: Collection[ExecutorFacts], driver: ExecutorFacts) -> list[str]:
    """Return what the executors lack, and what differs from the driver, as sentences."""
    problems = []
    for fact in _in_order(facts):
        for what, own, expected in (
            ("Spark", fact.spark, driver.spark),
            ("Python", _minor(fact.python), _minor(driver.python)),
            ("clonos", fact.clonos, driver.clonos),
        ):
            if own != expected:
                problems.append(f"{fact.name} has {what} {own or '(none)'}, the driver has {expected}.")
        if fact.missing:
            problems.append(f"{fact.name} cannot import {', '.join(fact.missing)}.")
    return problems


def unreadable_by(facts: Collection[ExecutorFacts], probe: str) -> list[str]:
    """Return the executors that cannot read the probe file, as sentences."""
    return [f"{fact.name} cannot read {probe}: {fact.unreadable}." for fact in _in_order(facts) if fact.unreadable]


def _in_order(facts: Collection[ExecutorFacts]) -> list[ExecutorFacts]:
    return sorted(facts, key=lambda fact: (fact.host, fact.executor))


def report_of(facts: Collection[ExecutorFacts], driver: ExecutorFacts, problems: Collection[str]) -> ClusterReport:
    """Return the versions and hosts, with `problems`."""
    return ClusterReport(
        spark=_versions([driver.spark, *(fact.spark for fact in facts)]),
        java=_versions(fact.java for fact in facts),
        python=_versions(fact.python for fact in facts),
        executors=len(facts),
        hosts=tuple(sorted({fact.host for fact in facts})),
        problems=tuple(problems),
    )


def _versions(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _minor(version_: str) -> str:
    return ".".join(version_.split(".")[:2])


def _failed(text: str) -> str:
    """Return a sentence about a check whose task failed before it could report."""
    lost = _LOST_TASK.search(text)
    where = f"Executor {lost.group(2)} on {lost.group(1)}" if lost else "An executor"
    errors = [line for line in _PYTHON_ERROR.findall(text) if not line.startswith(("org.apache", "java."))]
    reason = errors[-1] if errors else next(iter(text.splitlines()), "no reason")
    return f"{where} could not run Python: {reason.strip()[:_REASON_CHARACTERS]}"


def _add_python(batches: Iterator[pa.RecordBatch], *, request: CheckRequest) -> Iterator[pa.RecordBatch]:
    """Complete the facts in a Python worker."""
    for batch in batches:
        texts = []
        for text in batch.column(0).to_pylist():
            texts.append(json.dumps(json.loads(text) | _python_facts(request)))
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["facts"])


def _python_facts(request: CheckRequest) -> Mapping[str, object]:
    missing = [name for name in request.modules if importlib.util.find_spec(name) is None]
    missing += [name for name in request.packages if not _installed(name)]
    return {"python": platform.python_version(), "clonos": _installed(_OWN), "missing": missing}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def is_shared(location: str, shared: Collection[str]) -> bool:
    """Whether a location is below one of the shared ones."""
    parts = _parts(location)
    return ".." not in parts and any(parts[: len(prefix)] == prefix for prefix in map(_parts, shared))


def _parts(location: str) -> list[str]:
    scheme, _colon, path = location.partition(":")
    return [scheme, *filter(None, path.split("/"))]


@contextlib.contextmanager
def probe_file(spark: SparkSession, location: str) -> Iterator[str]:
    """Provide a small file in a folder, which is created; yields the file's URI.

    Raises:
        CheckpointUnwritable: It cannot be written.
    """
    uri = f"{location.rstrip('/')}/.clonos-shared-{uuid.uuid4()}"
    path: JavaObject = jvm_of(spark).org.apache.hadoop.fs.Path(uri)
    try:
        files: Any = path.getFileSystem(hadoop_configuration(spark))
        files.create(path, True).close()
        qualified = str(path.makeQualified(files.getUri(), files.getWorkingDirectory()).toString())
    except Py4JJavaError as failure:
        raise CheckpointUnwritable(f"{location} cannot be written: {failure.java_exception.toString()}") from failure
    try:
        yield qualified
    finally:
        with contextlib.suppress(Py4JJavaError):
            files.delete(path, False)


def check_cluster(spec: ClusterSpec, settings: Settings) -> ClusterReport:
    """Start a small application on a cluster and look at its executors.

    Raises:
        ClonosError: The cluster does not answer, or gives no executor.
    """
    use = use_cluster(spec, ExecutorResources(instances=2, cores=1, memory_mb=_CHECK_MB))
    require_master(use)
    # A worker's host may lack clonos: PySpark's own daemon can report that.
    conf = {"spark.python.daemon.module": "pyspark.daemon"}
    with build_session(
        "clonos-cluster-check", conf=conf, jars=ensure_jars(settings), settings=settings, cluster=use
    ) as session:
        spark = session.spark
        await_executors(spark, use)
        try:
            facts = check_executors(spark, use, CheckRequest())
        except SessionIncompatible as error:
            return ClusterReport(executors=_executors(spark), problems=(error.what,))
        problems = differences(facts, driver_facts())
        for location in use.settings.shared_locations:
            problems += _unshared(spark, use, location)
        return report_of(facts, driver_facts(), problems)


def _unshared(spark: SparkSession, use: ClusterUse, location: str) -> list[str]:
    try:
        with probe_file(spark, location) as probe:
            return unreadable_by(check_executors(spark, use, CheckRequest(), probe=probe), probe)
    except CheckpointUnwritable as error:
        return [f"The driver cannot use the shared location: {error.what}"]


@contextlib.contextmanager
def _deadline(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main() -> int:
    """Check the cluster that standard input describes; returns the exit code."""
    try:
        spec = ClusterSpec.model_validate_json(sys.stdin.read())
    except ValidationError as error:
        return _report(SpecError(f"The description of the cluster is invalid: {explain(error)}."))
    hangs = ClusterUnavailable(f"The check of the cluster {spec.name} did not end within {_WHOLE_S:.0f} s.")

    def end() -> None:
        os._exit(_report(hangs))  # a call of Spark does not return; its JVM exits with this process

    try:
        with _deadline(_WHOLE_S, end):
            report = check_cluster(spec, Settings())
    except ClonosError as error:
        return _report(error)
    sys.stdout.write(report.model_dump_json() + "\n")
    return 0


def _report(error: ClonosError) -> int:
    problem = {"error": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
    sys.stderr.write(json.dumps(problem) + "\n")
    sys.stderr.flush()
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
