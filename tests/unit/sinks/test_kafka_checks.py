"""What a Kafka sink asks Kafka at its start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import BrokerUnavailable
from clonos.settings import KafkaSettings
from clonos_sinks.kafka import sink
from clonos_sinks.kafka.limits import Limits


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of brokers that Kafka lists, one for each request; the last one again and again."""
    numbers: list[int] = []

    class Admin:
        def __init__(self, _config: dict[str, Any]) -> None:
            pass

        def list_topics(self, timeout: float) -> Any:
            number = numbers.pop(0) if len(numbers) > 1 else numbers[0]
            return SimpleNamespace(brokers=dict.fromkeys(range(number)), topics={"out": SimpleNamespace(error=None)})

        def poll(self, _timeout_s: float) -> None:
            pass

    for module in ("clonos.kafka", "clonos_sinks.kafka.sink"):
        monkeypatch.setattr(f"{module}.AdminClient", Admin)
    monkeypatch.setattr(sink, "_ANSWER_S", 0.2)
    monkeypatch.setattr(sink, "broker_settings", lambda _admin, _broker: {})
    monkeypatch.setattr(sink, "read_limits", lambda *_: Limits(1, 1))
    return numbers


def test_a_start_waits_for_the_only_broker_that_a_controller_has_lost(answers: list[int]) -> None:
    answers += [0, 0, 1]
    sink.KafkaSink("out", topic="out").check(KafkaSettings(bootstrap_servers="a:1"))
    assert answers == [1]


def test_a_cluster_without_brokers_is_unavailable(answers: list[int]) -> None:
    answers.append(0)
    with pytest.raises(BrokerUnavailable, match="0 of 1 brokers"):
        sink.KafkaSink("out", topic="out").check(KafkaSettings(bootstrap_servers="a:1"))
