"""Hosts are lost with all that they have: what is left is the shared checkpoints and the log, and standbys go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from drivers import SUPERSEDED, Feeder, Published, expected_counts, final_counts, make_topics
from platforms import PATIENCE_S, Platform, Submitted, end_all

from clonos.settings import KafkaSettings
from observe import ends_agree, eventually, read_committed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TRANSACTION_MS = 5_000


class Fed:
    """A job with one query and one standby, and its input.

    Args:
        kafka: The cluster.
        platform: Where it is submitted.
        name: Unique.
        query: ``output``, without state, or ``counts``, with state.
        standby: More of the specification of its standby.
    """

    def __init__(self, kafka: KafkaSettings, platform: Platform, name: str, query: str, **standby: float) -> None:
        self._kafka = kafka
        self._query = query
        self._topic = f"{name}-{query}"
        source = f"{name}-input"
        make_topics(kafka, **{source: 3, self._topic: 3})
        params = {"input": source, query: self._topic, "transaction_timeout_ms": str(TRANSACTION_MS)}
        self._feeder = Feeder(kafka, source, 3)
        self.feed()
        self.job: Submitted = platform.submit(name, params, **standby)

    def feed(self) -> None:
        self._feeder.burst(40)

    def goes_on(self, why: str) -> None:
        """Feed it; all comes out."""
        self.feed()
        eventually(self._all, f"{self.job.name} publishes {why}", timeout_s=PATIENCE_S)

    def _all(self) -> bool:
        sent = self._feeder.sent
        if self._query == "counts":
            return final_counts(self._kafka, self._topic) == expected_counts(sent)
        return len(read_committed(self._kafka, self._topic)) >= len(sent)

    def check(self) -> None:
        """Each input once and in order; what is counted only grew."""
        assert self._all()
        if self._query == "output":
            assert Published.read(self._kafka, self._topic).faults(self._feeder.sent) == {}
        eventually(lambda: ends_agree(self._kafka, self._topic), "no transaction is open")


@pytest.fixture
def platform(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path, kafka) as made:
        yield made


def test_hosts_and_what_runs_on_them_fail(kafka: KafkaSettings, platform: Platform, name: str) -> None:
    a = platform.add("a", slots=2)
    one, two = (Fed(kafka, platform, f"{name}-{query}", query) for query in ("output", "counts"))
    for fed in (one, two):
        fed.job.runs(1, "a")
    platform.add("b", slots=2)
    for fed in (one, two):
        fed.job.standby("b")
        fed.goes_on("before anything fails")

    # A host with two drivers, and its disk.
    a.lose()
    for fed in (one, two):
        fed.goes_on("after its host was lost")
        fed.job.runs(2, "b")
        assert fed.job.cause() == ("host-lost", "a", "b")
    two.check()
    platform.add("c", slots=2)
    job = one.job
    eventually(lambda: job.get("/standbys")["data"][0]["agent"] == "c", "a standby is placed")
    platform.http.post(f"/jobs/{two.job.name}/cancel")
    job.standby("c")

    # The control plane together with the driver: its agent starts it again, for nobody tells the standby.
    first = job.get()["run"]
    process = job.process(first)
    platform.control.end(signal.SIGKILL)
    end_all(process)
    one.goes_on("without a control plane")
    platform.restart()
    job.runs(3, "b")

    # The driver together with its standby: nothing warm is left. Who is told first decides where it goes on.
    job.kill(first, job.standby("c"))
    one.goes_on("from nothing but the checkpoint and the log")
    home = job.runs(4, "b", "c")
    other = "c" if home == "b" else "b"

    # A host sleeps for longer than its lease and its transactions; its drivers wake up before its agent does.
    job.standby(other)
    last, asleep = job.get()["run"], platform.hosts[home]
    zombie = job.process(last)
    one.feed()
    asleep.freeze()
    one.goes_on("while its first host sleeps")
    job.runs(5, other)
    assert job.cause() == ("host-lost", home, other)
    slept_until = time.monotonic() + TRANSACTION_MS / 1000
    eventually(lambda: time.monotonic() > slept_until, "transactions have timed out")
    asleep.signal_drivers(signal.SIGCONT)
    eventually(lambda: zombie.status() == psutil.STATUS_ZOMBIE, "its driver ends by itself", timeout_s=60)
    assert [said["generation"] for said in asleep.events(last) if said["event"] == "superseded"] == [4]
    asleep.agent.send_signal(signal.SIGCONT)
    eventually(lambda: exit_code(job, last) == SUPERSEDED, "its exit code is told", timeout_s=60)
    one.goes_on("with the zombie gone")
    job.runs(5, other)
    one.check()


def test_a_standby_helps_itself_where_nobody_else_is_left(kafka: KafkaSettings, platform: Platform, name: str) -> None:
    a = platform.add("a", slots=1)
    fed = Fed(kafka, platform, name, "counts", aloneAfterS=4)
    fed.job.runs(1, "a")
    platform.add("b", slots=1)
    standby = fed.job.standby("b")
    fed.goes_on("before anything fails")
    platform.control.end(signal.SIGKILL)
    a.lose()
    fed.goes_on("by its standby, which sees in the log that nobody works")
    platform.restart()
    fed.job.runs(2, "b")
    assert fed.job.get()["run"] == standby, "the control plane was told who drives"
    fed.goes_on("afterwards")
    fed.check()


def exit_code(job: Submitted, run: str) -> int | None:
    code: int | None = next(one["exit_code"] for one in job.get("/runs")["data"] if one["id"] == run)
    return code
