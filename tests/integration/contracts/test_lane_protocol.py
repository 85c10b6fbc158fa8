"""The commit protocol of one lane on a real broker, crashed between every two of its steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from clonos import faults
from clonos.agent.restoring import require_unpublished
from clonos.errors import BrokerUnavailable, CheckpointMismatch, EpochFailed, Superseded, WouldPublishAgain
from clonos.extend.sink import SinkEpoch, SinkLane
from clonos.faults import CLAIM_POINTS, LANE_POINTS
from clonos.log import transaction
from clonos.log.claiming import Claimant, Ownership, claim
from clonos.log.control import CONTROL, control_id, known_control
from clonos.log.prepared import Prepared
from clonos.log.records import EpochIdentity, InputSlice, Marker
from clonos.log.transaction import TransactionalProducer, Unknown
from clonos.settings import KafkaSettings
from clonos.testing.faults import triggered
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from clonos_sinks.kafka.lane import Lane, publish
from clonos_sinks.kafka.rows import Row

MakeTopic = Callable[..., str]
INPUT = InputSlice("range", "in", 0, 0, 3)


def lane_of(
    own: Ownership, lane: int = 0, epoch: int = 0, input_slice: InputSlice = INPUT, timeout_ms: int = 60_000
) -> Lane:
    partitions = own.ensure_lanes("out", lane + 1)
    identity = EpochIdentity(own.job, own.topic, "out", epoch, own.owner, replay=False)
    assigned = SinkLane(lane, lane, input_slice, partitions[lane])
    return Lane(SinkEpoch(identity, own.kafka, (assigned,)), assigned, timeout_ms)


def with_tail(lane: Lane, tail_offset: int) -> Lane:
    return msgspec.structs.replace(lane, assigned=msgspec.structs.replace(lane.assigned, tail_offset=tail_offset))


def rows(topic: str, epoch: int = 0, count: int = 3) -> list[Row]:
    return [Row(topic, b"k", f"{epoch}-{i}".encode(), None, None, None) for i in range(count)]


def values(kafka: KafkaSettings, topic: str) -> list[str]:
    return [(message.value() or b"").decode() for message in read_committed(kafka, topic)]


def test_publishes_once_and_replays_nothing(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    first = publish(lane_of(own), iter(rows(out)), eager=True)
    successor = claim(kafka, name)
    again = publish(lane_of(successor), iter(rows(out)), eager=True)
    assert (first.outcome, again.outcome, again.diverged) == ("published", "audited", False)
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]


def test_audit_detects_a_different_replay_but_not_another_order(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own), iter(rows(out)), eager=True)
    own = Claimant(kafka, name, [own.owner.claim_id]).claim()
    assert not publish(lane_of(own), iter(reversed(rows(out))), eager=True).diverged
    assert publish(lane_of(own), iter(rows(out, count=2)), eager=True).diverged
    assert len(values(kafka, out)) == 3


def test_control_is_read_without_a_claim(kafka: KafkaSettings, name: str) -> None:
    """The check before a checkpoint is restored to an older point: would that publish records again?"""
    assert known_control(kafka, name) is None
    own = claim(kafka, name, new_lineage={"out": 3})
    state = known_control(kafka, name)
    assert state is not None
    assert state.owner == own.owner
    require_unpublished(state, {"out": 3})
    with pytest.raises(WouldPublishAgain):
        require_unpublished(state, {"out": 2})
    with pytest.raises(WouldPublishAgain):
        require_unpublished(state, {})
    own.control.check_owner()  # the owner is unaffected


def test_superseded_owner_publishes_nothing(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    old = claim(kafka, name)
    lane = lane_of(old)
    claim(kafka, name)
    with pytest.raises(Superseded):
        publish(lane, iter(rows(out)), eager=True)
    with pytest.raises(Superseded):
        old.ensure_lanes("out", 2)
    with pytest.raises(Superseded):
        Claimant(kafka, name, [old.owner.claim_id]).claim()
    assert values(kafka, out) == []


def test_owner_that_is_fenced_while_it_produces_is_superseded(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """Any call of the Kafka client may report the fencing, each with a different error."""
    out = make_topic()
    lane = lane_of(claim(kafka, name))

    def more() -> Iterator[Row]:
        (row,) = rows(out, count=1)
        yield row
        claim(kafka, name)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            yield row
            time.sleep(0.001)

    with pytest.raises(Superseded):
        publish(lane, more(), eager=True)
    assert values(kafka, out) == []


def test_lane_refuses_older_epoch_and_other_input(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own, epoch=5), iter(rows(out, 5)), eager=True)
    with pytest.raises(CheckpointMismatch, match="already published epoch 5"):
        publish(lane_of(own, epoch=4), iter(rows(out, 4)), eager=True)
    other = InputSlice("range", "in", 1, 0, 3)
    with pytest.raises(CheckpointMismatch, match="published epoch 5 from"):
        publish(lane_of(own, epoch=5, input_slice=other), iter(rows(out, 5)), eager=True)
    assert len(values(kafka, out)) == 3


def test_empty_lane_writes_no_marker(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    own = claim(kafka, name)
    report = publish(lane_of(own), iter([]), eager=True)
    assert report.outcome == "empty"
    tail = own.reader.tail(1)
    assert tail is not None
    assert not isinstance(tail.record, Marker)


def test_end_offset_alone_proves_that_no_record_follows(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    lane = lane_of(own)
    partition = lane.assigned.log_partition
    claimed = own.tail_offsets[partition]
    assert own.reader.own_tail(partition, own.owner, "lane", tail_offset=claimed) is None
    report = publish(with_tail(lane, claimed), iter(rows(out)), eager=True)
    assert (report.outcome, report.marker_offset > claimed) == ("published", True)
    # A tail offset before the marker makes the reader look for it: the epoch is published. (A commit becomes visible
    # shortly after the broker confirms it: step 1 of the protocol waits for that, a reader alone does not.)
    tail = eventually(
        lambda: own.reader.own_tail(partition, own.owner, "lane", tail_offset=claimed), "the marker is visible"
    )
    assert tail.offset == report.marker_offset
    assert publish(with_tail(lane, claimed), iter(rows(out)), eager=True).outcome == "audited"
    assert own.reader.own_tail(partition, own.owner, "lane", tail_offset=report.marker_offset) is None
    claim(kafka, name)
    with pytest.raises(Superseded):
        publish(with_tail(lane_of(own, epoch=1), report.marker_offset), iter(rows(out, 1)), eager=True)
    assert len(values(kafka, out)) == 3


def test_new_lineage_ignores_older_markers(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own, epoch=7), iter(rows(out, 7)), eager=True)
    fresh = claim(kafka, name, new_lineage={})
    assert fresh.owner.lineage == own.owner.lineage + 1
    assert publish(lane_of(fresh, epoch=0), iter(rows(out)), eager=True).outcome == "published"
    assert len(values(kafka, out)) == 6


def test_request_key_starts_a_new_lineage_once(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """A start after a crash repeats the user's request for a new lineage."""
    out = make_topic()
    publish(lane_of(claim(kafka, name), epoch=7), iter(rows(out, 7)), eager=True)
    fresh = claim(kafka, name, new_lineage={"out": 3}, request_key="from-a")
    assert (fresh.owner.lineage, fresh.state.committed) == (2, {"out": 3})
    publish(lane_of(fresh, epoch=4), iter(rows(out, 4)), eager=True)
    claim(kafka, name)
    again = claim(kafka, name, new_lineage={"out": 3}, request_key="from-a")
    assert again.owner.lineage == 2
    assert publish(lane_of(again, epoch=4), iter(rows(out, 4)), eager=True).outcome == "audited"
    assert claim(kafka, name, new_lineage={"out": 3}, request_key="from-b").owner.lineage == 3
    assert claim(kafka, name, new_lineage={}).owner.lineage == 4
    assert claim(kafka, name, new_lineage={}).owner.lineage == 5


