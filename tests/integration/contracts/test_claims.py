"""Claims of a job on a real broker, crashed between every two of their steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from clonos import faults
from clonos.agent.restoring import require_unpublished
from clonos.driver.watches import LogTopicWatch
from clonos.errors import BrokerLimit, BrokerUnavailable, CausalLogDamaged, EpochFailed, Superseded, WouldPublishAgain
from clonos.faults import CLAIM_POINTS
from clonos.kafka import client_config
from clonos.log import claiming, transaction
from clonos.log.claiming import Claimant, Ownership, claim
from clonos.log.control import CONTROL, control_id, known_control, lane_id
from clonos.log.prepared import PARALLEL_CLAIMS, Prepared
from clonos.log.reading import LogReader
from clonos.log.records import InputSlice, Marker, encode
from clonos.log.topic import ensure_log_topic, log_topic
from clonos.log.transaction import TransactionalProducer, Unknown
from clonos.settings import KafkaSettings
from clonos.testing.faults import triggered
from clonos.testing.harness import eventually, has_open_transaction
from support.event_fields import into


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


def test_a_superseded_owner_gets_no_lanes_and_cannot_claim_again(kafka: KafkaSettings, name: str) -> None:
    old = claim(kafka, name)
    claim(kafka, name)
    with pytest.raises(Superseded):
        old.ensure_lanes("out", 2)
    with pytest.raises(Superseded):
        Claimant(kafka, name, [old.owner.claim_id]).claim()


def test_a_fenced_driver_waits_for_the_claim_of_its_successor(kafka: KafkaSettings, name: str) -> None:
    """A takeover fences this driver before its claim is committed: a claim in between would fence the takeover."""
    claimant = Claimant(kafka, name)
    own = claimant.claim()
    claimant.check_rival(EpochFailed("a lane failed"), lambda _seconds: pytest.fail("nothing fenced this driver"))

    TransactionalProducer(kafka, control_id(name), own.topic)  # step 1 of a takeover
    with pytest.raises(EpochFailed) as fenced:
        own.ensure_lanes("out", 1)
    waits: list[float] = []

    def claim_at_third_wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            claim(kafka, name)
        return False

    with pytest.raises(Superseded):
        claimant.check_rival(fenced.value, claim_at_third_wait)
    assert len(waits) == 3
    # A claim that was committed earlier is enough, for any failure.
    with pytest.raises(Superseded):
        claimant.check_rival(EpochFailed("a lane failed"), lambda _seconds: pytest.fail("the claim is there"))


def test_a_log_that_was_deleted_is_neither_created_again_nor_taken_for_a_takeover(
    kafka: KafkaSettings, name: str
) -> None:
    claimant = Claimant(kafka, name)
    own = claimant.claim()
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([own.topic])[own.topic].result(60)
    eventually(lambda: own.topic not in admin.list_topics(timeout=60).topics, "the log is deleted")
    with pytest.raises(CausalLogDamaged, match=own.topic):
        claimant.claim()
    with pytest.raises(CausalLogDamaged, match=own.topic):
        Claimant(kafka, name).claim(had=True)
    assert own.topic not in admin.list_topics(timeout=60).topics
    with pytest.raises(CausalLogDamaged, match=own.topic):
        own.ensure_lanes("out", 1)

    ensure_log_topic(kafka, name)  # as an administrator or a broker may do
    with pytest.raises(CausalLogDamaged, match=own.topic):
        claimant.check_rival(EpochFailed("an epoch failed"), lambda _seconds: False)
    with pytest.raises(CausalLogDamaged, match=own.topic):
        claimant.claim()


def test_a_second_claim_that_is_fenced_waits_for_the_rival_too(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both restart at the same time: without the wait they would fence each other in turn."""
    claimant = Claimant(kafka, name)
    own = claimant.claim()

    def fence(step: str, **_values: object) -> None:
        if step == "control-initialised":
            TransactionalProducer(kafka, control_id(name), own.topic)  # step 1 of a takeover

    with monkeypatch.context() as rival:
        rival.setattr(claiming, "reach", fence)
        with pytest.raises(EpochFailed, match="fenced before it was committed") as fenced:
            claimant.claim()

    def claim_now(_seconds: float) -> bool:
        claim(kafka, name)
        return False

    with pytest.raises(Superseded):
        claimant.check_rival(fenced.value, claim_now)


