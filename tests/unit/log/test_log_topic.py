"""The settings of a log topic, as a cluster of three brokers describes them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.errors import BrokerLimit, BrokerUnavailable, CausalLogDamaged, ClonosError, KafkaAccessDenied
from clonos.log import topic
from clonos.log.topic import check_log_topic
from clonos.settings import KafkaSettings

SOUND = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}


class FakeAdmin:
    def __init__(self, brokers: int, replicas: int, settings: dict[str, str]) -> None:
        self._brokers, self._replicas, self._settings = brokers, replicas, settings

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        partition = SimpleNamespace(replicas=list(range(self._replicas)), leader=0)
        topics = {topic: SimpleNamespace(partitions={0: partition, 1: partition}, error=None)}
        return SimpleNamespace(brokers=dict.fromkeys(range(self._brokers)), topics=topics)

    def describe_configs(self, resources: list[Any]) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        future.set_result({name: SimpleNamespace(value=value) for name, value in self._settings.items()})
        return {resources[0]: future}


@pytest.mark.parametrize(
    ("brokers", "replicas", "changed", "named"),
    [
        (1, 1, {"min.insync.replicas": "1"}, ""),
        (3, 3, {}, ""),
        (3, 2, {}, ""),
        (3, 1, {}, "replicas"),
        (3, 3, {"min.insync.replicas": "1"}, "min.insync.replicas"),
        (3, 3, {"retention.ms": "604800000"}, "retention.ms"),
        (1, 1, {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_a_topic_that_could_lose_records_is_refused(
    brokers: int, replicas: int, changed: dict[str, str], named: str
) -> None:
    admin = cast("AdminClient", FakeAdmin(brokers, replicas, SOUND | changed))
    if not named:
        check_log_topic(admin, "log")
        return
    with pytest.raises(BrokerLimit, match=f"'{named}'"):
        check_log_topic(admin, "log")


class NewTopics(FakeAdmin):
    """Creates topics with segments of the default size only."""

    def __init__(self, refusal: int) -> None:
        super().__init__(1, 1, SOUND)
        self._refusal = refusal
        self.created: list[dict[str, str]] = []

    def list_topics(self, topic: str = "", *, timeout: float) -> Any:
        if not self.created:
            return SimpleNamespace(brokers={0: None}, topics={})
        return super().list_topics(topic, timeout=timeout)

    def create_topics(self, topics: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        (new,) = topics
        answer: Future[None] = Future()
        if "segment.bytes" in new.config:
            answer.set_exception(KafkaException(KafkaError(self._refusal)))
        else:
            self.created.append(new.config)
            answer.set_result(None)
        return {new.topic: answer}


@pytest.mark.parametrize("refusal", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG])
def test_a_cluster_may_refuse_short_segments(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    admin = NewTopics(refusal)
    monkeypatch.setattr(topic, "AdminClient", lambda _config: admin)
    topic.ensure_log_topic(KafkaSettings(bootstrap_servers="127.0.0.1:1"), "job")
    (config,) = admin.created
    assert config["retention.ms"] == "-1"


class Unlisted(FakeAdmin):
    """Lists no topic; describes one with the error `code`, or as existing."""

    def __init__(self, code: int | None) -> None:
        super().__init__(1, 1, SOUND)
        self._code = code

    def list_topics(self, topic: str = "", *, timeout: float) -> Any:
        return SimpleNamespace(brokers={0: None}, topics={})

    def describe_topics(self, _topics: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        if self._code is None:
            answer.set_result(SimpleNamespace(topic_id="x"))
        else:
            answer.set_exception(KafkaException(KafkaError(self._code)))
        return {"clonos.job.log": answer}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, CausalLogDamaged),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaAccessDenied),
        (KafkaError._TRANSPORT, BrokerUnavailable),
        (None, BrokerUnavailable),
    ],
)
def test_a_log_that_kafka_does_not_list_is_deleted_only_if_kafka_says_so(
    monkeypatch: pytest.MonkeyPatch, code: int | None, expected: type[ClonosError]
) -> None:
    monkeypatch.setattr(topic, "AdminClient", lambda _config: Unlisted(code))
    monkeypatch.setattr(topic, "_KNOWN_S", 0.0)
    with pytest.raises(expected) as missing:
        topic.ensure_log_topic(KafkaSettings(bootstrap_servers="127.0.0.1:1"), "job", had=True)
    if expected is KafkaAccessDenied:
        assert "DESCRIBE on the topic clonos.job.log" in missing.value.hint
