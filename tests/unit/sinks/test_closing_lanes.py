"""A lane that is closed while its producer is opened: no late init fences the next claim, and nothing leaks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import EpochFailed
from clonos.settings import KafkaSettings
from clonos_sinks.kafka import spooled
from clonos_sinks.kafka.lane import LaneSettings
from clonos_sinks.kafka.live import LiveLanes
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


class Opening(Producer):
    """Its init lasts until it is closed, as that of a producer whose broker does not answer."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.began, self.closed = threading.Event(), threading.Event()

    def init(self) -> None:
        self.began.set()
        assert self.closed.wait(60)
        super().init()

    def close(self) -> None:
        super().close()
        threading.Timer(0.2, self.closed.set).start()


def test_live_lanes_that_are_closed_have_no_init_in_progress() -> None:
    """A takeover begins the init before the first epoch, and may then start another query with the same lanes."""
    spark: Any = None
    lanes = LiveLanes(spark, KafkaSettings(), LaneSettings("out", timeout_ms=1, longest_timeout_ms=2))
    producer: Any = Opening()
    lanes._producers[1] = producer
    lanes.open()
    assert producer.began.wait(60)
    lanes.close()
    assert producer.calls == ["close", "init"]
