"""Hosts are lost with their disks: jobs continue from the shared checkpoints, the log and their standbys."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import SUPERSEDED, Feeder, Published, expected_counts, final_counts, make_topics
from platforms import TIMEOUT_S, Platform

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed

pytestmark = [pytest.mark.timeout(3000)]

TRANSACTION_MS = 5_000


class FedJob:
    """A job with one query and one standby, and its input.

    Args:
        kafka: The Kafka cluster.
        platform: The platform that runs it.
        name: Unique.
        query: ``output``, without state, or ``counts``, with state.
        standby: Added to the specification of its standby.
    """

    def __init__(self, kafka: KafkaSettings, platform: Platform, name: str, query: str, **standby: str) -> None:
        self._kafka = kafka
        self._query = query
        self._topic = f"{name}-{query}"
        source = f"{name}-input"
        make_topics(kafka, **{source: 3, self._topic: 3})
        params = {"input": source, query: self._topic, "transaction_timeout_ms": str(TRANSACTION_MS)}
        self._feeder = Feeder(kafka, source, 3)
        self.feed()
        self.job = platform.submit(name, params, **standby)

    def feed(self) -> None:
        self._feeder.burst(40)

    def await_output(self, situation: str) -> None:
        """Feed the job and wait until everything is published."""
        self.feed()
        eventually(self._complete, f"{self.job.name} publishes {situation}", timeout_s=TIMEOUT_S)

    def _complete(self) -> bool:
        sent = self._feeder.sent
        if self._query == "counts":
            return final_counts(self._kafka, self._topic) == expected_counts(sent)
        return len(read_committed(self._kafka, self._topic)) >= len(sent)

    def check(self) -> None:
        """Each input once and in order; counts only grow."""
        assert self._complete()
        if self._query == "output":
            assert Published.read(self._kafka, self._topic).faults(self._feeder.sent) == {}
        eventually(lambda: not has_open_transaction(self._kafka, self._topic), "no transaction is open")


@pytest.fixture
def platform(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path, kafka) as platform:
        yield platform


@pytest.mark.full
@pytest.mark.chaos(
    fault="SIGKILL, loss of the disk; SIGSTOP",
    target="host; control plane with driver; driver with standby",
    topology="control plane, 3 hosts",
)
def test_a_job_survives_the_loss_of_hosts_control_plane_and_standbys(
    kafka: KafkaSettings, platform: Platform, name: str
) -> None:
    a = platform.add("a", slots=2)
    plain, counting = (FedJob(kafka, platform, f"{name}-{query}", query) for query in ("output", "counts"))
    for fed in (plain, counting):
        fed.job.await_generation(1, "a")
    platform.add("b", slots=2)
    for fed in (plain, counting):
        fed.job.await_standby("b")
        fed.await_output("before any failure")

    # A host with two drivers, and its disk.
    a.lose()
    for fed in (plain, counting):
        fed.await_output("after the loss of its host")
        fed.job.await_generation(2, "b")
        assert fed.job.last_recovery() == ("host-lost", "a", "b")
    counting.check()
    platform.add("c", slots=2)
    job = plain.job
    eventually(lambda: [standby.host for standby in job.standbys()] == ["c"], "a standby is placed")
    platform.client.jobs.cancel(counting.job.name)
    job.await_standby("c")

    # The control plane together with the driver: the agent restarts it, because nothing can promote the standby.
    first = job.get().run
    assert first is not None
    driver = job.await_process(first)
    platform.control.end(signal.SIGKILL)
    driver.kill()
    plain.await_output("without a control plane")
    platform.restart()
    job.await_generation(3, "b")

    # The driver together with its standby: no warm process is left. Either host may run the next driver.
    job.kill(first, job.await_standby("c").id)
    plain.await_output("from the checkpoint and the log alone")
    home = job.await_generation(4, "b", "c")
    other = "c" if home == "b" else "b"

    # A host is paused for longer than its lease and its transactions; its drivers resume before its agent does.
    job.await_standby(other)
    last, paused = job.get().run, platform.hosts[home]
    assert last is not None
    zombie = job.await_process(last)
    plain.feed()
    paused.pause()
    plain.await_output("while its first host is paused")
    job.await_generation(5, other)
    assert job.last_recovery() == ("host-lost", home, other)
    time.sleep(TRANSACTION_MS / 1000)  # its transactions time out
    paused.signal_drivers(signal.SIGCONT)
    eventually(lambda: not zombie.running, "the fenced driver exits", timeout_s=60)
    events = paused.events(last)
    assert [event["generation"] for event in events if event["event"] == "superseded"] == [4]
    paused.agent.resume()
    eventually(lambda: job.exit_code(last) == SUPERSEDED, "its exit code is reported", timeout_s=60)
    plain.await_output("after the fenced driver has exited")
    job.await_generation(5, other)
    plain.check()


@pytest.mark.turn
@pytest.mark.chaos(
    fault="SIGKILL, loss of the disk", target="control plane, then host", topology="control plane, 2 hosts"
)
def test_a_standby_promotes_itself_when_no_control_plane_is_left(
    kafka: KafkaSettings, platform: Platform, name: str
) -> None:
    a = platform.add("a", slots=1)
    fed = FedJob(kafka, platform, name, "counts", selfPromoteAfter="4s")
    fed.job.await_generation(1, "a")
    platform.add("b", slots=1)
    standby = fed.job.await_standby("b")
    fed.await_output("before any failure")
    platform.control.end(signal.SIGKILL)
    a.lose()
    fed.await_output("by the standby, which sees in the log that no driver works")
    platform.restart()
    fed.job.await_generation(2, "b")
    assert fed.job.get().run == standby.id, "the agent reports the promoted standby"
    fed.await_output("after the restart of the control plane")
    fed.check()
