"""A lane that is closed while its producer is opened: no late init fences the next claim, and nothing leaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import EpochFailed
from clonos.settings import KafkaSettings
from clonos_sinks.kafka import spooled
from clonos_sinks.kafka.lane import LaneSettings
from clonos_sinks.kafka.spooled import SpooledLane


class Producer:
    """Stands for a producer in the JVM; `during` is called while it is created."""

    def __init__(self, during: Any) -> None:
        self.calls: list[str] = []
        during()

    def init(self) -> None:
        self.calls.append("init")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> SpooledLane:
    monkeypatch.setattr(spooled, "producer_options", lambda *_: {})
    monkeypatch.setattr(spooled, "transaction_version", lambda *_: 2)
    spark: Any = None
    return SpooledLane(spark, KafkaSettings(), LaneSettings("out", timeout_ms=1, longest_timeout_ms=2))


@pytest.mark.parametrize("end", ["close", "discard"])
def test_a_producer_that_is_created_during_the_end_is_closed_before_its_init(
    lane: SpooledLane, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    created: list[Producer] = []

    def create(_spark: object, _options: object) -> Producer:
        created.append(Producer(getattr(lane, end)))
        return created[-1]

    monkeypatch.setattr(spooled, "JvmProducer", create)
    epoch: Any = SimpleNamespace(timeout_ms=1, transactional_id="t")
    with pytest.raises(EpochFailed, match="before its producer was opened"):
        lane._opened(epoch)
    assert [producer.calls for producer in created] == [["close"]]
    if end == "discard":
        monkeypatch.setattr(spooled, "JvmProducer", lambda *_: Producer(lambda: None))
        assert lane._opened(epoch).calls == ["init"], "the next epoch opens another one"  # type: ignore[attr-defined]
