"""The commit protocol of one lane on a real broker, crashed between every two of its steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from clonos.causal.scope import worker_environment
from clonos.errors import CheckpointMismatch, Superseded
from clonos.log.claiming import Ownership, claim
from clonos.log.records import Held, Marker
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.lane import Lane, publish
from clonos_sinks.kafka.rows import Row
from observe import eventually, read_committed, touched

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


def test_new_lineage_ignores_older_markers(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(lane_of(own, epoch=7), iter(rows(out, 7)), eager=True)
    fresh = claim(kafka, name, new_lineage={})
    assert fresh.owner.lineage == own.owner.lineage + 1
    assert publish(lane_of(fresh, epoch=0), iter(rows(out)), eager=True).outcome == "published"
    assert len(values(kafka, out)) == 6


CHILD = """
import sys
from clonos.causal.scope import worker_kafka
from clonos.log.claiming import claim
sys.path.insert(0, {here!r})
from test_lane_protocol import lane_of, publish, rows
own = claim(worker_kafka(), sys.argv[1])
report = publish(lane_of(own, timeout_ms=int(sys.argv[3])), iter(rows(sys.argv[2])), eager=True)
print(report.outcome)
"""

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


def child(
    kafka: KafkaSettings, job: str, out: str, fault: str, log: Path, timeout_ms: int = 60_000
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **worker_environment(kafka),
        "CLONOS_FAULT": fault,
        "CLONOS_FAULT_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)]),
    }
    code = CHILD.format(here=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, job, out, str(timeout_ms)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("step", STEPS)
def test_crash_between_steps(kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str) -> None:
    """SIGKILL at the step; the successor publishes exactly once and leaves no transaction open."""
    out = make_topic()
    lane_of(claim(kafka, name))  # lanes exist, so that claiming them is a step as well
    victim = child(kafka, name, out, f"{step}:kill", tmp_path / "faults")
    _, err_text = victim.communicate(timeout=60)
    assert victim.returncode == -signal.SIGKILL, err_text
    own = claim(kafka, name)
    report = publish(lane_of(own), iter(rows(out)), eager=True)
    assert report.outcome == ("audited" if step == "lane-committed" else "published")
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    assert_nothing_open(kafka, out)


@pytest.mark.parametrize("step", STEPS)
def test_zombie_between_steps(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, step: str
) -> None:
    """SIGSTOP at the step; a successor publishes; the continued zombie publishes nothing more."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = child(kafka, name, out, f"{step}:stop", tmp_path / "faults")
    try:
        eventually(lambda: touched(tmp_path / "faults", step), f"the zombie reaches {step}")
        own = claim(kafka, name)
        publish(lane_of(own), iter(rows(out)), eager=True)
        os.killpg(zombie.pid, signal.SIGCONT)
        out_text, err_text = zombie.communicate(timeout=90)
    finally:
        if zombie.poll() is None:
            os.killpg(zombie.pid, signal.SIGKILL)
    if step == "lane-committed":
        assert "published" in out_text
    elif step == "control-initialised":
        # It never claimed; fenced by its successor it must not, in this attempt.
        assert "fenced before it was committed" in err_text, err_text
    else:
        assert "Superseded" in err_text, err_text
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    assert_markers_monotonic(own)
    assert_nothing_open(kafka, out)


def test_zombie_past_its_transaction_timeout(
    kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The broker aborts a transaction that outlives its timeout; the continued writer never commits it."""
    out = make_topic()
    lane_of(claim(kafka, name))
    zombie = child(kafka, name, out, "lane-marked:stop", tmp_path / "faults", timeout_ms=1_000)
    try:
        eventually(lambda: touched(tmp_path / "faults", "lane-marked"), "the zombie reaches lane-marked")
        successor = claim(kafka, name)
        publish(lane_of(successor), iter(rows(out)), eager=True)
        publish(lane_of(successor, epoch=1), iter(rows(out, 1)), eager=True)
        os.killpg(zombie.pid, signal.SIGCONT)
        _, err_text = zombie.communicate(timeout=90)
    finally:
        if zombie.poll() is None:
            os.killpg(zombie.pid, signal.SIGKILL)
    assert "Superseded" in err_text
    assert values(kafka, out) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def assert_markers_monotonic(own: Ownership) -> None:
    """Markers of a lane strictly increase in (generation, epoch)."""
    low, end = own.reader.bounds(1)
    markers = [record for _, record in own.reader.stretch(1, low, end) if isinstance(record, Marker)]
    epochs = [(marker.owner.lineage, marker.epoch) for marker in markers]
    assert epochs == sorted(set(epochs))
    generations = [marker.owner.generation for marker in markers]
    assert generations == sorted(generations)


def assert_nothing_open(kafka: KafkaSettings, topic: str) -> None:
    """No transaction is open on `topic`: a read_committed reader's end is the partition's end."""
    from confluent_kafka import Consumer

    from clonos.kafka import client_config

    def ends() -> bool:
        found = []
        for level in ("read_committed", "read_uncommitted"):
            consumer = Consumer(client_config(kafka, group_id="ends", isolation_level=level))
            found.append(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
            consumer.close()
        return found[0] == found[1]

    eventually(ends, f"no transaction is open on {topic}")


def test_every_step_is_a_known_point() -> None:
    from clonos.faults import POINTS

    assert set(STEPS) <= POINTS
