"""Lag by partition, and topics that may soon delete unread records."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import TopicPartition

from clonos.driver import lag
from clonos.driver.lag import LagMeter, close_to_retention, furthest_behind
from clonos.errors import BrokerUnavailable
from clonos.partition_offsets import OffsetClient, Offsets
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import DriverEvent, Lag
from clonos.testing.harness import eventually


@pytest.mark.parametrize(
    ("read", "begin", "end", "expected"),
    [
        (150, 100, 1000, {"t": 94}),
        (50, 100, 1000, {"t": 100}),  # some records are deleted already: all others are unread
        (280, 100, 1000, {"t": 80}),
        (281, 100, 1000, {}),
        (1000, 100, 1000, {}),
        (0, 0, 1000, {}),  # it never deleted anything
        (0, 1, 100, {}),  # too few records for a report
        (5, 5, 5, {}),
    ],
)
def test_one_partition(read: int, begin: int, end: int, expected: dict[str, int]) -> None:
    assert close_to_retention({"t": {0: read}}, {("t", 0): begin}, {("t", 0): end}) == expected


def test_worst_partition_counts_and_unknown_partitions_do_not() -> None:
    progress = {"a": {0: 990, 1: 150, 2: 120}, "b": {0: 3}}
    begins = {("a", 0): 100, ("a", 1): 100, ("a", 2): 100}
    ends = dict.fromkeys(begins, 1000)
    assert close_to_retention(progress, begins, ends) == {"a": 97}


def test_the_partitions_that_are_furthest_behind() -> None:
    lag = {"a": {0: 5, 1: 0, 2: 7}, "b": {0: 6}, "c": {0: 0}}
    assert furthest_behind(lag) == {"a": {0: 5, 2: 7}, "b": {0: 6}}
    assert furthest_behind(lag, limit=2) == {"a": {2: 7}, "b": {0: 6}}


class Kafka:
    """End offsets of a topic with one partition, and the lag events of a meter that polls them."""

    def __init__(self) -> None:
        self.end = 10
        self.events: list[dict[str, int]] = []
        self.meter = LagMeter(OffsetClient(KafkaSettings()), self._emit)
        self.answers = True
        self.meter._offsets = self  # type: ignore[assignment]

    def ends(self, partitions: set[TopicPartition]) -> Offsets:
        if not self.answers:
            raise BrokerUnavailable("no answer")
        assert {(partition.topic, partition.partition) for partition in partitions} == {("t", 0)}
        return {("t", 0): self.end}

    def bounds(self, partitions: set[TopicPartition]) -> tuple[Offsets, Offsets]:
        return {("t", 0): 0}, self.ends(partitions)

    def _emit(self, event: DriverEvent) -> None:
        assert isinstance(event, Lag)
        self.events.append(event.topics)

    def poll(self) -> list[dict[str, int]]:
        """Poll once; returns the events of this poll."""
        self.events.clear()
        self.meter.poll_once()
        return list(self.events)


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


def test_a_start_is_reported_also_without_a_change(kafka: Kafka) -> None:
    kafka.meter.note_start("out", {"t": {0: 10}})
    assert kafka.poll() == [{"t": 0}]
    assert kafka.poll() == []
    kafka.meter.note("out", {"t": {0: 10}})
    assert kafka.poll() == [], "an epoch that read nothing"
    kafka.meter.note_start("out", {"t": {0: 10}})  # a restart in this process: a recovery waits for the report
    assert kafka.poll() == [{"t": 0}]


def test_an_equal_lag_after_an_epoch_is_of_other_records(kafka: Kafka) -> None:
    kafka.meter.note_start("out", {"t": {0: 7}})
    assert kafka.poll() == [{"t": 3}]
    assert kafka.poll() == []
    kafka.meter.note("out", {"t": {0: 8}})
    kafka.end = 11
    assert kafka.poll() == [{"t": 3}]
    kafka.meter.note("out", {"t": {0: 11}})
    assert kafka.poll() == [{"t": 0}]
    kafka.meter.note("out", {"t": {0: 12}})
    kafka.end = 12
    assert kafka.poll() == []


def test_a_started_query_is_polled_soon(kafka: Kafka) -> None:
    soon, usual = lag._SOON_S, lag._EVERY_S
    assert kafka.meter._pause_s() == soon, "no query has started"
    kafka.meter.note_start("out", {"t": {0: 7}})
    assert kafka.meter._pause_s() == soon
    kafka.poll()
    assert kafka.meter._pause_s() == usual
    kafka.meter.note_start("new", {})  # its offsets are unknown before its first epoch
    assert kafka.meter._pause_s() == usual
    kafka.meter.note_start("out", {"t": {0: 7}})
    assert kafka.meter._pause_s() == soon


def test_a_start_ends_the_pause_between_two_polls(kafka: Kafka) -> None:
    """A query that waits for another one starts between two polls, and a recovery waits for its report."""
    kafka.meter._every_s = 600.0
    kafka.meter.note_start("first", {"t": {0: 7}})
    kafka.poll()
    kafka.meter.start()
    try:
        kafka.meter.note_start("second", {"t": {0: 10}})
        eventually(lambda: {"t": 0} in kafka.events, "the lag of the second query is reported")
    finally:
        kafka.meter.stop()


def test_a_kafka_that_does_not_answer_is_polled_as_usual(kafka: Kafka) -> None:
    kafka.meter.note_start("out", {"t": {0: 7}})
    kafka.answers = False
    assert kafka.poll() == []
    kafka.answers = True
    assert kafka.meter._pause_s() == lag._EVERY_S
    assert kafka.poll() == [{"t": 3}]


@pytest.mark.parametrize(("waited_s", "stalled"), [(90, []), (110, ["often"]), (170, ["often", "rarely"])])
def test_the_interval_of_a_query_is_not_a_stall(waited_s: float, stalled: list[str]) -> None:
    stalls: list[str] = []
    meter = LagMeter(
        OffsetClient(KafkaSettings()), lambda *_: None, stalled=lambda query, _s: stalls.append(query), stalled_s=100.0
    )
    for name, interval_s in (("often", 0.0), ("rarely", 60.0)):
        meter.note_start(name, {}, interval_s)
        meter._waiting_since[name] = time.monotonic() - waited_s
    meter._check_stalls()
    assert stalls == stalled


def test_a_query_whose_jvm_does_not_answer_is_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J waits without a limit for a JVM that is frozen."""
    monkeypatch.setattr(lag, "_TIMEOUT_S", 0.01)
    frozen, asked = threading.Event(), []
    stalls: list[str] = []

    def moved(query: str) -> bool:
        asked.append(query)
        return frozen.wait(60)

    meter = LagMeter(
        OffsetClient(KafkaSettings()), lambda *_: None, stalled=lambda query, _s: stalls.append(query), stalled_s=100.0
    )
    meter._moved = moved
    meter._waiting_since["words"] = time.monotonic() - 50
    meter._check_stalls()
    meter._check_stalls()
    assert (asked, stalls) == (["words"], []), "it waits for the first answer"
    meter._waiting_since["words"] -= 51
    meter._check_stalls()
    assert stalls == ["words"]
    frozen.set()
    eventually(lambda: meter._has_moved("words"), "the JVM answers again")
