"""Drivers that were paused or disconnected during a takeover publish nothing, report `superseded` and exit."""

from __future__ import annotations

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
from standbys import Standbys

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction
from support.brokers.severed import SeveredCluster

pytestmark = [pytest.mark.timeout(3000)]

TRANSACTION_MS = 5_000


def entries(run: JobRun, log: str) -> dict[str, int]:
    """Query → newest epoch in its checkpoint's offset log or commit log."""
    newest = {}
    for folder in (run.home / "jobs" / run.name / "checkpoint").glob(f"*/{log}"):
        newest[folder.parent.name] = max(
            (int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=-1
        )
    return newest


def all_done(run: JobRun, feeder: Feeder) -> None:
    """Wait until Spark has published and committed all input, so that every query waits for more."""
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all is published", timeout_s=90)
    counts = run.params["counts"]
    eventually(lambda: final_counts(run.kafka, counts) == expected_counts(feeder.sent), "and counted", timeout_s=60)
    eventually(lambda: entries(run, "offsets") == entries(run, "commits"), "and committed", timeout_s=60)


@pytest.fixture
def standbys(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Standbys]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out"), "counts": make_topic(2, "counts")}
    params["transaction_timeout_ms"] = str(TRANSACTION_MS)
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield Standbys(run)
    run.end()


@pytest.mark.turn(1, 3, 5, 7, 9, 11, 13, 15)
@pytest.mark.chaos(
    fault="SIGSTOP beyond the transaction timeout", target="driver, standby", topology="clonos run --standby"
)
def test_paused_drivers_publish_nothing_after_a_takeover(kafka: KafkaSettings, standbys: Standbys) -> None:
    """One driver is paused beyond its transaction timeout; another later writes into its successor's checkpoint."""
    run = standbys.run
    output = run.params["output"]
    produced = "lane-produced,query=plain,epoch=4,replay=False"
    with Feeder(kafka, run.params["input"], 3) as feeder:
        primary = run.start(f"{produced}:hold")
        first, first_pipe = standbys.start()
        primary.await_fault(produced)
        eventually(lambda: has_open_transaction(kafka, output), "its transaction is open")
        primary.pause()
        primary.release(produced)
        standbys.await_ready(first)
        eventually(
            lambda: not has_open_transaction(kafka, output), "the broker has ended its transaction", timeout_s=60
        )
        standbys.promote(first_pipe)
        standbys.await_epoch_of(first, 2)
        primary.resume()
        standbys.await_superseded(primary, 1)
    all_done(run, feeder)
    # The driver's tasks may fence lanes that its successor is about to write: at most one warm restart.
    newest = standbys.generation()
    restarts = [event for event in run.events_of("restart") if event["generation"] >= 2]
    assert sum(event["error"] == "epoch-failed" for event in restarts) <= 1, restarts

    # The second standby is promoted while no epoch is in doubt and no input waits.
    # The paused first standby is then resumed before it, and sees new input first.
    first.pause()
    second, second_pipe = standbys.start()
    standbys.promote(second_pipe)
    # Both queries report their lag every few seconds; after two reports both have polled for input and wait.
    eventually(
        lambda: sum(event["generation"] == newest + 1 for event in run.events_of("lag")) >= 2,
        "the second waits",
        timeout_s=60,
    )
    committed = entries(run, "commits")
    second.pause()
    feeder.burst(30)
    first.resume()
    standbys.await_superseded(first, newest)
    assert entries(run, "offsets") != committed, "the first standby planned an epoch in Spark's log before it exited"
    assert entries(run, "commits") == committed
    resumed_at = time.monotonic()
    second.resume()
    eventually(lambda: caught_up(run, output, feeder.sent), "the second standby continues", timeout_s=60)
    restarts = [event["what"] for event in run.events_of("restart") if event["generation"] > newest]
    print(f"{time.monotonic() - resumed_at:.2f} s, restarts: {restarts}", flush=True)
    assert len(restarts) <= 1
    feeder.burst(30)
    all_done(run, feeder)
    second.stop_gracefully()
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(kafka, output), "no transaction is open")


@pytest.fixture
def severed(tmp_path: Path) -> Iterator[SeveredCluster]:
    with SeveredCluster(tmp_path / "kafka") as cluster:
        yield cluster


@pytest.mark.full
@pytest.mark.chaos(
    fault="network partition; SIGKILL, restart", target="driver; broker", topology="clonos run --standby"
)
@pytest.mark.embedded
def test_a_disconnected_driver_is_fenced_and_a_claim_survives_a_broker_restart(
    severed: SeveredCluster, name: str, tmp_path: Path
) -> None:
    kafka = severed.kafka
    topics = make_topics(kafka, input=3, output=2)
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", topics)
    standbys = Standbys(run)
    marked, claiming = "lane-marked,query=plain,epoch=4,replay=False", "lane-claim-initialised"
    try:
        with Feeder(kafka, run.params["input"], 3) as feeder:
            primary = run.start(f"{marked}:hold", environment=severed.far)
            first, first_pipe = standbys.start()
            primary.await_fault(marked)
            primary.pause()
            standbys.await_ready(first)
            primary.resume()
            # Its commit is in flight, and arrives after the takeover.
            severed.cut()
            primary.release(marked)
            standbys.promote(first_pipe)
            standbys.await_epoch_of(first, 2)
            assert primary.running, primary.tail()
            severed.heal()
            standbys.await_superseded(primary, 1)

            first.kill()
            second, second_pipe = standbys.start(f"{claiming}:hold")
            standbys.promote(second_pipe)
            second.await_fault(claiming)
            severed.kill(0)
            second.release(claiming)  # its requests reach a killed broker
            severed.restart(0)
            eventually(lambda: standbys.generation() > 2, "the job is claimed", timeout_s=60)
        eventually(lambda: caught_up(run, topics["output"], feeder.sent), "all is published", timeout_s=90)
        second.stop_gracefully()
        assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}
        eventually(lambda: not has_open_transaction(kafka, run.params["output"]), "no transaction is open")
    finally:
        run.end()
