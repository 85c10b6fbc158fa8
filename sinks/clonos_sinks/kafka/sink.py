"""`KafkaSink`: the sink that a job names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import BrokerLimit, SpecError
from clonos.extend.sink import Decision, DeliveryMode, OutputMode
from clonos.kafka import await_brokers, client_config, java_options, unanswered, unlisted_topics_error
from clonos.log.records import InputSlice
from clonos.log.transaction import DEFAULT_TIMEOUT_MS
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.columns import check_schema
from clonos_sinks.kafka.lane import EPOCH_PER_TRANSACTION, LaneSettings
from clonos_sinks.kafka.limits import Limits, broker_settings, read_limits

if TYPE_CHECKING:
    from clonos.spark.lane_sink import EpochWriter
    from clonos.spark.live import LiveWriter

_MAX_TIMEOUT_MS: Final = 900_000  # Kafka's default of ``transaction.max.timeout.ms``
_ANSWER_S: Final = 15.0
_OPTIONS: Final = {"compression.type": "none|gzip|snappy|lz4|zstd", "linger.ms": "[0-9]{1,4}"}


class KafkaSink:
    """Publishes a DataFrame's rows to Kafka, each epoch exactly once.

    Args:
        name: Stable name of the sink and of its query.
        topic: Topic of the rows without a ``topic`` column value.
        output_mode: Spark's output mode.
        delivery: ``exactly-once``: one transaction (KIP-98) for each lane. ``atomic-epoch``: one transaction for the
            whole epoch, which becomes visible at once. ``at-least-once``: no transactions and no markers.
        transaction_timeout_ms: ``transaction.timeout.ms`` of the lanes. A transaction of many bytes, and each attempt
            at an epoch after the first, has the broker's limit.
        producer: Options of Kafka's producer: ``compression.type`` and ``linger.ms``. The others are part of the
            protocol, or follow from the topics' limits.

    Raises:
        SpecError: `producer` has another option.

    Example::

        ctx.sink(totals, topic="totals", delivery="atomic-epoch", producer={"compression.type": "lz4"})
    """

    publishes_dead_letters = True
    proved_by_markers = True
    decisions: ClassVar[frozenset[Decision]] = frozenset(get_args(Decision))

    def __init__(
        self,
        name: str,
        *,
        topic: str | None = None,
        output_mode: OutputMode = "append",
        delivery: DeliveryMode = "exactly-once",
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        producer: Mapping[str, str] | None = None,
    ) -> None:
        self.producer = _checked(producer or {})
        self.name = name
        self.topic = topic
        self.output_mode = output_mode
        self.delivery = delivery
        self.transaction_timeout_ms = transaction_timeout_ms
        self._limit_ms = transaction_timeout_ms
        self._limits = Limits()

    def check(self, kafka: KafkaSettings) -> None:
        """Fail at start if the topic does not exist or the broker does not allow the transaction timeout.

        Raises:
            TopicMissing: The default topic does not exist.
            BrokerLimit: The transaction timeout is above the broker's maximum.
            BrokerUnavailable: Kafka did not answer.
            KafkaAccessDenied: Kafka refused the client.
        """
        admin = AdminClient(client_config(kafka))
        try:
            metadata = admin.list_topics(timeout=_ANSWER_S)
            if not metadata.brokers:  # its controller has just lost the only broker, for a moment
                metadata = await_brokers(kafka, timeout_s=_ANSWER_S)
            if self.topic is not None:
                topic = metadata.topics.get(self.topic)
                if topic is None or topic.error is not None:
                    raise unlisted_topics_error(kafka, "sink", [self.topic], metadata.topics)
            config = broker_settings(admin, next(iter(metadata.brokers)))
            limit = config.get("transaction.max.timeout.ms", _MAX_TIMEOUT_MS)
            self._limits = read_limits(admin, config, self.topic)
        except KafkaException as error:
            raise unanswered("Kafka did not answer", error.args[0]) from error
        self._limit_ms = limit
        if self.transaction_timeout_ms > limit:
            raise BrokerLimit(
                f"The sink's transaction timeout is {self.transaction_timeout_ms} ms, the broker allows {limit} ms.",
                kept="nothing was started.",
                hint="lower transaction_timeout_ms or raise the broker's transaction.max.timeout.ms.",
            )

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse columns that cannot become Kafka records."""
        check_schema(frame.schema, default_topic=self.topic)

    def writer(self, spark: SparkSession, kafka: KafkaSettings, in_doubt: tuple[InputSlice, ...]) -> EpochWriter:
        """Create the writer of one start of the query (`clonos.spark.lane_sink.JvmSink`)."""
        # Not at the top: the control plane and Python workers import this module, and have no Java.
        from clonos_sinks.kafka.partitioned import PartitionedLanes
        from clonos_sinks.kafka.spooled import SpooledLane

        whole = [part.kind for part in in_doubt] == ["epoch"] if in_doubt else self.has_one_lane(spark)
        return (SpooledLane if whole else PartitionedLanes)(spark, kafka, self._lane_settings())

    def _lane_settings(self) -> LaneSettings:
        return LaneSettings(
            self.topic,
            self.transaction_timeout_ms,
            self._limit_ms,
            self._limits,
            self.producer,
            transactional=self.delivery != "at-least-once",
        )

    def live_writer(self, spark: SparkSession, kafka: KafkaSettings) -> LiveWriter:
        """Create the writer of one start of a live query (`clonos.spark.live.LiveSink`)."""
        from clonos.spark.session import is_local
        from clonos_sinks.kafka.live import LiveLanes
        from clonos_sinks.kafka.task_steps import TaskSteps

        local = is_local(spark.sparkContext.master)
        return (LiveLanes if local else TaskSteps)(spark, kafka, self._lane_settings())

    def epochs_because(self, spark: SparkSession, kafka: KafkaSettings) -> str:
        """Return why the sink cannot publish in steps; empty: it can."""
        from clonos_sinks.kafka.clients import transaction_version

        if self.delivery != "exactly-once":
            return f"its delivery is {self.delivery}"
        version = transaction_version(spark, java_options(kafka))
        if version < EPOCH_PER_TRANSACTION:
            return f"the brokers have version {version} of transactions, which cannot keep a producer"
        return ""

    def connect(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        """Connect the JVM's admin client, which the lanes use (`clonos.spark.lane_sink.JvmSink`)."""
        from clonos_sinks.kafka.clients import ProducerFailed, transaction_version

        with contextlib.suppress(ProducerFailed):
            transaction_version(spark, java_options(kafka))

    def has_one_lane(self, spark: SparkSession) -> bool:
        """Return whether an epoch has one lane, which the driver publishes.

        Tasks and driver share a JVM, or the whole epoch has one transaction. Otherwise each partition has a lane, which
        its task publishes.
        """
        from clonos.spark.session import local_task_failures

        return self.delivery == "atomic-epoch" or local_task_failures(spark.sparkContext.master) is not None


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    for name, value in options.items():
        values = _OPTIONS.get(name)
        if values is None:
            from clonos.documents import did_you_mean

            raise SpecError(
                f"The Kafka sink has no producer option {name!r}{did_you_mean(name, _OPTIONS)}",
                hint=f"use {' or '.join(_OPTIONS)}.",
            )
        if not re.fullmatch(values, str(value)):
            raise SpecError(f"The producer option {name}={value!r} is invalid.", hint=f"it must match {values}.")
    return {name: str(value) for name, value in options.items()}