def test_restart_follows_a_claim_that_became_visible_late(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker crashed when the claim's commit was decided but not visible: the next attempt reads its own claim."""
    claimant = Claimant(kafka, name)
    own = claimant.claim()
    late: list[tuple[str, bytes, int]] = []

    def unknown(_producer: TransactionalProducer, topic: str, value: bytes, partition: int) -> int:
        late.append((topic, value, partition))
        raise Unknown("timed out")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_one", unknown)
        with pytest.raises(EpochFailed):
            claimant.claim()
    TransactionalProducer(kafka, control_id(name), own.topic).commit_one(*late[0])
    assert claimant.claim().owner.generation == own.owner.generation + 2


def test_claim_destroys_a_connected_producer_before_it_opens_another(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction delays the connected producer's init; half a second later it would fence the claim."""
    own = claim(kafka, name)
    open_transaction = TransactionalProducer(kafka, control_id(name), own.topic)
    open_transaction.begin()
    open_transaction.produce(own.topic, b"", partition=CONTROL)
    open_transaction.producer.flush(10)
    prepared = Prepared(kafka, name)
    with monkeypatch.context() as referable:
        # The class of confluent_kafka cannot be referred to weakly; a subclass can.
        referable.setattr("clonos.log.prepared.Producer", type("Referable", (Producer,), {}))
        prepared.refresh()
    connected = weakref.ref(prepared._producers[control_id(name)])
    destroyed: list[bool] = []
    original = transaction.connect

    def connect(producer: Producer, topic: str, timeout_s: float) -> None:
        destroyed.append(connected() is None)
        original(producer, topic, timeout_s)

    with monkeypatch.context() as watched:
        watched.setattr(transaction, "connect", connect)
        successor = Claimant(kafka, name).claim(prepared=prepared)
    prepared.close()
    assert destroyed == [True]
    assert successor.owner.generation == own.owner.generation + 1


def test_first_claim_that_a_broker_lost_is_retried(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of the commit is unknown: the claim of an older owner is not a takeover."""
    older = claim(kafka, name)
    claimant = Claimant(kafka, name)

    def refuse(*_args: object) -> None:
        raise BrokerUnavailable("the broker is down")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_one", refuse)
        with pytest.raises(BrokerUnavailable):
            claimant.claim()
    own = claimant.claim()
    assert own.owner.generation == older.owner.generation + 1
    assert claimant.claim_ids == {own.owner.claim_id}


STEPS = (*CLAIM_POINTS, *LANE_POINTS)


# Forked from a clean process with the imports done: a second less for each of the crashes below.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["clonos_sinks.kafka", "pytest"])


def claim_and_publish(
    kafka: KafkaSettings, job: str, out: str, fault: str, log: Path, output: Path, timeout_ms: int
) -> None:
    """The main function of a process: claims the job, publishes one lane, and writes the outcome."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["CLONOS_FAULT_LOG"] = str(log)
    faults._FAULTS = faults.parse(fault)
    own = claim(kafka, job)
    report = publish(lane_of(own, timeout_ms=timeout_ms), iter(rows(out)), eager=True)
    print(report.outcome, flush=True)


class Child:
    """A process that runs `claim_and_publish` with a fault."""

    def __init__(
        self, kafka: KafkaSettings, job: str, out: str, fault: str, home: Path, timeout_ms: int = 60_000
    ) -> None:
        self.faults, self._output = home / "faults", home / "said"
        arguments = (kafka, job, out, fault, self.faults, self._output, timeout_ms)
        self._process = FORKED.Process(target=claim_and_publish, args=arguments, daemon=True)
        self._process.start()

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self, timeout_s: float = 90.0) -> tuple[int | None, str]:
        """The exit code and output of the process."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        return code, self._output.read_text() if self._output.exists() else ""


@pytest.mark.parametrize("step", STEPS)
def test_crash_between_steps(kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str) -> None:
    """SIGKILL at the step; the successor publishes exactly once and leaves no transaction open."""
    out = make_topic()
    lane_of(claim(kafka, name))  # lanes exist, so that claiming them is a step as well
    code, output = Child(kafka, name, out, f"{step}:kill", tmp_path).end()
    assert code == -signal.SIGKILL, output
    own = claim(kafka, name)
    report = publish(lane_of(own), iter(rows(out)), eager=True)
    assert report.outcome == ("audited" if step == "lane-committed" else "published")
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")


@pytest.mark.parametrize("step", STEPS)
def test_zombie_between_steps(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str
) -> None:
    """SIGSTOP at the step; a successor publishes; the continued zombie publishes nothing more."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = Child(kafka, name, out, f"{step}:stop", tmp_path)
    try:
        eventually(lambda: triggered(zombie.faults, step), f"the zombie reaches {step}")
        own = claim(kafka, name)
        publish(lane_of(own), iter(rows(out)), eager=True)
    finally:
        zombie.go_on()
        _, output = zombie.end()
    if step == "lane-committed":
        assert "published" in output
    elif step == "control-initialised":
        # It has not claimed. Fenced by its successor, it must not claim in this attempt.
        assert "fenced before it was committed" in output, output
    else:
        assert "Superseded" in output, output
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")


def test_zombie_past_its_transaction_timeout(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The broker aborts a transaction that outlives its timeout; the continued writer never commits it."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = Child(kafka, name, out, "lane-marked:stop", tmp_path, timeout_ms=1_000)
    try:
        eventually(lambda: triggered(zombie.faults, "lane-marked"), "the zombie reaches lane-marked")
        successor = claim(kafka, name)
        publish(lane_of(successor), iter(rows(out)), eager=True)
        publish(lane_of(successor, epoch=1), iter(rows(out, 1)), eager=True)
    finally:
        zombie.go_on()
        _, output = zombie.end()
    assert "Superseded" in output
    assert values(kafka, out) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def assert_markers_monotonic(own: Ownership) -> None:
    """Markers of a lane strictly increase in (generation, epoch)."""
    low, end = own.reader.bounds(1)
    markers = [record for _, record in own.reader.read(1, low, end) if isinstance(record, Marker)]
    epochs = [(marker.owner.lineage, marker.epoch) for marker in markers]
    assert epochs == sorted(set(epochs))
    generations = [marker.owner.generation for marker in markers]
    assert generations == sorted(generations)
