"""When the driver regards Kafka as away."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from clonos.driver import watches
from clonos.driver.watches import OUTAGE_S, KafkaWatch, wait_for_kafka
from clonos.errors import BrokerUnavailable
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually
from support.event_fields import into

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:1")


class Cluster:
    """Answers the requests of a watch with `error`, or without one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.asked = 0
        self.brokers = [1, 2, 3]
        self.log_error: KafkaError | None = None
        monkeypatch.setattr(watches, "AdminClient", lambda _config: self)

    def list_topics(self, topic: str, **_options: Any) -> SimpleNamespace:
        self.asked += 1
        if self.error is not None:
            raise self.error
        partitions = {0: SimpleNamespace(isrs=[1], replicas=[1, 2]), 1: SimpleNamespace(isrs=[1], replicas=[1])}
        log = SimpleNamespace(error=self.log_error, partitions=partitions)
        return SimpleNamespace(brokers=dict.fromkeys(self.brokers), topics={topic: log})

    def await_requests(self, count: int) -> None:
        seen = self.asked
        eventually(lambda: self.asked >= seen + count, "the watch asks")


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        (None, False),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), True),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), True),
        (KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)), False),
    ],
)
def test_an_answer_is_any_word_of_a_broker(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, silent: bool
) -> None:
    cluster = Cluster(monkeypatch)
    cluster.error = error
    watch = KafkaWatch(KAFKA, log="log", every_s=0.001)
    watch.start()
    cluster.await_requests(3)
    assert watch.was_silent_within(60) is silent
    assert not watch.is_away, "a short silence is not an outage"
    watch._answered_at = time.monotonic() - OUTAGE_S - 1
    watch._silent_since = watch._answered_at if silent else None
    assert watch.is_away is silent
    cluster.error = None
    cluster.await_requests(3)
    watch.stop()
    assert not watch.is_away
    assert watch.was_silent_within(60) is silent, "requests that were sent before may still fail"


def test_each_change_of_what_kafka_answers_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    events: list[dict[str, Any]] = []
    watch = KafkaWatch(KAFKA, into(events), log="log", every_s=0.001)
    watch.start()
    cluster.await_requests(3)
    cluster.error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    cluster.await_requests(3)
    cluster.error = None
    cluster.await_requests(3)
    watch.stop()
    assert [(event["silent_since"] is None, event["brokers"], event["under_replicated"]) for event in events] == [
        (True, 3, 1),
        (False, 3, 1),
        (True, 3, 1),
    ]


def test_each_generation_has_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report comes before the claim, and the control plane drops it with the claim."""
    cluster = Cluster(monkeypatch)
    events: list[dict[str, Any]] = []
    watch = KafkaWatch(KAFKA, into(events), log="log", every_s=0.001)
    watch.start()
    cluster.await_requests(3)
    assert [event["brokers"] for event in events] == [3]
    watch.note_claim()
    cluster.await_requests(3)
    watch.stop()
    assert [event["brokers"] for event in events] == [3, 3]


def test_a_log_that_several_answers_lack_is_deleted_once_it_was_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.log_error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    watch = KafkaWatch(KAFKA, log="log", every_s=0.001)
    watch.start()
    try:
        cluster.await_requests(5)
        assert not watch.is_log_deleted, "before the first claim there is no log"
        watch.note_claim()
        eventually(lambda: watch.is_log_deleted, "the log is missed")
        cluster.log_error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        eventually(lambda: not watch.is_log_deleted, "another answer ends the count")
    finally:
        watch.stop()


def test_the_wait_ends_with_an_answer_or_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[BaseException | None] = [BrokerUnavailable("no"), BrokerUnavailable("no"), None]

    def await_brokers(_kafka: KafkaSettings, **_options: Any) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(watches, "await_brokers", await_brokers)
    assert wait_for_kafka(KAFKA, stopped=lambda: False)
    assert answers == []
    assert not wait_for_kafka(KAFKA, stopped=lambda: True)
