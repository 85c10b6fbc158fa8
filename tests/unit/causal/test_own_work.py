"""Errors of Clonos' own code in a worker, which the driver must not take for errors of the user's code."""

from __future__ import annotations

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from clonos.carried_errors import carrying, own_work, uncarry
from clonos.causal import determinants
from clonos.causal.determinants import Recorder
from clonos.causal.epoch_scope import EpochScope
from clonos.driver.restart_budget import classify
from clonos.errors import EpochFailed, RecordRejected
from clonos.log.records import Determinant, EpochIdentity, Owner
from clonos.settings import KafkaSettings

SCOPE = EpochScope(
    EpochIdentity("j", "clonos.j.log", "q", 3, Owner(1, 1, "a"), replay=False),
    timestamp_ms=1,
    seed=42,
    depth="full",
    log_partitions=(1,),
    start_offsets={1: 0},
    claim_offsets={1: 5},
    params={},
)


class OldMetadata:
    """A producer that does not know the partition, and cannot ask the broker."""

    def produce(self, *_arguments: object, **_options: object) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    def list_topics(self, *_arguments: object, **_options: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _timeout: float) -> int:
        return 0


def test_metadata_that_a_worker_cannot_fetch_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinants, "_producer", lambda *_arguments: OldMetadata())
    recorder = Recorder(KafkaSettings, SCOPE, "op", 0)
    recorder.add(Determinant(b"k", msgspec.msgpack.encode(1)))
    with pytest.raises(Exception) as raised, carrying():
        recorder.flush()
    error = uncarry(str(raised.value))
    assert type(error) is EpochFailed
    assert type(classify(raised.value)) is EpochFailed
    assert "Recording determinants" in error.what


def test_typed_errors_pass() -> None:
    mine = RecordRejected("too large")
    with pytest.raises(RecordRejected) as raised, own_work("Writing"):
        raise mine
    assert raised.value is mine
