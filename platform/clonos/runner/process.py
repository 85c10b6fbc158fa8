"""One driver process: JVM, session, driver, and what the user reads at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from clonos import logs
from clonos.causal.scope import KAFKA_ENVIRONMENT, worker_environment
from clonos.embedded.jars import ensure_jars
from clonos.embedded.reachable import reachable_kafka
from clonos.engine.attached import tell_workers
from clonos.engine.session import Session, build_session
from clonos.errors import ClonosError, DriverHung
from clonos.faults import DRIVER_GROUP
from clonos.job import Job
from clonos.lineage import lineage
from clonos.log.prepared import Prepared
from clonos.runner.advice import advise
from clonos.runner.driver import Driver, default_checkpoint, stop_on_signals
from clonos.runner.events import Emit, Event, Events, Teller, trouble
from clonos.runner.lag import LagMeter
from clonos.runner.open_transactions import OpenTransactions
from clonos.runner.status import JobStatus
from clonos.settings import KafkaSettings, Settings
from clonos.spec import Spec
from clonos.tracing import Traces, tracing

Defined = Callable[[str, Collection[str], Collection[str]], None]
First = Callable[[Driver, SparkSession, KafkaSettings, Emit, Path], Prepared | None]


def run_job(
    job: Job,
    *,
    params: Mapping[str, str],
    conf: Mapping[str, str],
    checkpoint: str | None = None,
    events: Path | None = None,
    tellers: Iterable[Teller] = (),
    new_lineage: bool = False,
    wish: str = "",
    accept_new_code: bool = False,
    advice: bool = True,
    first: First | None = None,
    session: Session | None = None,
) -> None:
    """Run `job` in this process until it ends.

    `first` is called before the driver runs, with a folder that goes with the session, and gives what its claim finds
    ready; None: it is not to run. `session` is one that is there already, as the job wants it; it ends with the job.

    Raises:
        ClonosError: Why it could not go on; its `exit_code` is the process's.
    """
    settings = Settings()
    logs.about(job=job.spec.name)
    status = JobStatus(job.spec.name)
    with tracing("clonos-driver", settings.traces) as traces, lineage(job.spec.name, settings.lineage) as flows:
        others: list[Teller] = [] if traces is None else [partial(_trace, traces)]
        others += [] if flows is None else [flows.take]
        told = Events(job.spec.name, events, [_generation, status.take, *tellers, *others])
        told.be_alive()
        try:
            job = Job(job.function, job.spec.with_params(dict(params)), job.code, job.directory)
            if advice:
                advise(job, told.emit)
            _run(
                job,
                settings,
                told,
                conf,
                checkpoint,
                new_lineage=new_lineage,
                wish=wish,
                accept_new_code=accept_new_code,
                first=first,
                session=session,
                defined=flows.flows if flows else None,
            )
        except ClonosError as error:
            if status.state not in {"FAILED", "SUPERSEDED"}:
                told.emit("failed", **trouble(error))  # before the driver ran, which tells its own
            raise
        finally:
            told.emit("summary", **status.summary())
            told.close()


def _trace(traces: Traces, event: Event) -> None:
    if event["event"] == "epoch":
        traces.epoch(event)


def _generation(event: Event) -> None:
    if event["event"] == "claimed":
        logs.about(generation=event["generation"])


def _run(
    job: Job,
    settings: Settings,
    told: Events,
    conf: Mapping[str, str],
    checkpoint: str | None,
    *,
    new_lineage: bool,
    wish: str,
    accept_new_code: bool,
    first: First | None,
    session: Session | None,
    defined: Defined | None,
) -> None:
    spec = job.spec.spec
    kafka = reachable_kafka(settings)
    _prepare_environment(job, kafka)
    session = (session and _usable(session, spec, conf, kafka)) or build_session(
        job.spec.name,
        master=spec.master,
        conf={**spec.spark_conf, **conf},
        jars=ensure_jars(settings),
        settings=settings,
        heap_mb=spec.driver_memory_mb,
    )
    pause_s = (spec.trigger.interval_ms or 0) / 1000
    stalled_s = spec.stall_timeout_s and spec.stall_timeout_s + pause_s
    transactions = OpenTransactions(kafka, told.emit)
    lag = LagMeter(kafka, told.emit, stalled=partial(_stalled, told), stalled_s=stalled_s)

    def flows(read: frozenset[str], written: frozenset[str]) -> None:
        transactions.watch(written)
        if defined is not None:
            defined(kafka.bootstrap_servers.partition(",")[0], read, written)

    try:
        # Workers on other hosts do not inherit this process's environment.
        tell_workers(session.spark, kafka)
        session.spark.sparkContext.environment.update(logs.environment())
        driver = Driver(
            job,
            session.spark,
            kafka,
            checkpoint or spec.checkpoint or default_checkpoint(settings.home, job.spec.name),
            told,
            new_lineage=new_lineage,
            wish=wish,
            accept_new_code=accept_new_code,
            on_progress=lag.note,
            on_defined=flows,
        )
        stop_on_signals(driver.stop)
        prepared = None
        if first is not None:
            prepared = first(driver, session.spark, kafka, told.emit, session.scratch)
            if prepared is None:
                return
        lag.start(driver.busy)
        transactions.start()
        driver.run(prepared)
    finally:
        lag.stop()
        transactions.stop()
        session.stop()


def _usable(session: Session, spec: Spec, conf: Mapping[str, str], kafka: KafkaSettings) -> Session | None:
    """The session, if the job could not tell it from one of its own; otherwise it is stopped.

    What the job's code says of itself is known only now; and its JVM, or the cluster that its workers were told of, may
    be gone.
    """
    told = session.spark.sparkContext.environment.get(KAFKA_ENVIRONMENT)
    same = told in (None, worker_environment(kafka)[KAFKA_ENVIRONMENT])
    if same and spec.any_jvm and not conf and session.gateway.running:
        return session
    with contextlib.suppress(Exception):  # Py4J's, about a JVM that is gone
        session.stop()
    return None


def _stalled(told: Events, query: str, seconds: float) -> None:
    """End this process at once: what hangs cannot be stopped in good order, and whoever takes over fences it."""
    error = DriverHung(f"Query {query} has finished no epoch for {seconds:.0f} s although input waits.")
    told.emit("failed", **trouble(error))
    told.close()
    os._exit(error.exit_code)


def _prepare_environment(job: Job, kafka: KafkaSettings) -> None:
    """What Python workers inherit: how to reach Kafka, where the job's own modules are."""
    os.environ.update(worker_environment(kafka))
    os.environ[DRIVER_GROUP] = str(os.getpgrp())
    if job.directory is not None:
        paths = [str(job.directory), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
