"""The Kafka topic of a causal log: its name, settings and partitions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Set
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewPartitions, NewTopic

from clonos.deadline import Deadline
from clonos.errors import BrokerLimit, BrokerUnavailable, CausalLogDamaged, KafkaAccessDenied
from clonos.kafka import client_config, unanswered
from clonos.settings import KafkaSettings

CONTROL: Final = 0
# Kafka deletes truncated records only with their whole segment, by default 1 GB for each partition.
SEGMENT_BYTES: Final = 64 << 20
_SHORT_SEGMENTS: Final = {"segment.bytes": str(SEGMENT_BYTES)}
_TIMEOUT_S: Final = 15.0
_KNOWN_S: Final = 3.0  # a broker that has just started may not know a topic yet
_POLL_S: Final = 0.2
_REPLICAS: Final = 3
_MIN_REPLICAS: Final = 2  # that hold each record, if the cluster has three brokers


def log_topic(job: str) -> str:
    """Name of the causal log of `job`."""
    return f"clonos.{job}.log"


def short_topic_id(kafka: KafkaSettings, topic: str) -> str:
    """Eight hexadecimal digits that follow from Kafka's id of a topic: another topic of the same name has others.

    Raises:
        BrokerUnavailable: Kafka did not answer, or has no such topic.
    """
    admin = AdminClient(client_config(kafka))
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
        return hashlib.sha256(str(described.result(_TIMEOUT_S).topic_id).encode()).hexdigest()[:8]
    except KafkaException as error:
        raise unanswered(f"Kafka did not describe {topic}", error.args[0]) from error
    except TimeoutError as error:
        raise BrokerUnavailable(f"Kafka did not describe {topic} in {_TIMEOUT_S:.0f} s.") from error


def ensure_log_topic(kafka: KafkaSettings, job: str, *, partitions: int = 1, had: bool = False) -> str:
    """Create the topic of a job's causal log, or increase its number of partitions to `partitions`.

    The topic has no retention, because only Clonos truncates it, and never elects an unclean leader. With three
    brokers it has three replicas and requires two in-sync replicas.

    Args:
        kafka: The Kafka cluster.
        job: The job's name.
        partitions: The least number of partitions.
        had: Whether the job had a log before: then a missing topic is an error, and none is created.

    Returns:
        The topic's name.

    Raises:
        CausalLogDamaged: The topic of a job that had a log is missing.
        BrokerLimit: An existing topic would lose records by retention or compaction.
        BrokerUnavailable: The cluster did not answer or refused.
        KafkaAccessDenied: Kafka refuses to create or read the topic.
    """
    admin = AdminClient(client_config(kafka))
    topic = log_topic(job)
    deadline = Deadline(_KNOWN_S if had else 0.0)
    while True:
        try:
            metadata = admin.list_topics(timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise unanswered("Kafka did not answer", error.args[0]) from error
        existing = metadata.topics.get(topic)
        if (existing is not None and existing.error is None) or deadline.passed():
            break
        time.sleep(_POLL_S)
    if existing is None or existing.error is not None:
        if had:
            raise _missing(admin, topic)
        _create(admin, topic, partitions, alive=len(metadata.brokers))
        _await_partitions(admin, topic, partitions)
    else:
        _check_settings(admin, topic, metadata)
        if len(existing.partitions) < partitions:
            grown = admin.create_partitions([NewPartitions(topic, partitions)], operation_timeout=_TIMEOUT_S)
            _finish(grown[topic], {KafkaError.INVALID_PARTITIONS}, right=f"ALTER on the topic {topic}")
            _await_partitions(admin, topic, partitions)
    return topic


def _missing(admin: AdminClient, topic: str) -> CausalLogDamaged | KafkaAccessDenied | BrokerUnavailable:
    """Return the reason why Kafka does not list a log topic: a list of all topics lacks those that the user may not
    describe.

    The topic is described, because a request for its metadata alone could create it.
    """
    try:
        admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return log_deleted(topic)
        problem = f"Kafka did not describe {topic}, the topic of the causal log"
        return unanswered(problem, error.args[0], right=f"DESCRIBE on the topic {topic}")
    except TimeoutError:
        return BrokerUnavailable(f"Kafka did not describe {topic} in {_TIMEOUT_S:.0f} s.")
    return BrokerUnavailable(f"A broker did not list {topic}, the topic of the causal log, which exists.")


def log_deleted(topic: str) -> CausalLogDamaged:
    """Return the error of a job that has run before and whose log topic is missing, or was created again."""
    return CausalLogDamaged(
        f"{topic}, the topic of the causal log, does not exist, or is not the one that the job had: claims, plans and "
        "markers are gone.",
        kept="the checkpoint and the output are as they were; without the log no epoch is published.",
        hint="find out who deletes topics, and start once with --new-lineage: the job continues from its checkpoint. "
        "An epoch that was in progress may be published again: use a new output topic if readers must not see that.",
    )


def _create(admin: AdminClient, topic: str, partitions: int, *, alive: int) -> None:
    # A broker that is briefly unavailable counts as well: Kafka assigns it a replica and fills it later. A log with
    # replicas only on the brokers that answer now would be refused by the next start with all three.
    candidates = [_REPLICAS, min(_REPLICAS, alive)]
    while candidates:
        replicas = candidates.pop(0)
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(_MIN_REPLICAS if replicas >= _REPLICAS else 1),
            "unclean.leader.election.enable": "false",
            "max.message.bytes": str(8 * 1024 * 1024),
        }
        tolerated = {KafkaError.TOPIC_ALREADY_EXISTS, *([KafkaError.INVALID_REPLICATION_FACTOR] if candidates else [])}
        refused = {KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION}  # some providers refuse short segments
        code = _create_with(admin, topic, partitions, replicas, config | _SHORT_SEGMENTS, tolerated | refused)
        if code in refused:
            code = _create_with(admin, topic, partitions, replicas, config, tolerated)
        if code != KafkaError.INVALID_REPLICATION_FACTOR:
            return


def _create_with(
    admin: AdminClient, topic: str, partitions: int, replicas: int, config: dict[str, str], tolerated: Set[int]
) -> int:
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=config)
    created = admin.create_topics([new], operation_timeout=_TIMEOUT_S)[topic]
    return _finish(created, tolerated, right=f"CREATE on the topic {topic}")


_REQUIRED: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}


def check_log_topic(admin: AdminClient, topic: str) -> None:
    """Refuse a log topic that Kafka would truncate by itself, or could lose with one of three brokers.

    With an unclean leader election a replica without the newest markers may lead: their lanes would be published again.

    Raises:
        BrokerLimit: The topic has wrong settings or too few replicas; the error names them.
        BrokerUnavailable: The cluster did not answer, or has no such topic.
        KafkaAccessDenied: Kafka refuses to describe the topic.
    """
    try:
        metadata = admin.list_topics(topic, timeout=_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    _check_settings(admin, topic, metadata)


def _check_settings(admin: AdminClient, topic: str, metadata: ClusterMetadata) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        settings = admin.describe_configs([resource])[resource].result(_TIMEOUT_S)
    except KafkaException as error:
        problem, right = f"Kafka did not return the settings of {topic}", f"DESCRIBE_CONFIGS on the topic {topic}"
        raise unanswered(problem, error.args[0], right=right) from error
    except TimeoutError as error:
        raise BrokerUnavailable(f"Kafka did not return the settings of {topic} in {_TIMEOUT_S:.0f} s.") from error
    wrong = {
        name: settings[name].value
        for name, right in _REQUIRED.items()
        if name in settings and settings[name].value != right
    }
    if len(metadata.brokers) >= _REPLICAS:
        replicas = min((len(partition.replicas) for partition in metadata.topics[topic].partitions.values()), default=0)
        if replicas < _MIN_REPLICAS:
            wrong["replicas"] = str(replicas)
        if int(settings["min.insync.replicas"].value) < _MIN_REPLICAS:
            wrong["min.insync.replicas"] = settings["min.insync.replicas"].value
    if wrong:
        raise BrokerLimit(
            f"The log topic {topic} would lose records: {wrong}.",
            kept="nothing was started.",
            hint="set cleanup.policy=delete, retention.ms=-1, retention.bytes=-1, unclean.leader.election.enable=false "
            "and, with three brokers, three replicas and min.insync.replicas=2 on it.",
        )


def _finish(future: Future[None], tolerated: Set[int], *, right: str) -> int:
    """Wait for an answer; returns the code of a `tolerated` error, else 0. `right` is what the request needs."""
    try:
        future.result(_TIMEOUT_S)
    except (KafkaException, TimeoutError) as failure:
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if error is not None and error.code() in tolerated:
            return int(error.code())
        problem = "Kafka did not create or grow the log topic"
        if error is not None:
            raise unanswered(problem, error, right=right) from failure
        raise BrokerUnavailable(f"{problem}: no answer in {_TIMEOUT_S:.0f} s.") from failure
    return 0


def _await_partitions(admin: AdminClient, topic: str, partitions: int) -> None:
    deadline = Deadline(_TIMEOUT_S)
    while not deadline.passed():
        try:
            metadata = admin.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        except KafkaException:
            continue
        existing = metadata.partitions.values() if metadata is not None and metadata.error is None else ()
        if len(existing) >= partitions and all(partition.leader >= 0 for partition in existing):
            return
        admin.poll(0.01)
    raise BrokerUnavailable(f"The log topic {topic} did not get {partitions} partitions in {_TIMEOUT_S:.0f} s.")
