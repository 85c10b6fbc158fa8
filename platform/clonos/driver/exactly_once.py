"""An exactly-once sink for a user's own PySpark program: the driver, attached to the program's session.

::

    query = clonos.exactly_once(df, KafkaSink("out", topic="clean"), job="my-etl", checkpoint="…").start()
    query.awaitTermination()
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clonos.documents import explain
from clonos.driver.cluster_check import CheckRequest, require_fit
from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.driver.repeatable import check_sources, streaming_scans
from clonos.driver.resolutions import RequestedResolution
from clonos.driver.states import DriverState
from clonos.embedded.reachable import reachable_kafka
from clonos.errors import ClonosError, SpecError
from clonos.extend.sink import Sink
from clonos.jobs.code_files import code_files
from clonos.jobs.context import JobContext, find_connector
from clonos.jobs.definition import Job
from clonos.jobs.spec import JobSpec, Metadata, RestartPolicy, SharingDepth, Spec
from clonos.kafka import await_brokers
from clonos.log.platform_identity import platform_of_home
from clonos.settings import KafkaSettings, Settings
from clonos.spark.clusters import use_of
from clonos.spark.session import is_local
from clonos.spark.user_session import (
    check_classes,
    check_connector,
    check_session,
    check_workers,
    configure_workers,
)
from clonos.telemetry.driver_events import DriverEvent, Epoch
from clonos.telemetry.events import Events, log_event

_RECENT = 100


def source(
    spark: SparkSession,
    topics: str | Iterable[str],
    *,
    kafka: KafkaSettings | str | None = None,
    **options: Any,
) -> DataFrame:
    """Read Kafka topics as a streaming DataFrame that a replay reads again in the same order.

    The same as ``ctx.source`` of a job, for any Spark session.

    Args:
        spark: The session.
        topics: One or several topics.
        kafka: The Kafka cluster, or its bootstrap servers; default from ``CLONOS_KAFKA__…``, or the embedded one.
        options: Further arguments of `clonos.JobContext.source`, such as ``starting`` and ``max_per_epoch``.

    Returns:
        A streaming DataFrame with the columns of Spark's Kafka source.

    Raises:
        SessionIncompatible: The session has no Kafka connector, or not the Java classes of Clonos.
        TopicMissing: A topic does not exist.

    Example:
        >>> df = clonos.source(spark, "lines", max_per_epoch=1000)
    """
    check_connector(spark)
    check_classes(spark)
    cluster = _kafka_cluster(kafka)
    configure_workers(spark, cluster)
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
    adopt: bool = False,
    resolve: Sequence[str] = (),
) -> ExactlyOnce:
    """Publish a streaming DataFrame exactly once from your own PySpark program.

    Args:
        df: A streaming DataFrame. Each of its sources is `source`, or has the format ``clonos.RepeatableKafka``.
        sink: For example ``KafkaSink("out", topic="clean")``.
        job: Name of the job, ``[a-z0-9-]``; it names the causal log. One program at a time may run it.
        checkpoint: Location (path or URI) of the query's checkpoint.
        kafka: The Kafka cluster, or its bootstrap servers; default from ``CLONOS_KAFKA__…``, or the embedded one.
        available_now: Process the input that exists at the start, then finish.
        interval_ms: Minimum interval between epochs in ms; 0 starts the next epoch as soon as input arrives.
        sharing_depth: Replicas that acknowledge a determinant: ``0`` (nothing is recorded), ``1`` (the leader) or
            ``full`` (all in-sync replicas).
        restart_policy: Number of replays of a failed epoch before the query fails, and the delays before them.
        params: The values of ``clonos.param``.
        events: File to which events are appended as JSON lines.
        new_lineage: Start a new lineage: the output of older lineages no longer counts.
        accept_new_code: Replay an epoch in doubt with the current code, although other code planned it.
        adopt: Take over a job of this name from another platform: a control plane, or another ``CLONOS_HOME``.
        resolve: Decisions about epochs in doubt, as for ``clonos run --resolve``, for instance ``"out:12=keep"``.

    Returns:
        A query to `ExactlyOnce.start`.

    Raises:
        SpecError: An argument is invalid.

    Example:
        >>> query = clonos.exactly_once(df, KafkaSink("out", topic="clean"), job="my-etl", checkpoint="/tmp/c").start()
        >>> query.awaitTermination()
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
        job_spec = JobSpec(metadata=Metadata(name=job), spec=spec)
    except ValidationError as error:
        raise SpecError(f"Invalid specification of the job {job!r}: {explain(error)}.") from error
    options = RunOptions(
        checkpoint=str(checkpoint),
        events=events,
        new_lineage=new_lineage,
        accept_new_code=accept_new_code,
        adopt=adopt,
        resolutions=tuple(map(RequestedResolution.parse, resolve)),
    )
    return ExactlyOnce(df, sink, job_spec, kafka, options)


