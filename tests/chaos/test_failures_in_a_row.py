"""What takes over fails too: while it claims, while it replays; the next one goes on where the first driver fell."""

from __future__ import annotations

from pathlib import Path

import pytest
from drivers import JOBS, Feeder, JobRun, Published, caught_up, make_topics
from standing import Standing

from clonos.settings import KafkaSettings
from observe import ends_agree, eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

EVERY_S = 0.01  # enough input for every epoch to have rows in each lane
# Half of an epoch is published. Two lanes are written at a time, so that the third one is left for a replay.
HALF = "lane-committed,query=plain,epoch=3,replay=False"
CLAIMING = "lane-claimed,lane=1"
REPLAYING = "lane-produced,query=plain,epoch=3,replay=True"


@pytest.mark.story
def test_each_one_fails_where_the_last_one_left_off(kafka: KafkaSettings, name: str, tmp_path: Path) -> None:
    topics = make_topics(kafka, **{f"{name}-in": 3, f"{name}-out": 2})
    source, output = topics.values()
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", {"input": source, "output": output})
    standing = Standing(run)
    feeder = Feeder(kafka, source, 3, every_s=EVERY_S)
    feeder.burst(30)
    try:
        claims, one = standing.start(f"{CLAIMING}:kill")
        with feeder:
            run.start(f"{HALF}:kill").died()
            standing.await_ready(claims)
            (replays, other), (last, another) = standing.start(f"{REPLAYING}:kill"), standing.start()
            standing.promote(one)
            claims.died()
            standing.promote(other)
            replays.died()
            standing.promote(another)
            standing.drives(last, 4)
        eventually(lambda: caught_up(run, output, feeder.sent), "all is published", timeout_s=60)
        last.stop()
    finally:
        run.end()
    assert [one["generation"] for one in run.told("claimed")] == [1, 3, 4]
    (replayed,) = [one for one in run.told("epoch") if one["replay"]]
    assert replayed["epoch"] == 3
    assert replayed["skipped_lanes"] >= 1, "what the first driver published"
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    eventually(lambda: ends_agree(kafka, output), "no transaction is open")
