"""One driver process: JVM, session, driver, events and exit."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from clonos.causal.epoch_scope import JOB_ENVIRONMENT, KAFKA_ENVIRONMENT, worker_environment
from clonos.driver.cluster_check import CheckRequest, require_fit
from clonos.driver.driver import Driver, default_checkpoint, jvm_exited
from clonos.driver.lag import LagMeter
from clonos.driver.options import RunOptions
from clonos.driver.states import DriverState
from clonos.driver.status import JobStatus
from clonos.driver.watches import ExecutorWatch, LogTopicWatch, OpenTransactions, TaskProgress
from clonos.embedded.jars import ensure_jars
from clonos.embedded.reachable import reachable_kafka
from clonos.errors import BrokerUnavailable, ClonosError, DriverUnresponsive, SpecError
from clonos.faults import DRIVER_GROUP
from clonos.jobs.code_files import PACKAGE
from clonos.jobs.definition import Job
from clonos.jobs.packages import LOCK
from clonos.jobs.spec import Spec
from clonos.lint import lint
from clonos.log.prepared import Prepared
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings, Settings
from clonos.signals import stop_on_signals
from clonos.spark.clusters import (
    ClusterUse,
    require_encryption,
    require_master,
    ship_code,
    use_cluster,
    use_master,
)
from clonos.spark.session import Session, build_session, is_local, session_conf
from clonos.spark.storage import needs_s3
from clonos.spark.user_session import configure_workers
from clonos.telemetry import driver_events as report
from clonos.telemetry import logs
from clonos.telemetry.driver_events import DriverEvent
from clonos.telemetry.events import Emit, EventHandler, Events
from clonos.telemetry.openlineage import lineage
from clonos.telemetry.tracing import Traces, tracing

OnTopics = Callable[[str, Collection[str], Collection[str]], None]
_RETRY_S: Final = 0.5
BeforeRun = Callable[[Driver, SparkSession, KafkaSettings, Emit, Path], Prepared | None]


class StopRequested(BaseException):
    """A signal requested the stop before the driver exists: nothing was claimed, so the process just ends."""


def _stop_at_once() -> None:
    raise StopRequested


def run_job(
    job: Job,
    options: RunOptions,
    *,
    handlers: Iterable[EventHandler] = (),
    advice: bool = True,
    before_run: BeforeRun | None = None,
    session: Session | None = None,
) -> None:
    """Run `job` in this process until it stops.

    Args:
        job: The job.
        options: The options of this run.
        handlers: Further receivers of the job's events.
        advice: Emit ``lint`` events for the findings of the linter.
        before_run: Called once the session exists, before the driver claims the log. Its last argument is a directory
            that is removed with the session. Returns the connections for the first claim; None: the driver does not
            run. If it raises, the run ends with that error.
        session: An existing session, for example of a pool driver. It is used if it fits the job, and is stopped with
            the job either way.

    Raises:
        ClonosError: The job could not continue; the process exits with the error's `exit_code`.
    """
    settings = Settings()
    logs.bind_fields(job=job.spec.name)
    status = JobStatus(job.spec.name)
    with tracing("clonos-driver", settings.traces) as traces, lineage(job.spec.name, settings.lineage) as reporter:
        telemetry_handlers: list[EventHandler] = [] if traces is None else [partial(_trace, traces)]
        telemetry_handlers += [] if reporter is None else [reporter.take]
        events = Events(job.spec.name, options.events, [_bind_generation, status.take, *handlers, *telemetry_handlers])
        events.start_heartbeat()
        try:
            job = replace(job, spec=job.spec.with_params(dict(options.params)))
            if advice:
                advise(job, events.emit)
            stop_on_signals(_stop_at_once)
            _run(job, options, settings, events, before_run, session, reporter.set_topics if reporter else None)
        except StopRequested:
            events.emit(report.State(DriverState.STOPPED))
            events.emit(report.Stopped())
        except ClonosError as error:
            if status.state not in {"FAILED", "SUPERSEDED"}:
                events.emit(report.Failed.of(error))  # before the driver ran; it emits its own failures
            raise
        except Py4JNetworkError as failure:
            exited = jvm_exited(failure)
            if status.state != "FAILED":
                events.emit(report.Failed.of(exited))
            raise exited from failure
        except Exception as failure:
            if status.state != "FAILED":
                events.emit(report.Failed.of(failure))
            raise
        finally:
            events.emit(status.summary())
            events.close()


def advise(job: Job, emit: Emit) -> None:
    """Run the linter on the job's file and the modules beside it that the file imports, and emit one ``lint``
    event for each finding. Findings never stop the job.
    """
    if job.directory is None:
        return
    try:
        findings = lint([Path(inspect.getfile(inspect.unwrap(job.function)))]).findings
    except Exception as error:  # the linter failed; the job may be sound
        structlog.get_logger("clonos").warning("lint-failed", job=job.spec.name, error=str(error))
        return
    for finding in findings:
        emit(report.Lint(**asdict(finding)))


def _trace(traces: Traces, event: DriverEvent) -> None:
    if isinstance(event, report.Epoch):
        traces.epoch(event)


def _bind_generation(event: DriverEvent) -> None:
    if isinstance(event, report.Claimed):
        logs.bind_fields(generation=event.generation)


def _run(
    job: Job,
    options: RunOptions,
    settings: Settings,
    events: Events,
    before_run: BeforeRun | None,
    session: Session | None,
    on_topics: OnTopics | None,
) -> None:
    spec = job.spec.spec
    cluster = _cluster(spec, options)
    if cluster is not None and job.directory is not None and (job.directory / LOCK).is_file():
        raise SpecError(
            f"The job has a {LOCK}, which the executors of a Spark cluster do not use.",
            hint="name its packages in an environment archive of the cluster (`clonos cluster environment`), and "
            "remove the lock.",
        )
    kafka = _await_kafka(settings, events) if options.wait_for_kafka else reachable_kafka(settings)
    _prepare_environment(job, kafka)
    conf = {**spec.spark_conf, **options.conf}
    checkpoint = options.checkpoint or spec.checkpoint or default_checkpoint(settings.home, job.spec.name)
    if cluster is not None:
        require_encryption(session_conf(job.spec.name, "", conf, cluster=cluster), cluster, kafka, settings.registry)
        require_master(cluster)
    session = (session and _usable(session, spec, options, kafka, checkpoint)) or build_session(
        job.spec.name,
        master=spec.master,
        conf=conf,
        jars=ensure_jars(settings),
        settings=settings,
        heap_mb=spec.driver.memory_mb,
        cores=spec.driver.cores,
        cluster=cluster,
        checkpoint=checkpoint,
    )
    offsets = OffsetClient(kafka)
    transactions = OpenTransactions(offsets, events.emit)
    log_topic = LogTopicWatch(kafka, job.spec.name, events.emit)
    lag = LagMeter(offsets, events.emit, stalled=partial(_stalled, events), stalled_s=spec.stall_timeout_s)
    executors = ExecutorWatch(session.spark, events.emit)

    def on_defined(read: frozenset[str], written: frozenset[str]) -> None:
        transactions.watch(read=read, written=written)
        if on_topics is not None:
            on_topics(kafka.bootstrap_servers.partition(",")[0], read, written)

    try:
        # Workers on other hosts do not inherit this process's environment.
        configure_workers(session.spark, kafka)
        session.spark.sparkContext.environment.update({JOB_ENVIRONMENT: job.spec.name, **logs.environment()})
        _announce(session.spark, cluster, events)
        if cluster is not None:
            _prepare_cluster(job, session, cluster, checkpoint)
        driver = Driver(
            job,
            session.spark,
            kafka,
            events,
            replace(options, checkpoint=checkpoint),
            on_start=lag.note_start,
            on_progress=lag.note,
            on_defined=on_defined,
        )
        stop_on_signals(driver.stop)
        prepared = None
        if before_run is not None:
            prepared = before_run(driver, session.spark, kafka, events.emit, session.scratch)
            if prepared is None:
                return
        lag.start(driver.busy, TaskProgress(session.spark, job.spec.name, driver.run_id).moved)
        transactions.start()
        log_topic.start()
        if cluster is not None:
            executors.start()
        driver.run(prepared)
    finally:
        lag.stop()
        transactions.stop()
        log_topic.stop()
        executors.stop()
        session.stop()


def _await_kafka(settings: Settings, events: Events) -> KafkaSettings:
    """Return the configured Kafka; else wait until the embedded one runs, without a limit.

    Raises:
        KafkaAccessDenied: A broker refused access.
    """
    if settings.kafka.bootstrap_servers:
        return settings.kafka  # the driver waits, once the session is ready
    waiting = False
    while True:
        try:
            kafka = reachable_kafka(settings)
        except BrokerUnavailable as error:
            if not waiting:
                events.emit(report.State(DriverState.WAITING))
                events.emit(report.Waiting.of(error))
                waiting = True
            time.sleep(_RETRY_S)
        else:
            if waiting:
                events.emit(report.State(DriverState.STARTING))
            return kafka


def _cluster(spec: Spec, options: RunOptions) -> ClusterUse | None:
    """Return the Spark cluster of the run; None with a local master.

    Raises:
        SpecError: The job names another cluster than the run, or the cluster's secret is unknown.
    """
    if options.cluster is not None:
        if spec.cluster not in ("", options.cluster.name):
            raise SpecError(f"The job names the cluster {spec.cluster}, but the cluster file {options.cluster.name}.")
        return use_cluster(options.cluster, spec.executor)
    if spec.cluster:
        raise SpecError(
            f"The job names the cluster {spec.cluster}.",
            hint="pass the file of the cluster with --cluster, or submit the job.",
        )
    master = options.conf.get("spark.master", spec.spark_conf.get("spark.master", spec.master))
    return None if is_local(master) else use_master(master, spec.executor)


def _announce(spark: SparkSession, cluster: ClusterUse | None, events: Events) -> None:
    """Emit the ``session`` event."""
    context = spark.sparkContext
    session = report.Session(
        master=context.master,
        application_id=context.applicationId,
        ui=context.uiWebUrl or "",
        cluster=cluster.name if cluster is not None else "",
    )
    events.emit(session)


def _prepare_cluster(job: Job, session: Session, cluster: ClusterUse, checkpoint: str) -> None:
    """Send the job's code to the executors, and refuse a cluster on which the job would fail."""
    shipped = [name for name in job.files if not name.startswith(PACKAGE)]
    modules: list[str] = []
    if job.directory is not None:
        modules = ship_code(session.spark, job.directory, shipped, session.scratch)
    own = Path(job.function.__code__.co_filename).stem  # travels by value
    packages = [name.removeprefix(PACKAGE) for name in job.files if name.startswith(PACKAGE)]
    request = CheckRequest(tuple(module for module in modules if module != own), tuple(packages))
    require_fit(session.spark, cluster, request, checkpoint)


