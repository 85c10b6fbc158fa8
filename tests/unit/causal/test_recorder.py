"""The recorder writes determinants to the causal log, here with a fake producer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from scopes import EPOCH

from clonos.carried_errors import CarriedError, uncarry
from clonos.causal import scope
from clonos.causal.epoch_scope import JOB_ENVIRONMENT, PROPERTY, encode_scope
from clonos.errors import EpochFailed
from clonos.log.records import Determinant

pytestmark = pytest.mark.usefixtures("fake_recorder")


class FailingProducer:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.sent: list[bytes] = []
        self._waiting: list[Callable[..., None]] = []

    def produce(
        self, _topic: str, value: bytes, _key: bytes | None, *, partition: int, on_delivery: Callable[..., None]
    ) -> None:
        assert partition in EPOCH.log_partitions
        self.sent.append(value)
        self._waiting.append(on_delivery)

    def poll(self, _timeout: float) -> None:
        for on_delivery in self._waiting:
            self.failures -= 1
            on_delivery(_Refused() if self.failures >= 0 else None, _ACKNOWLEDGED)
        self._waiting = []

    def purge(self) -> None:
        self._waiting = []


_ACKNOWLEDGED = SimpleNamespace(offset=lambda: 7)


class _Refused:
    def str(self) -> str:
        return "not enough replicas"


def test_flush_writes_unacknowledged_determinants_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later flush must include the entries that an earlier flush failed to write."""
    from clonos.causal import determinants
    from clonos.log.records import Determinants, decode

    producer = FailingProducer(failures=1)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    recorder.flush()
    assert producer.sent == []
    recorder.add(Determinant(b"k", b"v"))
    with pytest.raises(EpochFailed, match="not enough replicas"):
        recorder.flush()
    recorder.flush()
    recorder.flush()
    assert len(producer.sent) == 2
    record = decode(producer.sent[1], where="here")
    assert record == Determinants(EPOCH.identity.owner, "q", 3, "op", 5, (Determinant(b"k", b"v"),))
    assert recorder.bytes == len(producer.sent[1]), "only the acknowledged bytes count"


def test_determinants_acknowledged_without_an_offset_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka reports them as delivered if a later record of the producer was acknowledged."""
    from clonos.causal import determinants

    producer = FailingProducer(failures=0)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    monkeypatch.setattr(_ACKNOWLEDGED, "offset", lambda: None)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    recorder.add(Determinant(b"k", b"v"))
    with pytest.raises(EpochFailed, match="without an offset"):
        recorder.flush()


class SlowProducer(FailingProducer):
    """Acknowledges one record in twenty seconds, up to a number of records."""

    def __init__(self, acknowledged: int) -> None:
        super().__init__(0)
        self.now_s = 0.0
        self.left = acknowledged

    def poll(self, _timeout: float) -> None:
        self.now_s += 20.0
        if self.left and self._waiting:
            self.left -= 1
            self._waiting.pop(0)(None, _ACKNOWLEDGED)


@pytest.mark.parametrize("acknowledged", [4, 3])
def test_flush_waits_while_the_log_acknowledges(monkeypatch: pytest.MonkeyPatch, acknowledged: int) -> None:
    from clonos import deadline
    from clonos.causal import determinants

    producer = SlowProducer(acknowledged)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: producer.now_s))
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 5)  # type: ignore[arg-type,return-value]
    for number in range(4):
        recorder.add(Determinant(bytes([number]), bytes(determinants._RECORD_BYTES + 1)))
    expected = pytest.raises(EpochFailed, match="no acknowledgement") if acknowledged < 4 else nullcontext()
    with expected:
        recorder.flush()
    assert len(producer.sent) == 4


def test_large_answers_are_split_into_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    from clonos.causal import determinants

    producer = FailingProducer(failures=0)
    monkeypatch.setattr(determinants, "_producer", lambda *_: producer)
    recorder = determinants.Recorder(lambda: None, EPOCH, "op", 0)  # type: ignore[arg-type,return-value]
    for number in range(10):
        recorder.add(Determinant(bytes([number]), b"x" * 200_000))
    recorder.flush()
    assert 2 <= len(producer.sent) <= 10
    assert max(map(len, producer.sent)) < 1024 * 1024


def test_an_operator_outside_the_epochs_of_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark computes the static side of a broadcast join before the epoch begins: nothing would record the answers."""
    task = SimpleNamespace(getLocalProperty=lambda name: None)
    monkeypatch.setattr(scope.TaskContext, "get", lambda: task)
    assert scope.open_task_scope("job.ask") is None
    monkeypatch.setenv(JOB_ENVIRONMENT, "orders")
    with pytest.raises(CarriedError, match=r"job\.ask runs outside of the epochs of the job orders"):
        scope.open_task_scope("job.ask")


@pytest.mark.parametrize(("attempt", "words"), [(0, ""), (1, "repeated a task")])
def test_a_task_that_computes_rows_again_fails_its_epoch(
    attempt: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {PROPERTY: encode_scope(EPOCH)}
    task = SimpleNamespace(getLocalProperty=properties.get, attemptNumber=lambda: attempt)
    monkeypatch.setattr(scope.TaskContext, "get", lambda: task)
    assert scope.live_epoch() is None, "a task without calls to services is left alone"
    if not words:
        assert scope.current_epoch() == EPOCH
        return
    with pytest.raises(CarriedError, match=words) as raised:
        scope.open_task_scope("job.ask")
    assert type(uncarry(str(raised.value))) is EpochFailed
