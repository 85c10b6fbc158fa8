"""The commit protocol of one lane on a real broker, crashed between every two of its steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from clonos import faults
from clonos.agent.restoring import published_beyond
from clonos.errors import BrokerUnavailable, CheckpointMismatch, EpochFailed, Superseded, WouldPublishAgain
from clonos.log.claiming import Ownership, claim
from clonos.log.control import control_id, known_control
from clonos.log.records import Held, Marker
from clonos.log.transaction import TransactionalProducer, Unknown
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.lane import Lane, publish
from clonos_sinks.kafka.rows import Row
from observe import ends_agree, eventually, read_committed, touched

MakeTopic = Callable[..., str]
HELD = Held("range", "in", 0, 0, 3)


def lane_of(own: Ownership, lane: int = 0, epoch: int = 0, held: Held = HELD, timeout_ms: int = 60_000) -> Lane:
    partition = own.ensure_lanes("out", lane + 1)[lane]
    return Lane(own.kafka, own.job, "out", own.topic, own.owner, "out", epoch, lane, held, partition, timeout_ms)


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


def test_audit_tells_a_different_replay_but_not_another_order(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own), iter(rows(out)), eager=True)
    own = claim(kafka, name, mine={own.owner.driver})
    assert not publish(lane_of(own), iter(reversed(rows(out))), eager=True).diverged
    assert publish(lane_of(own), iter(rows(out, count=2)), eager=True).diverged
    assert len(values(kafka, out)) == 3


def test_what_the_log_knows_is_asked_without_a_claim(kafka: KafkaSettings, name: str) -> None:
    """Before a checkpoint is put back to an older point: would that publish something again?"""
    assert known_control(kafka, name) is None
    own = claim(kafka, name, new_lineage={"out": 3})
    state = known_control(kafka, name)
    assert state is not None
    assert state.owner == own.owner
    published_beyond(state, {"out": 3})
    with pytest.raises(WouldPublishAgain):
        published_beyond(state, {"out": 2})
    with pytest.raises(WouldPublishAgain):
        published_beyond(state, {})
    own.control.check_owner()  # nobody was disturbed


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
        claim(kafka, name, mine={old.owner.driver})
    assert values(kafka, out) == []


def test_who_is_fenced_while_it_produces_is_superseded(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """The client may learn of it from any of its calls, and names it differently in each."""
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
    other = Held("range", "in", 1, 0, 3)
    with pytest.raises(CheckpointMismatch, match="published epoch 5 from"):
        publish(lane_of(own, epoch=5, held=other), iter(rows(out, 5)), eager=True)
    assert len(values(kafka, out)) == 3


def test_empty_lane_writes_no_marker(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    own = claim(kafka, name)
    report = publish(lane_of(own), iter([]), eager=True)
    assert report.outcome == "empty"
    tail = own.reader.tail(1)
    assert tail is not None
    assert not isinstance(tail.record, Marker)


def test_end_alone_tells_an_owner_that_nothing_came_after(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    lane = lane_of(own)
    claimed = own.known[lane.partition]
    assert own.reader.own_tail(lane.partition, own.owner, "lane", known=claimed) is None
    report = publish(msgspec.structs.replace(lane, known=claimed), iter(rows(out)), eager=True)
    assert (report.outcome, report.offset > claimed) == ("published", True)
    # What stands behind the marker is known, so an older position is looked up: the epoch is found published. (A broker
    # shows a commit a moment after it confirmed it: step 1 of the protocol waits for that, a reader alone does not.)
    tail = eventually(
        lambda: own.reader.own_tail(lane.partition, own.owner, "lane", known=claimed), "the marker is there"
    )
    assert tail.offset == report.offset
    assert publish(msgspec.structs.replace(lane, known=claimed), iter(rows(out)), eager=True).outcome == "audited"
    assert own.reader.own_tail(lane.partition, own.owner, "lane", known=report.offset) is None
    claim(kafka, name)
    with pytest.raises(Superseded):
        publish(msgspec.structs.replace(lane, epoch=1, known=report.offset), iter(rows(out, 1)), eager=True)
    assert len(values(kafka, out)) == 3


def test_new_lineage_ignores_older_markers(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own, epoch=7), iter(rows(out, 7)), eager=True)
    fresh = claim(kafka, name, new_lineage={})
    assert fresh.owner.lineage == own.owner.lineage + 1
    assert publish(lane_of(fresh, epoch=0), iter(rows(out)), eager=True).outcome == "published"
    assert len(values(kafka, out)) == 6


def test_a_wish_for_a_new_lineage_is_granted_once(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """Whoever starts a job again after a crash repeats the user's word."""
    out = make_topic()
    publish(lane_of(claim(kafka, name), epoch=7), iter(rows(out, 7)), eager=True)
    fresh = claim(kafka, name, new_lineage={"out": 3}, wish="from-a")
    assert (fresh.owner.lineage, fresh.state.ended) == (2, {"out": 3})
    publish(lane_of(fresh, epoch=4), iter(rows(out, 4)), eager=True)
    claim(kafka, name)
    again = claim(kafka, name, new_lineage={"out": 3}, wish="from-a")
    assert again.owner.lineage == 2
    assert publish(lane_of(again, epoch=4), iter(rows(out, 4)), eager=True).outcome == "audited"
    assert claim(kafka, name, new_lineage={"out": 3}, wish="from-b").owner.lineage == 3
    assert claim(kafka, name, new_lineage={}).owner.lineage == 4
    assert claim(kafka, name, new_lineage={}).owner.lineage == 5