@dataclass(frozen=True, eq=False)
class ExactlyOnce:
    """A query that is not started yet; `exactly_once` builds it."""

    df: DataFrame
    sink: Sink
    spec: JobSpec
    kafka: KafkaSettings | str | None
    options: RunOptions

    def start(self) -> ExactlyOnceQuery:
        """Check the session, the sources and the sink, then start the query.

        Returns:
            The running query. A later failure is raised by its ``awaitTermination``.

        Raises:
            SessionIncompatible: The session lacks a setting that exactly-once delivery needs; the error names it.
            SourceNotRepeatable: A replay might read other records; the error names the fix.
            CheckpointUnwritable: An executor does not see the checkpoint.
            ClonosError: The sink or the cluster refuses the query.
        """
        spark = self.df.sparkSession
        check_session(spark)
        check_classes(spark)
        check_sources(self.df)
        kafka = _kafka_cluster(self.kafka)
        configure_workers(spark, kafka)
        own = type(self.sink).__module__
        check_workers(spark, ["clonos", *([own] if own != "__main__" else [])])
        if not is_local(spark.sparkContext.master):
            require_fit(spark, use_of(spark), CheckRequest(), self.options.checkpoint)
        recent = _RecentEvents()
        events = Events(self.spec.name, self.options.events, [recent.take])
        job = Job(self._define, self.spec, builds_frames=False, files=_program_files(self.options.events))
        options = replace(self.options, platform=platform_of_home(Settings().home))
        driver = Driver(job, spark, kafka, events, options)
        driver.define()
        return ExactlyOnceQuery(self.spec.name, driver, events, recent)

    def _define(self, context: JobContext) -> None:
        for scan in streaming_scans(self.df):
            servers = scan.options.get("kafka.bootstrap.servers")
            if scan.topics() and servers == context.kafka.bootstrap_servers:
                # For lag tools and for the check of retained offsets; it reads no records.
                context.sources.append(find_connector("clonos.sources", "kafka")(tuple(scan.topics())))
        context.add(self.sink, self.df, folder="")


class ExactlyOnceQuery:
    """A running query, with the methods of Spark's ``StreamingQuery``.

    Each restart creates a new Spark query below it.
    """

    def __init__(self, name: str, driver: Driver, events: Events, recent: _RecentEvents) -> None:
        self._name = name
        self._driver = driver
        self._events = events
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
            self._events.close()

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def state(self) -> DriverState:
        """The state of the driver, for example ``RUNNING`` or ``RESTARTING``."""
        return self._driver.state

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the query is starting, running, or about to be restarted."""
        return self._thread.is_alive()

    @property
    def stream(self) -> StreamingQuery | None:
        """Spark's own query of this attempt, for its progress and plans. Do not stop it: call `stop` of this object."""
        return self._driver.streams[0] if self._driver.streams else None

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The fields of the newest event `clonos.telemetry.driver_events.Epoch`; None before the first."""
        return self._recent.epochs[-1] if self._recent.epochs else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The fields of the newest ``epoch`` events, oldest first; at most 100."""
        return list(self._recent.epochs)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has terminated.

        Args:
            timeout: Maximum time to wait, in seconds; None: no limit.

        Returns:
            With a timeout: whether the query has terminated. Otherwise None.

        Raises:
            ClonosError: The query failed.
        """
        self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure
        return None if timeout is None else not self._thread.is_alive()

    def exception(self) -> ClonosError | None:
        """Return the error of a query that failed; None if it runs, was stopped or has finished."""
        if self._failure is None or isinstance(self._failure, ClonosError):
            return self._failure
        return ClonosError(f"{type(self._failure).__name__}: {self._failure}")

    def stop(self) -> None:
        """Finish the epoch in progress, then stop the query and wait for it."""
        self._driver.stop()
        self._thread.join()


class _RecentEvents:
    """Receives the events of a query in the user's program: logs them as ``clonos`` and stores the newest epochs."""

    def __init__(self) -> None:
        self.epochs: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._log = structlog.wrap_logger(
            logging.getLogger("clonos"),
            processors=[structlog.processors.KeyValueRenderer(key_order=["event", "job"])],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def take(self, event: DriverEvent) -> None:
        """Take one event."""
        if isinstance(event, Epoch):
            envelope = {"event", *DriverEvent.__struct_fields__}
            fields = msgspec.to_builtins(event)
            self.epochs.append({name: value for name, value in fields.items() if name not in envelope})
        log_event(event, self._log)


def _kafka_cluster(kafka: KafkaSettings | str | None) -> KafkaSettings:
    """Return the named Kafka cluster, or the settings'; wait until it answers."""
    settings = Settings()
    if kafka is None:
        return reachable_kafka(settings)
    if isinstance(kafka, str):
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": kafka})
    await_brokers(kafka, timeout_s=10.0)
    return kafka


def _program_files(events: Path | None) -> dict[str, str]:
    """Return the files of the program without its event file; empty in a notebook, which has no file to compare."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return code_files(Path(file).resolve(), outputs=[events] if events else []) if file else {}
