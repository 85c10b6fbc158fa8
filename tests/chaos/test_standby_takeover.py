"""A standby takes over from a killed driver on another host, and is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from stamped_job import JOB, StampedJob

from clonos.testing.harness import Stack

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]

SPEC = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}}


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL", target="driver, three times", topology="clonos up")
def test_standbys_take_over_with_and_without_input(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    job = StampedJob(stack.client, stack.kafka)
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": 1}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**SPEC, "spec": spec}))
    stack.cli("submit", str(folder))
    job.feed()
    job.await_all("the first records are published")

    for generation in (2, 3):
        home = job.get().host
        standby = job.await_standby()
        assert standby.host != home
        assert "another failure domain" in standby.placement_reason
        job.kill_driver()
        job.feed()
        job.await_all("the standby publishes")
        assert job.await_generation(generation) == standby.host
        recovery = stack.json("recovery", "ls", "stamped")["data"][0]
        print(recovery)
        assert (recovery["cause"], recovery["generation"]) == ("crash", generation)
        assert (recovery["from_host"], recovery["to_host"]) == (home, standby.host)

    # Without input: the recovery ends when the standby is ready to read, and shows when the first record came.
    standby = job.await_standby()
    job.kill_driver()
    assert job.await_generation(4) == standby.host
    recovery = job.until(
        lambda: next((row for row in job.recoveries() if row.generation == 4 and row.outcome), None), "it is over"
    )
    print(recovery)
    phases = [phase.name for phase in recovery.phases]
    assert (recovery.outcome, phases[-4:]) == ("IDLE", ["wake", "claim", "restore", "ready"])
    assert recovery.downtime_ms == pytest.approx(sum(phase.duration_ms for phase in recovery.phases), abs=1)
    assert recovery.first_record_at is None
    job.feed()
    job.await_all("the standby publishes what comes later")
    job.until(lambda: job.recoveries()[0].first_record_at, "the first record is noted")
    job.check()
