"""Standbys fail during their own takeover: one while it claims, one while it replays. The third one continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from drivers import JOBS, Feeder, JobRun, Published, caught_up, make_topics
from standbys import Standbys

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction

pytestmark = [pytest.mark.timeout(3000)]

EVERY_S = 0.01  # enough input for every epoch to have rows in each lane
# Half of an epoch is published. Two lanes are written at a time, so the replay has to write the third lane.
HALF = "lane-committed,query=plain,epoch=3,replay=False"
CLAIMING = "lane-claimed,lane=1"
REPLAYING = "lane-produced,query=plain,epoch=3,replay=True"


@pytest.mark.chaos(
    fault="SIGKILL at a protocol point", target="driver, first standby, second standby", topology="clonos run --standby"
)
@pytest.mark.full
def test_each_standby_fails_during_its_own_takeover(kafka: KafkaSettings, name: str, tmp_path: Path) -> None:
    topics = make_topics(kafka, **{f"{name}-in": 3, f"{name}-out": 2})
    source, output = topics.values()
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", {"input": source, "output": output})
    standbys = Standbys(run)
    feeder = Feeder(kafka, source, 3, every_s=EVERY_S)
    feeder.burst(30)
    try:
        claims, claims_pipe = standbys.start(f"{CLAIMING}:kill")
        with feeder:
            run.start(f"{HALF}:kill").await_kill()
            standbys.await_ready(claims)
            (replays, replays_pipe), (last, last_pipe) = standbys.start(f"{REPLAYING}:kill"), standbys.start()
            standbys.promote(claims_pipe)
            claims.await_kill()
            standbys.promote(replays_pipe)
            replays.await_kill()
            standbys.promote(last_pipe)
            standbys.await_epoch_of(last, 4)
        eventually(lambda: caught_up(run, output, feeder.sent), "all is published", timeout_s=60)
        last.stop_gracefully()
    finally:
        run.end()
    assert [event["generation"] for event in run.events_of("claimed")] == [1, 3, 4]
    (replayed,) = [event for event in run.events_of("epoch") if event["replay"]]
    assert replayed["epoch"] == 3
    assert replayed["skipped_lanes"] >= 1, "lanes that the first driver published"
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(kafka, output), "no transaction is open")
