"""An exactly-once sink for a PySpark program of the user's own: the driver, attached to their session.

::

    query = clonos.exactly_once(df, KafkaSink("out", topic="clean"), job="my-etl", checkpoint="…").start()
    query.awaitTermination()
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clonos.embedded.reachable import reachable_kafka
from clonos.engine.attached import check_connector, check_session, check_workers, tell_workers
from clonos.engine.repeatable import check_sources, streaming_scans
from clonos.errors import ClonosError, SpecError
from clonos.job import Job, JobContext, code_hash, find_connector
from clonos.kafka import await_brokers
from clonos.runner.driver import Driver
from clonos.runner.events import Event, Events, log_event
from clonos.runner.states import DriverState
from clonos.settings import KafkaSettings, Settings
from clonos.sinks import Sink
from clonos.spec import JobSpec, Metadata, RestartPolicy, SharingDepth, Spec, explain

_RECENT = 100


def source(
    spark: SparkSession,
    topics: str | Iterable[str],
    *,
    kafka: KafkaSettings | str | None = None,
    **options: Any,
) -> DataFrame:
    """A repeatable Kafka source as a streaming DataFrame, on any Spark session; the same as ``ctx.source``.

    Args:
        spark: The session.
        topics: One or several topics.
        kafka: The cluster, or its bootstrap servers; default from ``CLONOS_KAFKA__…``, or the embedded one.
        options: Further arguments of `clonos.JobContext.source`, such as ``starting`` and ``max_per_epoch``.

    Raises:
        SessionUnfit: The session has no Kafka connector.
        TopicMissing: A topic does not exist.
    """
    check_connector(spark)
    cluster = _cluster(kafka)
    tell_workers(spark, cluster)
    return JobContext(spark, JobSpec(metadata=Metadata(name="source")), cluster).source(topics, **options)


def exactly_once(
    df: DataFrame,
    sink: Sink,
    *,
    job: str,
    checkpoint: str | Path,
    kafka: KafkaSettings | str | None = None,
    available_now: bool = False,
    interval_ms: int = 0,
    sharing_depth: SharingDepth = "full",
    restart_policy: RestartPolicy | None = None,
    params: Mapping[str, str] | None = None,
    events: Path | None = None,
    new_lineage: bool = False,
    accept_new_code: bool = False,
) -> ExactlyOnce:
    """Publish a streaming DataFrame exactly once from a PySpark program of your own.

    Args:
        df: A streaming DataFrame, read with `source` or from a Kafka subscription of more than four partitions.
        sink: For example ``KafkaSink("out", topic="clean")``.
        job: Name of the job, ``[a-z0-9-]``; it names the causal log. One program at a time may run it.
        checkpoint: Where the query keeps its checkpoint.
        kafka: The cluster, or its bootstrap servers; default from ``CLONOS_KAFKA__…``, or the embedded one.
        available_now: Work through what is there at start, then finish.
        interval_ms: At least so long between epochs.
        sharing_depth: How many holders must acknowledge a determinant: ``0``, ``1`` or ``full``.
        restart_policy: How often a failed epoch is replayed before the query gives up.
        params: What ``clonos.param`` answers.
        events: A file to append events to, as JSON lines.
        new_lineage: What was published before does not count any more.
        accept_new_code: Replay an epoch in doubt with the code as it is now.

    Raises:
        SpecError: An argument is wrong.
    """
    try:
        spec = Spec.model_validate(
            {
                "params": dict(params or {}),
                "checkpoint": str(checkpoint),
                "trigger": {"available_now": available_now, "interval_ms": interval_ms},
                "sharing_depth": sharing_depth,
                "restart_policy": restart_policy or RestartPolicy(),
            }
        )
        made = JobSpec(metadata=Metadata(name=job), spec=spec)
    except ValidationError as error:
        raise SpecError(f"The job {job!r} is not specified well: {explain(error)}.") from error
    return ExactlyOnce(df, sink, made, kafka, events, new_lineage=new_lineage, accept_new_code=accept_new_code)


class ExactlyOnce:
    """A query that is not started yet."""

    def __init__(
        self,
        df: DataFrame,
        sink: Sink,
        spec: JobSpec,
        kafka: KafkaSettings | str | None,
        events: Path | None,
        *,
        new_lineage: bool,
        accept_new_code: bool,
    ) -> None:
        self._df = df
        self._sink = sink
        self._spec = spec
        self._kafka = kafka
        self._events = events
        self._new_lineage = new_lineage
        self._accept_new_code = accept_new_code

    def start(self) -> ExactlyOnceQuery:
        """Check session, sources and sink, then start; what fails later is raised by ``awaitTermination``.

        Raises:
            SessionUnfit: The session lacks what the promise needs; the setting is named.
            SourceNotRepeatable: A replay might read something else; the fix is named.
            ClonosError: The sink or the cluster refuses.
        """
        spark = self._df.sparkSession
        check_session(spark)
        check_sources(self._df)
        kafka = _cluster(self._kafka)
        tell_workers(spark, kafka)
        own = type(self._sink).__module__
        check_workers(spark, ["clonos", *([own] if own != "__main__" else [])])
        recent = _Recent()
        told = Events(self._spec.name, self._events, [recent.take])
        job = Job(self._define, self._spec, _program_hash(), builds_frames=False)
        checkpoint = self._spec.spec.checkpoint or ""
        driver = Driver(
            job,
            spark,
            kafka,
            checkpoint,
            told,
            new_lineage=self._new_lineage,
            accept_new_code=self._accept_new_code,
        )
        driver.define()
        return ExactlyOnceQuery(self._spec.name, driver, told, recent)

    def _define(self, context: JobContext) -> None:
        for scan in streaming_scans(self._df):
            servers = scan.options.get("kafka.bootstrap.servers")
            if scan.topics() and servers == context.kafka.bootstrap_servers:
                # For lag tools and the check of what is still retained; it reads nothing.
                context.sources.append(find_connector("clonos.sources", "kafka")(tuple(scan.topics())))
        context.add(self._sink, self._df, folder="")


class ExactlyOnceQuery:
    """A running query, with the names that Spark's ``StreamingQuery`` has.

    Spark's own query below it is another one after each restart.
    """

    def __init__(self, name: str, driver: Driver, told: Events, recent: _Recent) -> None:
        self._name = name
        self._driver = driver
        self._told = told
        self._recent = recent
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"clonos-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.run()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._told.close()

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def state(self) -> DriverState:
        """What the driver is doing, restarts included."""
        return self._driver.state

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether it runs, is starting, or is about to be restarted."""
        return self._thread.is_alive()

    @property
    def stream(self) -> StreamingQuery | None:
        """Spark's own query of this attempt, for its progress and plans; stop this one, not that one."""
        return self._driver.streams[0] if self._driver.streams else None

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """What the newest finished epoch did."""
        return self._recent.epochs[-1] if self._recent.epochs else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The newest finished epochs."""
        return list(self._recent.epochs)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the end.

        Args:
            timeout: At most so many seconds.

        Returns:
            Whether it has ended, if a timeout is given.

        Raises:
            ClonosError: Why it ended, unless it was stopped or has finished.
        """
        self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure
        return None if timeout is None else not self._thread.is_alive()

    def exception(self) -> ClonosError | None:
        """Why it ended, if something went wrong."""
        if self._failure is None or isinstance(self._failure, ClonosError):
            return self._failure
        return ClonosError(f"{type(self._failure).__name__}: {self._failure}")

    def stop(self) -> None:
        """Finish the epoch that runs, then end."""
        self._driver.stop()
        self._thread.join()


class _Recent:
    """Where a query in the user's program tells its events: the logger ``clonos``; the newest epochs are kept."""

    def __init__(self) -> None:
        self.epochs: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._log = structlog.wrap_logger(
            logging.getLogger("clonos"),
            processors=[structlog.processors.KeyValueRenderer(key_order=["event", "job"])],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def take(self, event: Event) -> None:
        """Take one event."""
        if event["event"] == "epoch":
            about = ("event", "job", "generation", "at")
            self.epochs.append({name: value for name, value in event.items() if name not in about})
        log_event(event, self._log)


def _cluster(kafka: KafkaSettings | str | None) -> KafkaSettings:
    """The cluster that is meant, once it answers.

    Raises:
        BrokerUnavailable: It does not.
    """
    settings = Settings()
    if kafka is None:
        return reachable_kafka(settings)
    if isinstance(kafka, str):
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": kafka})
    await_brokers(kafka, timeout_s=10.0)
    return kafka


def _program_hash() -> str:
    """Hash of the program and of the modules beside it; empty in a notebook, where nothing can be compared."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return code_hash(Path(file).resolve()) if file else ""
