"""Planned moves through the routes, with the reconciler of the service and scripted hosts."""

from __future__ import annotations

import io
import secrets
import time
import zipfile
from typing import Any

import pytest
from scripted_job import ScriptedJob

from clonos.testing.harness import eventually
from support.scripted import CODE, upload

BROKEN = {"error": "job-code-failed", "what": "It raised.", "domain": "user", "retry": False}


def request(job: ScriptedJob, action: str, *, status: int = 202, key: str | None = None, **body: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    answer = job.client.post(f"/jobs/{job.name}/{action}", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    operation: dict[str, Any] = answer.json()
    return operation


def finished(job: ScriptedJob, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation, once it is no longer in progress."""

    def matching() -> dict[str, Any] | None:
        current: dict[str, Any] = job.client.get(f"/operations/{operation['id']}").json()
        return current if current["state"] != "IN_PROGRESS" else None

    result: dict[str, Any] = eventually(matching, "the operation finishes")
    return result


def other_host(job: ScriptedJob, *hosts: str) -> str:
    return next(name for name in job.hosts if name not in hosts)


def take_over(job: ScriptedJob, host: str, run: str, old: tuple[str, str], generation: int = 2) -> None:
    """A standby is promoted while the driver runs; it starts as driver, and the old driver is fenced."""
    target, run_spec = job.await_run_spec(standby=False, but=old[1])
    assert (target, run_spec["run"]) == (host, run)
    assert job.runs(old[0])[old[1]] == "RUNNING", "the driver runs until then"
    assert job.fetch()["run"] == old[1]
    job.start_driver(host, run, generation)
    eventually(lambda: job.runs(old[0]).get(old[1]) == "ABSENT", "its host kills the remains of the old driver")
    superseded = {"error": "superseded", "what": "newer", "domain": "run", "retry": False}
    job.report(old[0], old[1], "EXITED", "SUPERSEDED", exit_code=70, final=True, failure=superseded)


def test_a_move_promotes_the_standby_that_is_ready(job: ScriptedJob) -> None:
    primary, run, other, waiting = job.start_with_standby()
    begun = time.time()
    job.push_epochs(primary, run, 1, 0)
    operation = request(job, "move", key="once", to=other)
    assert request(job, "move", key="once", to=other)["id"] == operation["id"], (
        "a retried request has the same operation"
    )
    take_over(job, other, waiting, (primary, run))
    done = finished(job, operation)
    assert (done["state"], done["result"]["run"]) == ("COMPLETED", waiting)
    assert (job.fetch()["host"], job.fetch()["state"]) == (other, "RUNNING")
    job.push_epochs(other, waiting, 2, 1)
    recovery = job.recoveries()[0]
    assert (recovery["cause"], recovery["outcome"], recovery["failure"]) == ("move", "COMPLETED", None)
    assert (recovery["from_host"], recovery["to_host"], recovery["standby"]) == (primary, other, waiting)
    assert 0 <= recovery["downtime_ms"] <= (time.time() - begun) * 1000
    # Another standby replaces the promoted one.
    assert job.await_run_spec(standby=True)[0] != other
    events = job.client.get("/events/history?type=job.generation").json()["data"]
    assert events[-1]["data"]["cause"] == "move"
    actions = [entry["action"] for entry in job.client.get("/audit").json()["data"]]
    assert {"job.move", "operation.move"} <= set(actions)


def test_a_move_to_a_host_without_a_standby_places_a_standby_first(job: ScriptedJob) -> None:
    primary, run, other, regular = job.start_with_standby()
    to = other_host(job, primary, other)
    operation = request(job, "move", to=to)
    host, run_spec = job.await_run_spec(standby=True, but=regular)
    assert host == to
    job.report(to, run_spec["run"], "RUNNING", "READY")
    take_over(job, to, run_spec["run"], (primary, run))
    assert finished(job, operation)["state"] == "COMPLETED"
    assert job.fetch()["host"] == to
    assert job.runs(other) == {regular: "RUNNING"}, "the job's own standby stays"


def test_a_job_without_standbys_moves_through_a_temporary_standby(job: ScriptedJob) -> None:
    primary, run, other, regular = job.start_with_standby()
    spec = {**job.fetch()["spec"]}
    spec["spec"] = {**spec["spec"], "standby": {"replicas": 0}}
    version = job.fetch()["version"]
    patched = job.client.patch(f"/jobs/{job.name}", json={"spec": spec}, headers={"If-Match": f'"{version}"'})
    assert patched.status_code == 200, patched.text
    assert job.await_run_spec("ABSENT", standby=True)[1]["run"] == regular
    job.report(other, regular, "EXITED", exit_code=-9, final=True)
    operation = request(job, "move")
    host, run_spec = job.await_run_spec(standby=True)
    assert run_spec["version"] == 1, "as its driver: a changed specification takes effect at the next start"
    job.report(host, run_spec["run"], "RUNNING", "READY")
    take_over(job, host, run_spec["run"], (primary, run))
    assert finished(job, operation)["state"] == "COMPLETED"
    assert not any(run["standby"] for host in job.hosts.values() for run in host.work()["runs"])


def test_an_impossible_move_is_refused_at_once(job: ScriptedJob) -> None:
    primary, *_ = job.start_with_standby()
    assert "no-such-host" in request(job, "move", to="no-such-host", status=404)["detail"]
    drained = other_host(job, primary)
    job.client.post(f"/hosts/{drained}/drain")
    assert "DRAINING" in request(job, "move", to=drained, status=409)["detail"]
    assert request(job, "move", to=primary)["state"] == "COMPLETED", "the job runs there already"
    assert request(job, "upgrade")["state"] == "COMPLETED", "the job has the newest version already"
    job.client.post(f"/jobs/{job.name}/stop")
    eventually(lambda: job.fetch()["state"] != "RUNNING", "the job is stopping")
    assert "STOPP" in request(job, "move", status=409)["detail"]


def test_a_job_with_a_host_local_checkpoint_does_not_move(job: ScriptedJob) -> None:
    spec = {"metadata": {"name": f"{job.name}-l"}, "spec": {"main": "job.py", "checkpoint": "/var/lib/here"}}
    body = {"spec": spec, "artifact": upload(job.client)}
    assert job.client.post("/jobs", json=body).status_code == 201
    answer = job.client.post(f"/jobs/{job.name}-l/move")
    assert answer.status_code == 409
    assert "/var/lib/here is a path of its host" in answer.json()["detail"]
    job.client.post(f"/jobs/{job.name}-l/cancel")


# Upgrades


def change_code(job: ScriptedJob, code: bytes = CODE + b"# newer\n", name: str = "job.py") -> None:
    body = {"artifact": upload(job.client, code, name)}
    version = job.fetch()["version"]
    answer = job.client.patch(f"/jobs/{job.name}", json=body, headers={"If-Match": f'"{version}"'})
    assert answer.status_code == 200, answer.text


def test_an_upgrade_takes_the_new_code_unless_it_is_refused(job: ScriptedJob) -> None:
    primary, run, _, waiting = job.start_with_standby()
    body = {"artifact": upload(job.client, CODE + b"# newer\n")}
    path = f"/jobs/{job.name}/upgrade"
    assert job.client.post(path, json=body).status_code == 428
    assert job.client.post(path, json=body, headers={"If-Match": '"7"'}).status_code == 412
    assert job.fetch()["version"] == 1
    answer = job.client.post(path, json=body, headers={"If-Match": '"1"'})
    assert answer.status_code == 202, answer.text
    assert (job.fetch()["version"], job.fetch()["artifact"]) == (2, body["artifact"])
    host, new = await_upgraded_standby(job, run, waiting, state="WARMING")
    job.report(host, new, "EXITED", exit_code=14, final=True, failure=BROKEN)
    assert finished(job, answer.json())["failure"]["error"] == "move-failed"
    assert job.runs(primary) == {run: "RUNNING"}

    job.client.post(f"/jobs/{job.name}/stop")
    eventually(lambda: job.fetch()["state"] != "RUNNING", "the job is stopping")
    body = {"artifact": upload(job.client, CODE + b"# newest\n")}
    refused = job.client.post(path, json=body, headers={"If-Match": '"1"'})
    assert refused.status_code == 409
    assert job.fetch()["version"] == 1, "a refused upgrade stores nothing"


def await_upgraded_standby(job: ScriptedJob, old: str, waiting: str, state: str = "READY") -> tuple[str, str]:
    """Wait for a standby of the new version and report its state: its host and run."""

    def matching() -> list[tuple[str, dict[str, Any]]]:
        return [
            (name, run)
            for name, host in job.hosts.items()
            for run in host.work()["runs"]
            if run["standby"] and run["version"] == 2
        ]

    host, run_spec = eventually(matching, "a standby of the new version is placed")[0]
    assert run_spec["run"] not in (old, waiting)
    job.report(host, run_spec["run"], "RUNNING", state)
    return host, run_spec["run"]


def finish_old_driver(job: ScriptedJob, primary: str, run: str) -> None:
    """The driver of the old version is requested to finish its epoch, and finishes it."""
    host, run_spec = job.await_run_spec("STOPPED", standby=False)
    assert (host, run_spec["run"], run_spec["stop_mode"]) == (primary, run, "graceful")
    job.report(primary, run, "STOPPING", "STOPPED")


def test_an_upgrade_starts_after_the_old_driver_has_finished(job: ScriptedJob) -> None:
    primary, run, other, waiting = job.start_with_standby()
    job.push_epochs(primary, run, 1, 0)
    change_code(job)
    operation = request(job, "upgrade")
    host, new = await_upgraded_standby(job, run, waiting)
    assert job.runs(other)[waiting] == "RUNNING", (
        "a standby of the old version stays until the new version has an epoch"
    )
    finish_old_driver(job, primary, run)
    assert job.await_run_spec(standby=False, but=run)[1]["run"] == new
    job.start_driver(host, new, 2)
    job.await_job(state="RUNNING")
    assert job.client.get(f"/operations/{operation['id']}").json()["state"] == "IN_PROGRESS", (
        "the new version has no epoch yet"
    )
    job.push_epochs(host, new, 2, 1)
    done = finished(job, operation)
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 2)
    assert (job.fetch()["observed_version"], job.fetch()["host"]) == (2, host)
    recovery = job.recoveries()[0]
    assert (recovery["cause"], recovery["outcome"], recovery["to_host"]) == ("upgrade", "COMPLETED", host)
    eventually(lambda: job.runs(other).get(waiting) == "ABSENT", "standbys of the old version are removed")


def test_an_upgrade_that_fails_to_warm_up_leaves_the_driver_in_place(job: ScriptedJob) -> None:
    primary, run, _, waiting = job.start_with_standby()
    change_code(job)
    operation = request(job, "upgrade")
    host, new = await_upgraded_standby(job, run, waiting, state="WARMING")
    job.report(host, new, "EXITED", exit_code=14, final=True, failure=BROKEN)
    failed = finished(job, operation)
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "move-failed")
    assert "It raised." in failed["failure"]["what"]
    assert job.runs(primary) == {run: "RUNNING"}
    assert job.fetch()["host"] == primary, "its driver stays the job's"
    assert job.fetch()["version"] == 1, "each start runs the version that worked"
    kept = job.client.get(f"/jobs/{job.name}/versions").json()["data"]
    assert [version["version"] for version in kept] == [2, 1]
    change_code(job)
    assert job.fetch()["version"] == 3, "numbers are not used twice"


@pytest.mark.parametrize("guarded", [True, False], ids=["standby", "cold"])
def test_an_upgrade_that_fails_at_once_is_rolled_back(job: ScriptedJob, guarded: bool) -> None:
    primary, run, other, waiting = job.start_with_standby()
    first = job.fetch()["artifact"]
    change_code(job)
    operation = request(job, "upgrade")
    host, new = await_upgraded_standby(job, run, waiting)
    finish_old_driver(job, primary, run)
    assert job.await_run_spec(standby=False, but=run)[1]["run"] == new
    job.report(primary, run, "EXITED", "STOPPED", exit_code=0, final=True)
    job.start_driver(host, new, 2)
    if not guarded:
        job.report(other, waiting, "EXITED", exit_code=1, final=True)
        job.await_standby("FAILED")
    job.report(host, new, "EXITED", "FAILED", exit_code=14, final=True, failure=BROKEN)

    job.await_job(version=1)
    assert job.fetch()["artifact"] == first
    host, run_spec = job.await_run_spec(standby=False, but=new)
    assert (run_spec["artifact"], run_spec["version"], run_spec["accept_new_code"]) == (first, 1, True)
    assert (run_spec["run"] == waiting) == guarded, "a standby of the old version takes over, if there is one"
    job.start_driver(host, run_spec["run"], 3)
    failed = finished(job, operation)
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "upgrade-failed")
    assert "It raised." in failed["failure"]["what"]
    assert "version 1 is restored" in failed["failure"]["kept"]
    assert f"clonos job versions {job.name} --diff 1 2" in failed["failure"]["hint"]
    assert (job.fetch()["state"], job.fetch()["observed_version"]) == ("RUNNING", 1)
    versions = job.client.get(f"/jobs/{job.name}/versions").json()["data"]
    assert [version["version"] for version in versions] == [2, 1]


@pytest.mark.parametrize("abort", ["stop", "move", "restart"])
def test_an_aborted_upgrade_leaves_the_version_that_runs_as_the_next_one(job: ScriptedJob, abort: str) -> None:
    _primary, run, _, waiting = job.start_with_standby()
    first = job.fetch()["artifact"]
    change_code(job)
    request(job, "upgrade")
    await_upgraded_standby(job, run, waiting, state="WARMING")
    assert job.fetch()["version"] == 2
    request(job, abort)
    job.await_job(version=1)
    assert job.fetch()["artifact"] == first


def test_a_rollback_of_a_running_job_is_an_upgrade_to_the_version_that_worked(job: ScriptedJob) -> None:
    primary, run, _, waiting = job.start_with_standby()
    job.push_epochs(primary, run, 1, 1)
    change_code(job)
    operation = request(job, "upgrade")
    host, new = await_upgraded_standby(job, run, waiting)
    finish_old_driver(job, primary, run)
    job.await_run_spec(standby=False, but=run)
    job.report(primary, run, "EXITED", "STOPPED", exit_code=0, final=True)
    job.start_driver(host, new, 2)
    job.push_epochs(host, new, 2, 2)
    assert finished(job, operation)["state"] == "COMPLETED"

    operation = request(job, "rollback")
    assert operation["kind"] == "upgrade"
    assert job.fetch()["version"] == 1
    unknown = job.client.post(f"/jobs/{job.name}/rollback", json={"version": 9})
    assert (unknown.status_code, unknown.json()["type"].rpartition("/")[2]) == (404, "not-found")


def test_a_rollback_starts_a_job_that_failed_in_its_new_version(job: ScriptedJob) -> None:
    host, run, _, _ = job.start_with_standby()
    job.push_epochs(host, run, 1, 1)
    job.report(host, run, "EXITED", "FAILED", exit_code=14, final=True, failure=BROKEN)
    job.await_job(state="FAILED")
    none = job.client.post(f"/jobs/{job.name}/rollback")
    assert none.status_code == 409, "no other version has finished an epoch"
    assert f"clonos job rollback {job.name} VERSION" in none.json()["hint"]
    change_code(job)
    failed_too = job.client.post(f"/jobs/{job.name}/rollback")
    assert (failed_too.status_code, "without failing later" in failed_too.text) == (409, True), "version 1 failed too"
    operation = job.client.post(f"/jobs/{job.name}/rollback", json={"version": 1}).raise_for_status().json()
    assert operation["kind"] == "rollback"
    eventually(lambda: run != job.fetch()["run"], "the job is placed")
    assert job.await_run_spec(standby=False, but=run)[1]["version"] == 1


def test_a_takeover_keeps_the_running_version(job: ScriptedJob) -> None:
    """A recovery is not a start: an epoch in doubt needs the code that planned it."""
    primary, run, other, waiting = job.start_with_standby()
    change_code(job)
    job.report(primary, run, "EXITED", exit_code=-9)
    host, run_spec = job.await_run_spec(standby=False, but=run)
    assert (host, run_spec["run"], run_spec["version"]) == (other, waiting, 1)


def test_two_versions_are_compared_in_code_and_specification(job: ScriptedJob) -> None:
    job.start_with_standby()
    change_code(job)
    spec = job.fetch()["spec"]
    spec["spec"]["params"] = {"limit": "7"}
    answer = job.client.patch(f"/jobs/{job.name}", json={"spec": spec}, headers={"If-Match": '"2"'})
    assert answer.status_code == 200, answer.text
    compared = job.client.get(f"/jobs/{job.name}/versions/diff", params={"before": 1}).json()
    assert (compared["before"], compared["after"]) == (1, 3)
    assert "+# newer" in compared["code"]
    assert "+    limit: '7'" in compared["spec"]
    same = job.client.get(f"/jobs/{job.name}/versions/diff", params={"before": 2, "after": 3}).json()
    assert (same["code"], bool(same["spec"])) == ([], True)
    assert job.client.get(f"/jobs/{job.name}/versions/diff", params={"before": 9}).status_code == 404


def test_an_epoch_in_doubt_is_finished_by_the_version_that_planned_it(job: ScriptedJob) -> None:
    def claims(host: str, run: str, generation: int, code: str) -> None:
        common = {"job": job.name, "generation": generation, "at": time.time()}
        job.hosts[host].push_events(run, {**common, "event": "claimed", "lineage": 1, "lanes": 1, "code": code})

    host, run_spec = job.await_run_spec(standby=False)
    first = run_spec["run"]
    claims(host, first, 1, "one")
    outage = {"error": "sink-topic-deleted", "what": "It was deleted.", "domain": "environment", "retry": False}
    job.report(host, first, "EXITED", "FAILED", exit_code=39, final=True, failure=outage)
    failed = job.await_job(state="FAILED")
    assert f"Then: `clonos job start {job.name}`" in failed["failure"]["hint"]
    change_code(job)
    assert job.client.post(f"/jobs/{job.name}/start").status_code == 202
    host, run_spec = job.await_run_spec(standby=False, but=first)
    refusing = run_spec["run"]
    assert (run_spec["version"], run_spec["finish_for"]) == (2, 0)
    claims(host, refusing, 2, "two")
    mismatch = {"error": "checkpoint-mismatch", "what": "changed", "domain": "consistency", "codes": ["one"]}
    job.report(host, refusing, "EXITED", "FAILED", exit_code=51, final=True, failure=mismatch)

    host, run_spec = job.await_run_spec(standby=False, but=refusing)
    finishing = run_spec["run"]
    assert (run_spec["version"], run_spec["finish_for"], run_spec["finished"]) == (1, 2, [1])
    claims(host, finishing, 3, "one")
    job.report(host, finishing, "RUNNING", "RUNNING")
    assert job.fetch()["state"] == "STARTING", "the job's version does not run yet"
    job.report(host, finishing, "EXITED", "FINISHED", exit_code=0, final=True)

    host, run_spec = job.await_run_spec(standby=False, but=finishing)
    assert (run_spec["version"], run_spec["finish_for"], run_spec["finished"]) == (2, 0, [1])
    job.start_driver(host, run_spec["run"], 4)
    assert job.await_job(state="RUNNING")["observed_version"] == 2


def test_a_comparison_of_code_shows_files_within_a_limit_and_names_the_others(job: ScriptedJob) -> None:
    """Files are compared by checksum: also a difference in a file that is too large to be shown is reported."""
    job.start_with_standby()
    files = {f"part{number}.py": "".join(f"{number}.{line}\n" for line in range(900)) for number in range(4)}
    big = secrets.token_hex(200_000)
    change_code(job, packed({"job.py": CODE.decode(), "big.txt": big, "empty.py": "", **files}), "code.zip")
    changed = {name: text.replace("500", "changed") for name, text in files.items()}
    change_code(
        job,
        packed({"job.py": CODE.decode(), "big.txt": big[:-1] + "x", "added.py": "", "empty.py": "", **changed}),
        "code.zip",
    )
    code = job.client.get(f"/jobs/{job.name}/versions/diff", params={"before": 2}).json()["code"]
    assert [line[:8] for line in code[:2]] == ["--- code", "+++ code"]
    assert code[2:4] == ["# added.py: differs, not shown", "# big.txt: differs, not shown"]
    assert code.count("+0.changed") == code.count("+1.changed") == 1
    assert code[-2:] == ["# part2.py: differs, not shown", "# part3.py: differs, not shown"], (
        "4,000 lines are the limit"
    )
    change_code(
        job,
        packed({"job.py": CODE.decode(), "big.txt": big[:-1] + "y", "added.py": "", "empty.py": "", **changed}),
        "code.zip",
    )
    only_large = job.client.get(f"/jobs/{job.name}/versions/diff", params={"before": 3}).json()["code"]
    assert only_large[2:] == ["# big.txt: differs, not shown"]


def packed(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writing:
        for name, content in files.items():
            writing.writestr(name, content)
    return archive.getvalue()
