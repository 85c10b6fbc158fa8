"""Drivers that go on when the job is another's, asleep or cut off from Kafka: they publish nothing, say so and stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import (
    JOBS,
    Feeder,
    JobRun,
    Published,
    caught_up,
    expected_counts,
    final_counts,
    make_topics,
)
from standing import Standing

from brokers.severed import SeveredCluster
from clonos.settings import KafkaSettings
from observe import ends_agree, eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TRANSACTION_MS = 5_000


def entries(run: JobRun, log: str) -> dict[str, int]:
    """Query → newest epoch in its checkpoint's offset log or commit log."""
    found = {}
    for folder in (run.home / "jobs" / run.name / "checkpoint").glob(f"*/{log}"):
        found[folder.parent.name] = max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=-1)
    return found


def all_done(run: JobRun, feeder: Feeder) -> None:
    """All of the input is published and committed by Spark: every query waits for more."""
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all is published", timeout_s=90)
    counts = run.params["counts"]
    eventually(lambda: final_counts(run.kafka, counts) == expected_counts(feeder.sent), "and counted", timeout_s=60)
    eventually(lambda: entries(run, "offsets") == entries(run, "commits"), "and committed", timeout_s=60)


@pytest.fixture
def standing(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Standing]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out"), "counts": make_topic(2, "counts")}
    params["transaction_timeout_ms"] = str(TRANSACTION_MS)
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield Standing(run)
    run.end()


def test_drivers_that_slept(kafka: KafkaSettings, standing: Standing) -> None:
    """One for longer than its open transaction lasts; one that then writes into the checkpoint of its successor."""
    run = standing.run
    output = run.params["output"]
    produced = "lane-produced,query=plain,epoch=4,replay=False"
    with Feeder(kafka, run.params["input"], 3) as feeder:
        primary = run.start(f"{produced}:hold")
        first, one = standing.start()
        primary.reached(produced)
        eventually(lambda: not ends_agree(kafka, output), "its transaction is open")
        primary.signal(signal.SIGSTOP)
        primary.go_on(produced)
        standing.await_ready(first)
        eventually(lambda: ends_agree(kafka, output), "the broker has ended its transaction", timeout_s=60)
        standing.promote(one)
        standing.drives(first, 2)
        primary.signal(signal.SIGCONT)
        standing.stops_superseded(primary, 1)
    all_done(run, feeder)
    # Its tasks may have fenced lanes that its successor was about to write: one warm restart at the most.
    newest = standing.generation()
    assert newest <= 3, run.told("restart")

    # The next one is promoted while nothing is in doubt and no input waits: the sleeper is first to see new input.
    first.signal(signal.SIGSTOP)
    second, other = standing.start()
    standing.promote(other)
    # Told every few seconds, for each of two queries: by then they have looked for input and wait.
    eventually(
        lambda: sum(one["generation"] == newest + 1 for one in run.told("lag")) >= 2, "the second waits", timeout_s=60
    )
    committed = entries(run, "commits")
    second.signal(signal.SIGSTOP)
    feeder.burst(30)
    first.signal(signal.SIGCONT)
    standing.stops_superseded(first, newest)
    assert entries(run, "offsets") != committed, "it planned an epoch in Spark's log before it was stopped"
    assert entries(run, "commits") == committed
    woken = time.monotonic()
    second.signal(signal.SIGCONT)
    eventually(lambda: caught_up(run, output, feeder.sent), "the second one goes on", timeout_s=60)
    restarts = [one["what"] for one in run.told("restart") if one["generation"] > newest]
    print(f"{time.monotonic() - woken:.2f} s, restarts: {restarts}", flush=True)
    assert len(restarts) <= 1
    feeder.burst(30)
    all_done(run, feeder)
    second.stop()
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    eventually(lambda: ends_agree(kafka, output), "no transaction is open")


@pytest.fixture
def severed(tmp_path: Path) -> Iterator[SeveredCluster]:
    with SeveredCluster(tmp_path / "kafka") as made:
        yield made


@pytest.mark.embedded
def test_a_primary_that_was_cut_off_and_a_broker_that_restarts_while_it_is_claimed(
    severed: SeveredCluster, name: str, tmp_path: Path
) -> None:
    kafka = severed.kafka
    topics = make_topics(kafka, input=3, output=2)
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", topics)
    standing = Standing(run)
    marked, claiming = "lane-marked,query=plain,epoch=4,replay=False", "lane-claim-initialised"
    try:
        with Feeder(kafka, run.params["input"], 3) as feeder:
            primary = run.start(f"{marked}:hold", environment=severed.far)
            first, one = standing.start()
            primary.reached(marked)
            primary.signal(signal.SIGSTOP)
            standing.await_ready(first)
            primary.signal(signal.SIGCONT)
            # Its commit is on its way, and arrives when the job is another's.
            severed.cut()
            primary.go_on(marked)
            standing.promote(one)
            standing.drives(first, 2)
            assert primary.process.poll() is None, primary.tail()
            severed.heal()
            standing.stops_superseded(primary, 1)

            first.kill()
            second, other = standing.start(f"{claiming}:hold")
            standing.promote(other)
            second.reached(claiming)
            severed.kill(0)
            second.go_on(claiming)  # into a broker that is gone
            severed.restart(0)
            eventually(lambda: standing.generation() > 2, "the job is claimed", timeout_s=60)
        eventually(lambda: caught_up(run, topics["output"], feeder.sent), "all is published", timeout_s=90)
        second.stop()
        assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}
        eventually(lambda: ends_agree(kafka, run.params["output"]), "no transaction is open")
    finally:
        run.end()
