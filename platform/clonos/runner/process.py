"""One driver process: JVM, session, driver, and what the user reads at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from clonos import logs
from clonos.causal.scope import worker_environment
from clonos.embedded.jars import ensure_jars
from clonos.embedded.reachable import reachable_kafka
from clonos.engine.attached import tell_workers
from clonos.engine.session import build_session
from clonos.errors import ClonosError
from clonos.faults import DRIVER_GROUP
from clonos.job import Job
from clonos.runner.advice import advise
from clonos.runner.driver import Driver, default_checkpoint, stop_on_signals
from clonos.runner.events import Event, Events, Teller, trouble
from clonos.runner.lag import LagMeter
from clonos.runner.status import JobStatus
from clonos.settings import KafkaSettings, Settings


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
) -> None:
    """Run `job` in this process until it ends.

    Raises:
        ClonosError: Why it could not go on; its `exit_code` is the process's.
    """
    settings = Settings()
    logs.about(job=job.spec.name)
    status = JobStatus(job.spec.name)
    told = Events(job.spec.name, events, [_generation, status.take, *tellers])
    try:
        job = Job(job.function, job.spec.with_params(dict(params)), job.code, job.directory)
        if advice:
            advise(job, told.emit)
        _run(job, settings, told, conf, checkpoint, new_lineage=new_lineage, wish=wish, accept_new_code=accept_new_code)
    except ClonosError as error:
        if status.state not in {"FAILED", "SUPERSEDED"}:
            told.emit("failed", **trouble(error))  # before the driver ran, which tells its own
        raise
    finally:
        told.emit("summary", **status.summary())
        told.close()


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
) -> None:
    spec = job.spec.spec
    kafka = reachable_kafka(settings)
    _prepare_environment(job, kafka)
    session = build_session(
        job.spec.name,
        master=spec.master,
        conf={**spec.spark_conf, **conf},
        jars=ensure_jars(settings),
        settings=settings,
        heap_mb=spec.driver_memory_mb,
    )
    lag = LagMeter(kafka, told.emit)
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
        )
        stop_on_signals(driver.stop)
        lag.start()
        driver.run()
    finally:
        lag.stop()
        session.stop()


def _prepare_environment(job: Job, kafka: KafkaSettings) -> None:
    """What Python workers inherit: how to reach Kafka, where the job's own modules are."""
    os.environ.update(worker_environment(kafka))
    os.environ[DRIVER_GROUP] = str(os.getpgrp())
    if job.directory is not None:
        paths = [str(job.directory), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
