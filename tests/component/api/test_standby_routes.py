"""Standbys through the routes, with the reconciler of the service and scripted hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted_job import ScriptedJob

from clonos.testing.harness import eventually


def paged(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """All entries of a list, requested in pages of one entry."""
    after: dict[str, str] = {}
    while True:
        page = client.get(path, params={"limit": 1, **after}).json()
        yield from page["data"]
        if not page["has_more"]:
            return
        assert page["next"] != after.get("starting_after"), "the cursor advances"
        after = {"starting_after": page["next"]}


def test_a_standby_takes_over_from_a_crashed_driver(job: ScriptedJob) -> None:
    primary, crashed, other, waiting = job.start_with_standby()
    assert other != primary
    eventually(
        lambda: job.await_run_spec(standby=False)[1]["restart"]["takeover_wait_s"] > 1,
        "the agent of the driver leaves the restart to the standby",
    )

    job.report(primary, crashed, "EXITED", exit_code=-9)
    host, run_spec = job.await_run_spec(standby=False, but=crashed)
    assert (host, run_spec["run"]) == (other, waiting), "the standby's run becomes the driver"
    assert job.await_run_spec("ABSENT", standby=False)[1]["run"] == crashed, "its host kills the remains of the old one"
    assert job.await_standby("PROMOTING")["id"] == waiting
    job.start_driver(other, waiting, 2)
    assert job.await_job(state="RUNNING", host=other, generation=2)["run"] == waiting
    assert job.await_standby("PROMOTED")["id"] == waiting
    driver = job.client.get(f"/jobs/{job.name}/runs/{waiting}").json()
    assert (driver["id"], driver["host"], driver["standby"]) == (waiting, other, False)
    (recovery,) = job.recoveries()
    assert (recovery["cause"], recovery["from_host"], recovery["to_host"]) == ("crash", primary, other)
    # Another standby is placed, away from the new driver.
    replacement, next_run_spec = job.await_run_spec(standby=True)
    runs = [next_run_spec["run"], waiting]
    assert [standby["id"] for standby in paged(job.client, f"/jobs/{job.name}/standbys")] == runs
    job_id = job.fetch()["id"]
    assert {standby["id"] for standby in paged(job.client, "/standbys") if standby["job"] == job_id} == set(runs)
    former = job.client.get(f"/jobs/{job.name}/standbys?state=PROMOTED&state=FAILED").json()["data"]
    assert [standby["id"] for standby in former] == [waiting]
    assert replacement != other
    assert next_run_spec["run"] not in (crashed, waiting)


def test_a_standby_takes_over_when_the_host_is_lost(job: ScriptedJob) -> None:
    primary, lost, other, waiting = job.start_with_standby()
    host = job.hosts[primary]
    job.silence(primary, lease_expired=True)
    assert job.await_run_spec(standby=False)[1]["run"] == waiting
    assert job.client.get(f"/hosts/{host.id}").json()["state"] == "LOST"
    job.start_driver(other, waiting, 2)
    job.await_job(host=other)
    # When the host comes back, it kills its driver.
    job.hosts[primary] = host
    host.register()
    assert job.await_run_spec("ABSENT", standby=False)[1]["run"] == lost


def test_a_standby_takes_over_when_heartbeats_are_missing(job: ScriptedJob) -> None:
    """Where a standby is ready, four missing heartbeats are enough; the host keeps its lease."""
    primary, silent, other, waiting = job.start_with_standby()
    eventually(
        lambda: job.await_run_spec(standby=False)[1]["restart"]["takeover_wait_s"] > 0,
        "the agent of the driver has the standby in its work",
    )
    ordered = job.hosts[primary].work()["runs"]
    job.rounds.pass_by()
    assert job.hosts[primary].work()["runs"] == ordered, "nothing happens while heartbeats arrive"
    host = job.hosts[primary]
    job.silence(primary)
    assert job.await_run_spec(standby=False)[1]["run"] == waiting
    assert job.client.get(f"/hosts/{host.id}").json()["state"] == "READY"
    job.start_driver(other, waiting, 2)
    job.await_job(host=other)
    job.hosts[primary] = host
    assert job.await_run_spec("ABSENT", standby=False)[1]["run"] == silent, "its host kills the old driver"
    (recovery,) = job.recoveries()
    assert (recovery["cause"], recovery["standby"]) == ("host-lost", waiting)
    assert [phase["name"] for phase in recovery["phases"][:2]] == ["detect", "decide"]


@pytest.mark.parametrize("false", [True, False], ids=["before the end", "after the end"])
def test_a_takeover_is_false_if_the_driver_still_worked(job: ScriptedJob, false: bool) -> None:
    primary, silent, other, waiting = job.start_with_standby()
    host = job.hosts[primary]
    job.silence(primary, lease_expired=True)
    assert job.await_run_spec(standby=False)[1]["run"] == waiting
    job.start_driver(other, waiting, 2)
    fenced = {"event": "superseded", "error": "superseded", "what": "newer", "kept": "", "hint": ""}

    def wake_up() -> None:
        host.register()
        host.push_events(silent, {"job": job.name, "generation": 1, "at": time.time(), **fenced})

    if false:
        wake_up()
    job.push_epochs(other, waiting, 2, 1)
    eventually(lambda: job.recoveries()[0]["outcome"] == "COMPLETED", "the recovery ends")
    if not false:
        wake_up()
    job.hosts[primary] = host
    (recovery,) = job.recoveries()
    assert (recovery["alive_at"] is not None) is false
    metrics = job.client.get(str(job.client.base_url.join("/metrics"))).text
    counted = f'clonos_false_takeovers_total{{job_name="{job.name}"}} {float(false)}'
    assert counted in metrics


def test_no_standby_takes_over_when_all_hosts_are_silent(job: ScriptedJob) -> None:
    """Then the service or its database is at fault; and no host is left to take over."""
    primary, run, other, waiting = job.start_with_standby()
    hosts = dict(job.hosts)
    job.silence(*hosts)
    job.rounds.pass_by()
    assert {run_spec["run"]: run_spec["desired"] for run_spec in hosts[primary].work()["runs"]} == {run: "RUNNING"}
    assert job.fetch()["state"] == "RUNNING"
    # The reconciler was at work: it reacts as soon as the standby's host sends heartbeats again.
    job.hosts = {name: host for name, host in hosts.items() if name != primary}
    job.send_heartbeats()
    host, run_spec = job.await_run_spec(standby=False)
    assert (host, run_spec["run"]) == (other, waiting)


@pytest.mark.parametrize("order", ["host-lost", "superseded", "superseded-event-first", "no-report-yet"])
def test_a_standby_that_promoted_itself_is_the_jobs_driver(job: ScriptedJob, order: str) -> None:
    """It took over while the service was unavailable. The service adopts it: nothing is started or fenced again."""
    assert job.fetch()["spec"]["spec"]["standby"]["selfPromoteAfter"] == "10s"
    primary, old, other, waiting = job.start_with_standby()
    if order == "superseded-event-first":
        event = {"event": "superseded", "error": "superseded", "what": "newer", "kept": "", "hint": ""}
        job.hosts[primary].push_events(old, {"job": job.name, "generation": 1, "at": time.time(), **event})
    if order.startswith("superseded"):
        failure = {"error": "superseded", "what": "a newer generation", "domain": "run", "retry": False}
        job.report(primary, old, "EXITED", "SUPERSEDED", exit_code=70, final=True, failure=failure)
    job.start_driver(other, waiting, 2)
    if order == "host-lost":
        job.silence(primary, lease_expired=True)
    assert job.await_job(run=waiting, state="RUNNING")["generation"] == 2
    host, work = job.await_run_spec(standby=False)
    assert (host, work["run"], work["desired"]) == (other, waiting, "RUNNING")
    assert job.fetch()["host"] == other
    assert job.await_standby("PROMOTED")["id"] == waiting
    generations = job.client.get(f"/jobs/{job.name}/generations").json()["data"]
    assert [generation["generation"] for generation in generations] == [2, 1]
    job.push_epochs(other, waiting, 2, 1)
    eventually(lambda: [recovery for recovery in job.recoveries() if recovery["outcome"]], "the recovery is closed")
    (recovery,) = job.recoveries()
    assert recovery["cause"] in ("crash", "host-lost"), "the host may still have its lease at that moment"
    assert (recovery["from_host"], recovery["to_host"], recovery["standby"]) == (primary, other, waiting)
    assert (recovery["failed_generation"], recovery["generation"]) == (1, 2)
    assert recovery["outcome"] == "COMPLETED"


def test_a_failed_standby_does_not_change_the_job(job: ScriptedJob) -> None:
    _, _, other, waiting = job.start_with_standby()
    job.report(other, waiting, "EXITED", exit_code=1, final=True)
    assert job.await_standby("FAILED")["id"] == waiting
    assert job.fetch()["state"] == "RUNNING"
    assert job.recoveries() == []


def test_a_standby_reports_its_lag_in_epochs(job: ScriptedJob) -> None:
    primary, run, other, waiting = job.start_with_standby()
    assert job.await_standby("READY")["lag_epochs"] is None
    job.push_epochs(primary, run, 1, *range(8))
    following = {"job": job.name, "generation": 0, "at": time.time(), "event": "following"}
    job.hosts[other].push_events(waiting, {**following, "epochs": {"out": 4}})
    assert job.await_standby("READY")["lag_epochs"] == 3
    job.hosts[other].push_events(waiting, {**following, "epochs": {"out": 7}})
    assert job.await_standby("READY")["lag_epochs"] == 0


def test_a_stopped_job_has_no_standby(job: ScriptedJob) -> None:
    primary, run, _, waiting = job.start_with_standby()
    assert job.client.post(f"/jobs/{job.name}/stop", json={"mode": "graceful"}).status_code == 202
    assert job.await_run_spec("ABSENT", standby=True)[1]["run"] == waiting
    assert job.await_standby("RETIRED")["id"] == waiting, "it did not fail"
    job.report(primary, run, "EXITED", "STOPPED", exit_code=0, final=True)
    job.await_job(state="STOPPED")


def test_a_standby_does_not_take_over_after_a_final_failure(job: ScriptedJob) -> None:
    """The standby has the same code: it would fail in the same way."""
    primary, run, _, waiting = job.start_with_standby()
    failure = {"error": "job-code", "what": "it is broken", "domain": "user", "retry": False}
    job.report(primary, run, "EXITED", "FAILED", exit_code=11, final=True, failure=failure)
    job.await_job(state="FAILED")
    assert job.await_run_spec("ABSENT", standby=True)[1]["run"] == waiting
