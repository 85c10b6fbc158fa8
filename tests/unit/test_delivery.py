"""A record that librdkafka acknowledges without an offset does not count as delivered."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer

from clonos.cli import kafka
from clonos.errors import BrokerUnavailable
from clonos.kafka import SEQUENTIAL, client_config, undelivered
from clonos.log.transaction import TransactionalProducer, Unknown
from clonos.settings import KafkaSettings
from clonos_demo.producer import SteadyProducer


@pytest.mark.parametrize(
    ("error", "offset", "expected"),
    [
        (None, 0, None),
        (None, None, "an acknowledgement without an offset"),
        (None, -1001, "an acknowledgement without an offset"),
        (KafkaError(KafkaError._MSG_TIMED_OUT), None, "Local: Message timed out"),
    ],
)
def test_an_acknowledgement_counts_with_its_offset(
    error: KafkaError | None, offset: int | None, expected: str | None
) -> None:
    assert undelivered(error, cast(Message, SimpleNamespace(offset=lambda: offset))) == expected


def test_a_sequential_producer_is_idempotent_and_has_one_request_at_a_time() -> None:
    config = client_config(KafkaSettings(), **SEQUENTIAL)
    assert config["enable.idempotence"] is True
    assert config["max.in.flight.requests.per.connection"] == 1


class Answering:
    """A producer whose records are acknowledged at its flush, or committed, with these offsets."""

    def __init__(self, *offsets: int | None) -> None:
        self._offsets = list(offsets)
        self._waiting: list[Callable[..., None]] = []
        self.begin_transaction = lambda: None

    def produce(
        self, _topic: str, _value: bytes, _key: bytes | None, on_delivery: Callable[..., None], **_: Any
    ) -> None:
        self._waiting.append(on_delivery)

    def poll(self, _timeout_s: float) -> None:
        pass

    def flush(self, _timeout_s: float) -> int:
        for on_delivery, offset in zip(self._waiting, self._offsets, strict=True):
            on_delivery(None, SimpleNamespace(offset=lambda offset=offset: offset))
        return 0

    commit_transaction = flush


def test_the_outcome_of_a_record_without_an_offset_is_read_from_the_log() -> None:
    producer = object.__new__(TransactionalProducer)
    producer._topics = set()
    producer.transactional_id = "id"
    producer.producer = cast(Producer, Answering(7, 8))
    assert producer.commit_all("log", [b"1", b"2"], 0) == [7, 8]
    producer.producer = cast(Producer, Answering(None, 8))
    with pytest.raises(Unknown, match="1 records were acknowledged without an offset"):
        producer.commit_all("log", [b"1", b"2"], 0)


def test_produce_reports_a_record_without_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, Any]] = []

    def producer(config: dict[str, Any]) -> Answering:
        configs.append(config)
        return Answering(7, None)

    monkeypatch.setattr("confluent_kafka.Producer", producer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"k\tfirst\nsecond\n")))
    with pytest.raises(BrokerUnavailable, match="without an offset"):
        kafka._produce(KafkaSettings(), "lines", "\t")
    assert configs[0]["max.in.flight.requests.per.connection"] == 1


def test_no_verdict_follows_from_a_record_that_was_acknowledged_without_an_offset() -> None:
    producer = SteadyProducer(KafkaSettings(), "lines", iter(()), per_second=1.0)
    at: list[int | None] = [3, None]
    for value in (b"first", b"second"):
        message: Any = SimpleNamespace(partition=lambda: 1, offset=lambda: at[0])
        producer._delivered(value, 0.0, None, message)
        at.pop(0)
    assert [(sent.partition, sent.offset, sent.value) for sent in producer._acked] == [(1, 3, b"first")]
    with pytest.raises(BrokerUnavailable, match="without an offset"):
        producer.stop()