def test_restart_goes_on_from_a_claim_that_turned_up_late(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker died with the claim's commit decided but not visible: the next attempt finds a claim of its own."""
    own = claim(kafka, name)
    mine = {own.owner.driver}
    late: list[tuple[str, bytes, int]] = []

    def unknown(_producer: TransactionalProducer, topic: str, value: bytes, partition: int) -> int:
        late.append((topic, value, partition))
        raise Unknown("timed out")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_one", unknown)
        with pytest.raises(EpochFailed):
            claim(kafka, name, mine=mine)
    TransactionalProducer(kafka, control_id(name), own.topic).commit_one(*late[0])
    assert claim(kafka, name, mine=mine).owner.generation == own.owner.generation + 2


def test_first_claim_that_a_broker_lost_is_tried_again(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was gone before anyone could tell what became of it: an older owner's claim is no takeover."""
    older = claim(kafka, name)
    mine: set[str] = set()

    def gone(*_args: object) -> None:
        raise BrokerUnavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_one", gone)
        with pytest.raises(BrokerUnavailable):
            claim(kafka, name, mine=mine)
    own = claim(kafka, name, mine=mine)
    assert own.owner.generation == older.owner.generation + 1
    assert mine == {own.owner.driver}


STEPS = (
    "control-initialised",
    "control-claimed",
    "lane-claim-initialised",
    "lane-claimed",
    "claim-checked",
    "lane-initialised",
    "lane-tail-read",
    "lane-decided",
    "lane-begun",
    "lane-produced",
    "state-committed",
    "lane-marked",
    "lane-committed",
)
CLAIM_STEPS = STEPS[:5]


# Forked from a clean process with the imports done: a second less for each of the crashes below.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["clonos_sinks.kafka", "pytest"])


def claim_and_publish(
    kafka: KafkaSettings, job: str, out: str, fault: str, log: Path, said: Path, timeout_ms: int
) -> None:
    """A whole process: claims the job, publishes one lane, and says what became of it."""
    os.setsid()
    with said.open("w") as file:
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
        self.faults, self._said = home / "faults", home / "said"
        arguments = (kafka, job, out, fault, self.faults, self._said, timeout_ms)
        self._process = FORKED.Process(target=claim_and_publish, args=arguments, daemon=True)
        self._process.start()

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self, timeout_s: float = 90.0) -> tuple[int | None, str]:
        """Its exit code and what it said."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        return code, self._said.read_text() if self._said.exists() else ""


@pytest.mark.parametrize("step", STEPS)
def test_crash_between_steps(kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str) -> None:
    """SIGKILL at the step; the successor publishes exactly once and leaves no transaction open."""
    out = make_topic()
    lane_of(claim(kafka, name))  # lanes exist, so that claiming them is a step as well
    code, said = Child(kafka, name, out, f"{step}:kill", tmp_path).end()
    assert code == -signal.SIGKILL, said
    own = claim(kafka, name)
    report = publish(lane_of(own), iter(rows(out)), eager=True)
    assert report.outcome == ("audited" if step == "lane-committed" else "published")
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    eventually(lambda: ends_agree(kafka, out), "no transaction is open")


@pytest.mark.parametrize("step", STEPS)
def test_zombie_between_steps(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str
) -> None:
    """SIGSTOP at the step; a successor publishes; the continued zombie publishes nothing more."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = Child(kafka, name, out, f"{step}:stop", tmp_path)
    try:
        eventually(lambda: touched(zombie.faults, step), f"the zombie reaches {step}")
        own = claim(kafka, name)
        publish(lane_of(own), iter(rows(out)), eager=True)
    finally:
        zombie.go_on()
        _, said = zombie.end()
    if step == "lane-committed":
        assert "published" in said
    elif step == "control-initialised":
        # It never claimed; fenced by its successor it must not, in this attempt.
        assert "fenced before it was committed" in said, said
    else:
        assert "Superseded" in said, said
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    eventually(lambda: ends_agree(kafka, out), "no transaction is open")


def test_zombie_past_its_transaction_timeout(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The broker aborts a transaction that outlives its timeout; the continued writer never commits it."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = Child(kafka, name, out, "lane-marked:stop", tmp_path, timeout_ms=1_000)
    try:
        eventually(lambda: touched(zombie.faults, "lane-marked"), "the zombie reaches lane-marked")
        successor = claim(kafka, name)
        publish(lane_of(successor), iter(rows(out)), eager=True)
        publish(lane_of(successor, epoch=1), iter(rows(out, 1)), eager=True)
    finally:
        zombie.go_on()
        _, said = zombie.end()
    assert "Superseded" in said
    assert values(kafka, out) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def assert_markers_monotonic(own: Ownership) -> None:
    """Markers of a lane strictly increase in (generation, epoch)."""
    low, end = own.reader.bounds(1)
    markers = [record for _, record in own.reader.stretch(1, low, end) if isinstance(record, Marker)]
    epochs = [(marker.owner.lineage, marker.epoch) for marker in markers]
    assert epochs == sorted(set(epochs))
    generations = [marker.owner.generation for marker in markers]
    assert generations == sorted(generations)


def test_every_step_is_a_known_point() -> None:
    from clonos.faults import POINTS

    assert set(STEPS) <= POINTS