def test_the_first_claim_of_a_job_that_a_rival_fences_can_be_repeated(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers start a new job together: an empty log is not a deleted one."""
    claimant = Claimant(kafka, name)

    def fence(step: str, **_values: object) -> None:
        if step == "control-initialised":
            TransactionalProducer(kafka, control_id(name), log_topic(name))  # step 1 of the rival

    with monkeypatch.context() as rival:
        rival.setattr(claiming, "reach", fence)
        with pytest.raises(EpochFailed, match="fenced before it was committed"):
            claimant.claim()
    assert claimant.claim().owner.generation == 1


def test_a_fenced_driver_claims_again_if_no_claim_follows(kafka: KafkaSettings, name: str) -> None:
    claimant = Claimant(kafka, name)
    own = claimant.claim()
    TransactionalProducer(kafka, control_id(name), own.topic)  # this takeover ends here
    with pytest.raises(EpochFailed) as fenced:
        own.ensure_lanes("out", 1)
    claimant.check_rival(fenced.value, lambda _seconds: True)  # a stopped job does not wait
    began = time.monotonic()
    claimant.check_rival(fenced.value, lambda seconds: time.sleep(seconds) or False)
    assert time.monotonic() - began > 0.9
    assert claimant.claim().owner.generation == own.owner.generation + 1


def test_request_key_starts_a_new_lineage_once(kafka: KafkaSettings, name: str) -> None:
    """A start after a crash repeats the user's request for a new lineage."""
    claim(kafka, name)
    fresh = claim(kafka, name, new_lineage={"out": 3}, request_key="from-a")
    assert (fresh.owner.lineage, fresh.state.committed) == (2, {"out": 3})
    claim(kafka, name)
    assert claim(kafka, name, new_lineage={"out": 3}, request_key="from-a").owner.lineage == 2
    assert claim(kafka, name, new_lineage={"out": 3}, request_key="from-b").owner.lineage == 3
    assert claim(kafka, name, new_lineage={}).owner.lineage == 4
    assert claim(kafka, name, new_lineage={}).owner.lineage == 5


def test_end_offset_alone_proves_that_no_record_follows(kafka: KafkaSettings, name: str) -> None:
    own = claim(kafka, name)
    (partition,) = own.ensure_lanes("out", 1)
    claimed = own.tail_offsets[partition]
    assert own.reader.own_tail(partition, own.owner, "lane", tail_offset=claimed) is None
    written = publish_marker(own)
    # A tail offset before the marker makes the reader look for it. (A commit becomes visible shortly after the broker
    # confirms it.)
    tail = eventually(
        lambda: own.reader.own_tail(partition, own.owner, "lane", tail_offset=claimed), "the marker is visible"
    )
    assert tail.offset == written
    assert own.reader.own_tail(partition, own.owner, "lane", tail_offset=written) is None
    claim(kafka, name)
    with pytest.raises(Superseded):
        own.reader.own_tail(partition, own.owner, "lane", tail_offset=written)


def test_restart_follows_a_claim_that_became_visible_late(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker crashed when the claim's commit was decided but not visible: the next attempt reads its own claim."""
    claimant = Claimant(kafka, name)
    own = claimant.claim()
    late: list[tuple[str, Sequence[bytes], int]] = []

    def unknown(_producer: TransactionalProducer, topic: str, values: Sequence[bytes], partition: int) -> list[int]:
        late.append((topic, values, partition))
        raise Unknown("timed out")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_all", unknown)
        with pytest.raises(EpochFailed):
            claimant.claim()
    TransactionalProducer(kafka, control_id(name), own.topic).commit_all(*late[0])
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
    assert destroyed, "the claim connected another producer"
    assert all(destroyed)
    assert successor.owner.generation == own.owner.generation + 1


def test_a_claim_of_many_lanes_opens_few_readers(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(kafka, name).ensure_lanes("out", 2 * PARALLEL_CLAIMS)
    opened: list[LogReader] = []

    class Counted(LogReader):
        def __init__(self, kafka: KafkaSettings, topic: str) -> None:
            super().__init__(kafka, topic)
            opened.append(self)

    monkeypatch.setattr("clonos.log.claiming.LogReader", Counted)
    own = claim(kafka, name)
    assert len(own.claimed) == 2 * PARALLEL_CLAIMS + 1, "all lanes and control"
    assert 0 < len(opened) <= PARALLEL_CLAIMS


def test_first_claim_that_a_broker_lost_is_retried(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of the commit is unknown: the claim of an older owner is not a takeover."""
    older = claim(kafka, name)
    claimant = Claimant(kafka, name)

    def refuse(*_args: object) -> None:
        raise BrokerUnavailable("the broker is down")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionalProducer, "commit_all", refuse)
        with pytest.raises(BrokerUnavailable):
            claimant.claim()
    own = claimant.claim()
    assert own.owner.generation == older.owner.generation + 1
    assert claimant.claim_ids == {own.owner.claim_id}


# Forked from a clean process with the imports done: a second less for each of the crashes below.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["clonos.log.claiming", "pytest"])


def claim_only(kafka: KafkaSettings, job: str, fault: str, log: Path, output: Path) -> None:
    """The main function of a process: claims the job, and writes the outcome."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["CLONOS_FAULT_LOG"] = str(log)
    faults._FAULTS = faults.parse(fault)
    print(claim(kafka, job).owner, flush=True)


class Child:
    """A process that runs `claim_only` with a fault."""

    def __init__(self, kafka: KafkaSettings, job: str, fault: str, home: Path) -> None:
        self.faults, self._output = home / "faults", home / "said"
        arguments = (kafka, job, fault, self.faults, self._output)
        self._process = FORKED.Process(target=claim_only, args=arguments, daemon=True)
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


@pytest.mark.parametrize("step", CLAIM_POINTS)
def test_crash_between_steps(kafka: KafkaSettings, name: str, tmp_path: Path, step: str) -> None:
    """SIGKILL at the step: the successor owns the job, knows the newest marker, and leaves no transaction open."""
    own = claim(kafka, name)
    publish_marker(own)
    code, output = Child(kafka, name, f"{step}:kill", tmp_path).end()
    assert code == -signal.SIGKILL, output
    assert_owned(claim(kafka, name), kafka)


@pytest.mark.parametrize("step", CLAIM_POINTS)
def test_zombie_between_steps(kafka: KafkaSettings, name: str, tmp_path: Path, step: str) -> None:
    """SIGSTOP at the step; a successor claims; the continued zombie learns that it does not own the job."""
    own = claim(kafka, name)
    publish_marker(own)
    zombie = Child(kafka, name, f"{step}:stop", tmp_path)
    try:
        eventually(lambda: triggered(zombie.faults, step), f"the zombie reaches {step}")
        successor = claim(kafka, name)
    finally:
        zombie.go_on()
        _, output = zombie.end()
    if step == "control-initialised":
        # It has not claimed. Fenced by its successor, it must not claim in this attempt.
        assert "fenced before it was committed" in output, output
    elif step != "claim-checked":  # there it owned the job before the successor claimed it
        assert "Superseded" in output, output
    successor.control.check_owner()
    assert_owned(claim(kafka, name), kafka)


def publish_marker(own: Ownership) -> int:
    """Publish an empty lane of epoch 5 as a sink does; returns the marker's offset."""
    (partition,) = own.ensure_lanes("out", 1)
    marker = Marker(own.owner, "out", 5, 0, InputSlice("range", "in", 0, 0, 3), 0, b"")
    producer = TransactionalProducer(own.kafka, lane_id(own.job, "out", 0), own.topic)
    (offset,) = producer.commit_all(own.topic, [encode(marker)], partition)
    producer.dispose()
    return offset


def assert_owned(own: Ownership, kafka: KafkaSettings) -> None:
    (partition,) = own.ensure_lanes("out", 1)
    marker = own.markers[partition]
    assert marker is not None
    assert marker.epoch == 5
    own.reader.own_tail(partition, own.owner, "lane")
    low, end = own.reader.bounds(partition)
    generations = [record.owner.generation for _, record in own.reader.read(partition, low, end)]  # type: ignore[union-attr]
    assert generations == sorted(generations)
    eventually(lambda: not has_open_transaction(kafka, own.topic), "no transaction is open")


def test_a_log_topic_that_could_lose_markers_is_refused(kafka: KafkaSettings, name: str) -> None:
    """Another tool created it, with a leader election that may lose acknowledged records."""
    admin = AdminClient(client_config(kafka))
    config = {"retention.ms": "-1", "retention.bytes": "-1", "unclean.leader.election.enable": "true"}
    admin.create_topics([NewTopic(log_topic(name), 1, config=config)])[log_topic(name)].result(60)
    with pytest.raises(BrokerLimit, match="unclean"):
        claim(kafka, name)


def test_a_log_topic_that_becomes_unsafe_while_the_job_runs_is_reported(kafka: KafkaSettings, name: str) -> None:
    own = claim(kafka, name)
    admin = AdminClient(client_config(kafka))
    events: list[dict[str, Any]] = []
    watch = LogTopicWatch(kafka, name, into(events))

    def set_retention(value: str) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, own.topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)

        def applied() -> bool:
            described = ConfigResource(ResourceType.TOPIC, own.topic)
            return admin.describe_configs([described])[described].result(60)["retention.ms"].value == value

        eventually(applied, "the broker has the new setting")  # the controller answers before
        watch.poll_once()

    watch.poll_once()
    assert events == []
    for value in ("1000000", "1000000", "-1", "1000000"):
        set_retention(value)
    assert [event["event"] for event in events] == ["log-topic-unsafe"] * 2
    assert "'retention.ms': '1000000'" in events[0]["what"]
    with pytest.raises(BrokerLimit, match=r"retention\.ms"):
        claim(kafka, name)
