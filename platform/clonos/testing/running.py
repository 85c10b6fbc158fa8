"""A job run on a session of the test's, until it has worked through its input."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from clonos.job import Job
from clonos.runner.driver import Driver
from clonos.runner.events import Event, Events
from clonos.settings import KafkaSettings
from clonos.spec import Trigger


def run_through(
    job: Job, *, spark: SparkSession, kafka: KafkaSettings, checkpoint: Path | str, params: dict[str, str] | None = None
) -> list[Event]:
    """Run `job` until it has worked through what its sources hold, as ``trigger.availableNow`` does.

    Args:
        job: The job.
        spark: A session of `clonos.engine.session.build_session` whose environment has `worker_environment(kafka)`.
        kafka: The cluster.
        checkpoint: A folder; with the same one the job goes on where it was.
        params: Parameters, over those of the job.

    Returns:
        The events of the run.

    Raises:
        ClonosError: Why it could not go on.
    """
    spec = job.spec.with_params(params or {})
    body = spec.spec.model_copy(update={"trigger": Trigger(available_now=True)})
    spec = spec.model_copy(update={"spec": body})
    told: list[Event] = []
    events = Events(spec.name, None, [told.append])
    Driver(Job(job.function, spec, job.code, job.directory), spark, kafka, str(checkpoint), events).run()
    return told
