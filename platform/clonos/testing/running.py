"""Runs a job in a test, on the test's own Spark session, until the job has processed all its input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.jobs.definition import Job
from clonos.jobs.spec import Trigger
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import DriverEvent
from clonos.telemetry.events import Events


def run_through(
    job: Job, *, spark: SparkSession, kafka: KafkaSettings, checkpoint: Path | str, params: dict[str, str] | None = None
) -> list[DriverEvent]:
    """Run `job` until it has processed all records of its sources, as ``trigger.availableNow`` does.

    Args:
        job: The job.
        spark: A session of `clonos.spark.session.build_session`, whose Python workers have the variables of
            `clonos.causal.epoch_scope.worker_environment`.
        kafka: The Kafka cluster.
        checkpoint: A folder; the job continues from the state in an existing checkpoint.
        params: Parameters that override the job's.

    Returns:
        The events of the run.

    Raises:
        ClonosError: The job failed.

    Example::

        run_through(job, spark=spark, kafka=kafka, checkpoint=tmp_path)
        assert len(read_committed(kafka, "clean")) == 100
    """
    spec = job.spec.with_params(params or {})
    body = spec.spec.model_copy(update={"trigger": Trigger(available_now=True)})
    spec = spec.model_copy(update={"spec": body})
    received: list[DriverEvent] = []
    events = Events(spec.name, None, [received.append])
    options = RunOptions(checkpoint=str(checkpoint))
    Driver(replace(job, spec=spec), spark, kafka, events, options).run()
    return received