def _usable(session: Session, spec: Spec, options: RunOptions, kafka: KafkaSettings, checkpoint: str) -> Session | None:
    """Return the session with the job's settings, if it then equals one that would be built for the job; otherwise stop
    it and return None.

    The specification of the code is available only now. The JVM may have exited, and the workers may be configured for
    another cluster.
    """
    configured = session.spark.sparkContext.environment.get(KAFKA_ENVIRONMENT)
    same_cluster = configured in (None, worker_environment(kafka)[KAFKA_ENVIRONMENT])
    fits = same_cluster and not needs_s3(checkpoint)  # its file system has jars of its own
    if fits and spec.any_jvm and not options.conf and options.cluster is None and session.gateway.running:
        for key, value in spec.spark_conf.items():
            session.spark.conf.set(key, value)
        return session
    with contextlib.suppress(Exception):  # Py4J's, about a JVM that exited
        session.stop()
    return None


def _stalled(events: Events, query: str, seconds: float) -> None:
    """Exit at once: a query that hangs cannot be stopped gracefully, and the next driver fences this one."""
    error = DriverUnresponsive(f"Query {query} has made no progress for {seconds:.0f} s although input waits.")
    events.emit(report.Failed.of(error))
    events.close()
    os._exit(error.exit_code)


def _prepare_environment(job: Job, kafka: KafkaSettings) -> None:
    """Set the environment that Python workers inherit: the Kafka cluster and the path of the job's modules."""
    os.environ.update(worker_environment(kafka))
    os.environ[DRIVER_GROUP] = str(os.getpgrp())
    if job.directory is not None:
        paths = [str(job.directory), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
