"""The routes for agents: register, poll for work, push events and logs, report tasks, and be replaced."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.event_types import sentence_of
from clonos.testing.harness import eventually
from clonos_api.store import hosts, runs
from clonos_api.store.db.database import Origin
from support.busy import slowdown
from support.scripted import ScriptedAgent, create
from support.serving import Served

Place = Callable[[str, str], str]


def test_a_run_through_the_routes(admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place) -> None:
    job = create(admin, name)
    before = agent.work()
    run = place(name, agent.name)
    work = agent.work()
    assert work["revision"] != before["revision"]
    (run_spec,) = work["runs"]
    assert (run_spec["run"], run_spec["desired"], run_spec["artifact"]) == (run, "RUNNING", job["artifact"])
    assert agent.client.get(f"/artifacts/{run_spec['artifact']}/content").status_code == 200

    agent.heartbeat({"run": run, "state": "STARTING", "attempts": 1, "pid": 42})
    at = time.time()
    common = {"job": name, "generation": 1}
    agent.push_events(
        run,
        {**common, "event": "claimed", "at": at, "lineage": 1, "lanes": 1},
        {**common, "event": "state", "at": at, "state": "RUNNING"},
        *(_epoch(common, number, at + number) for number in range(3)),
        {**common, "event": "lag", "at": at + 3, "query": "out", "topics": {"lines": 7}},
    )
    agent.heartbeat({"run": run, "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1, "pid": 42})
    shown = admin.get(f"/jobs/{name}").json()
    assert (shown["run"], shown["host"], shown["generation"]) == (run, agent.name, 1)
    (listed,) = admin.get(f"/jobs/{name}/runs").json()["data"]
    assert (listed["state"], listed["pid"], listed["host"]) == ("RUNNING", 42, agent.name)
    (generation,) = admin.get(f"/jobs/{name}/generations").json()["data"]
    assert (generation["generation"], generation["host"]) == (1, agent.name)
    checkpoints = admin.get(f"/jobs/{name}/checkpoints").json()
    assert checkpoints["counts"]["completed"] == 3
    assert [checkpoint["epoch"] for checkpoint in checkpoints["history"]] == [2, 1, 0]
    assert admin.get(f"/jobs/{name}/checkpoints/1").json()["records_out"] == 10
    assert admin.get(f"/jobs/{name}/checkpoints/9").status_code == 404
    metrics = admin.get(f"/jobs/{name}/metrics").json()["queries"]["out"]
    assert (metrics["epochs"], metrics["records_out"], metrics["lag"]) == (3, 30, {"lines": 7})
    assert admin.get(f"/jobs/{name}/causal-log").json()["determinants"] == 6
    for path in ("offsets", "recoveries", "exceptions", "standbys"):
        assert admin.get(f"/jobs/{name}/{path}").status_code == 200
    host = admin.get(f"/hosts/{agent.name}").json()
    assert (host["state"], host["runs"], host["free"]) == ("READY", 1, 3)


def _epoch(common: dict[str, object], number: int, at: float) -> dict[str, object]:
    figures = {
        "records_in": 20,
        "records_out": 10,
        "skipped_lanes": 0,
        "diverged_lanes": 0,
        "recorded_determinants": 2,
        "replayed_determinants": 0,
    }
    more = {"dead_letters": 0, "dropped": 0, "duration_ms": 12.5, "replay": False}
    return {**common, **figures, **more, "event": "epoch", "query": "out", "epoch": number, "at": at}


def test_a_push_may_be_repeated(admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place) -> None:
    create(admin, name)
    run = place(name, agent.name)
    event = {"event": "claimed", "job": name, "generation": 1, "at": time.time(), "lineage": 1, "lanes": 1}
    epoch = _epoch({"job": name, "generation": 1}, 0, time.time())
    end = agent.push_events(run, event, epoch)
    agent.events[run] = 0
    assert agent.push_events(run, event, epoch) == end
    agent.events[run] = end + 100  # a gap: the response has the expected offset
    assert agent.push_events(run, event) == end
    assert admin.get(f"/jobs/{name}/checkpoints").json()["counts"]["completed"] == 1


def test_one_push_has_batches_of_several_runs(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place
) -> None:
    jobs = [f"{name}-{number}" for number in range(3)]
    for job in jobs:
        create(admin, job)
    runs = [place(job, agent.name) for job in jobs]
    lines = [
        json.dumps({"event": "claimed", "job": name, "generation": 1, "at": time.time(), "lineage": 1, "lanes": 1}),
        json.dumps(_epoch({"job": name, "generation": 1}, 0, time.time())),
    ]
    size = sum(len(line) + 1 for line in lines)
    unknown = "0198c0de-0000-7000-8000-000000000000"
    body = {
        "instance": agent.instance,
        "events": [
            {"run": runs[0], "offset": 0, "lines": lines},
            {"run": unknown, "offset": 0, "lines": lines},
            {"run": runs[1], "offset": 7, "lines": lines},  # a gap
            {"run": runs[2], "offset": 0, "lines": lines},
        ],
        "logs": [{"run": runs[1], "offset": 0, "text": "hello\n"}, {"run": runs[0], "offset": 0, "text": "world\n"}],
    }
    for _ in range(2):  # a repeated push changes nothing
        taken = agent.client.post(f"/hosts/{agent.id}/push", json=body).json()
        assert [result["offset"] for result in taken["events"]] == [size, None, 0, size]
        assert taken["events"][1]["status"] == 404
        assert [result["offset"] for result in taken["logs"]] == [6, 6]
    counts = [admin.get(f"/jobs/{job}/checkpoints").json()["counts"]["completed"] for job in jobs]
    assert counts == [1, 0, 1]
    assert [admin.get(f"/jobs/{job}/logs").json()["lines"] for job in jobs] == [["world"], ["hello"], []]

    # An offset in the middle of a line: only that batch is refused.
    body["events"] = [
        {"run": runs[0], "offset": size - 5, "lines": ["x" * 50]},
        {"run": runs[2], "offset": size, "lines": [lines[1].replace('"epoch": 0', '"epoch": 1')]},
    ]
    taken = agent.client.post(f"/hosts/{agent.id}/push", json=body).json()
    assert [result["status"] for result in taken["events"]] == [422, 200]
    assert admin.get(f"/jobs/{jobs[2]}/checkpoints").json()["counts"]["completed"] == 2

    # A run with two batches would be counted twice.
    body["events"] *= 2
    assert agent.client.post(f"/hosts/{agent.id}/push", json=body).status_code == 422
    body |= {"instance": "another", "events": []}
    assert agent.client.post(f"/hosts/{agent.id}/push", json=body).status_code == 409


def test_the_push_interval_grows_with_the_number_of_drivers(agent: ScriptedAgent) -> None:
    before = agent.heartbeat()["push_interval_ms"]
    none = "0198c0de-0000-7000-8000-{:012}"
    many = [{"run": none.format(number), "state": "RUNNING"} for number in range(400)]
    assert 2000 <= agent.heartbeat(*many)["push_interval_ms"] <= 2000 + before
    assert agent.heartbeat()["push_interval_ms"] <= before


def test_an_epoch_has_spans_and_a_checkpoint_size(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place
) -> None:
    """The driver reports the spans; its agent reports the checkpoint size that it measured last."""
    create(admin, name)
    run = place(name, agent.name)
    common = {"job": name, "generation": 1}
    spans = [{"name": "plan", "duration_ms": 2.5}, {"name": "publish", "duration_ms": 9.0}]
    agent.push_events(run, {**_epoch(common, 0, time.time()), "spans": spans})
    report = {"run": run, "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1}
    agent.heartbeat({**report, "checkpoint_bytes": {"out": 4321}})
    agent.heartbeat(report)  # not every heartbeat has a size
    agent.push_events(run, {**_epoch(common, 1, time.time()), "spans": spans})
    newest, oldest = admin.get(f"/jobs/{name}/checkpoints").json()["history"]
    assert newest["spans"] == oldest["spans"] == spans
    assert (oldest["size_bytes"], newest["size_bytes"]) == (None, 4321)


def test_a_long_poll_waits_for_work(admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place) -> None:
    create(admin, name)
    before = agent.work()
    answers: list[dict[str, Any]] = []
    poller = threading.Thread(target=lambda: answers.append(agent.work(before["revision"], 20.0)))
    poller.start()
    poller.join(0.5)
    assert poller.is_alive(), "the long-poll waits"
    run = place(name, agent.name)  # over another connection: the replica reads it from the database
    poller.join(10 * slowdown())
    assert not poller.is_alive(), "new work ends the long-poll before its time"
    assert [run_spec["run"] for run_spec in answers[0]["runs"]] == [run]
    revision = agent.work()["revision"]
    begun = time.monotonic()
    unchanged = agent.work(revision, 0.3)
    assert time.monotonic() - begun >= 0.3
    assert [run_spec["run"] for run_spec in unchanged["runs"]] == [run]


def test_a_newer_process_replaces_an_agent(api: Served, agent: ScriptedAgent) -> None:
    with ScriptedAgent(api, agent.name) as newer:
        assert newer.register()["id"] == agent.id
        newer.heartbeat()
    refused = agent.client.post(f"/hosts/{agent.id}/heartbeat", json={"instance": agent.instance, "runs": []})
    assert refused.status_code == 409
    assert refused.json()["type"].endswith("/agent-replaced")


def test_a_repeated_heartbeat_keeps_the_host_alive_and_reads_no_run(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(admin, name)
    report = {"run": place(name, agent.name), "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1}
    answers = [agent.heartbeat(report) for _ in range(3)]
    before = admin.get(f"/hosts/{agent.id}").json()["heartbeat_at"]
    monkeypatch.setattr(runs, "news", None)
    assert agent.heartbeat(report) == answers[-1]
    assert admin.get(f"/hosts/{agent.id}").json()["heartbeat_at"] > before


def test_a_repeated_heartbeat_notices_what_others_changed(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place, write: Callable[..., object]
) -> None:
    create(admin, name)
    run = place(name, agent.name)
    report = {"run": run, "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1}

    async def lose(session: AsyncSession) -> None:
        await runs.lose(session, await runs.get(session, run))

    async def give_work(session: AsyncSession) -> None:
        hosts.bump(session, agent.id)

    known = [agent.heartbeat(report) for _ in range(3)][-1]
    write(lose)
    agent.heartbeat(report)
    assert [each["state"] for each in admin.get(f"/jobs/{name}/runs").json()["data"]] == ["RUNNING"]
    write(give_work)
    assert agent.heartbeat(report)["revision"] > known["revision"]
    assert admin.post(f"/hosts/{agent.name}/drain").json()["state"] == "DRAINING"
    assert agent.heartbeat(report)["drain"]


def test_a_heartbeat_that_repeats_an_accepted_one_has_the_same_rights(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str
) -> None:
    path, body = f"/hosts/{agent.id}/heartbeat", {"instance": agent.instance, "runs": []}

    def accepted() -> None:
        assert [agent.client.post(path, json=body).status_code for _ in range(3)] == [200] * 3

    accepted()
    assert admin.post(path, json=body).status_code == 403
    with ScriptedAgent(api, f"other-{name}") as other:
        accepted()
        assert other.client.post(path, json=body).status_code == 403
    accepted()
    assert agent.client.post(path, json=body, params={"x": 1}).status_code == 422
    accepted()
    with ScriptedAgent(api, agent.name) as newer:
        newer.register()
        assert agent.client.post(path, json=body).status_code == 409
    agent.register()
    accepted()
    assert admin.delete(f"/hosts/{agent.name}").status_code == 204
    assert agent.client.post(path, json=body).status_code == 410
    agent.register()
    accepted()
    assert admin.delete(f"/tokens/{agent.token}").status_code == 204
    eventually(lambda: agent.client.post(path, json=body).status_code == 401, "its token is revoked")


def test_a_process_that_takes_the_place_of_a_live_agent_leaves_a_trace(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str
) -> None:
    """It may be a restart, or a process with a copy of the agent's token: then the replaced one continues to send."""
    create(admin, name)
    agent.register()
    agent.heartbeat()
    own, agent.instance = agent.instance, "thief"
    agent.register()
    assert not has_two_agents(agent, admin, api), "a restart: the replaced process sends nothing"
    agent.instance = own
    assert agent.client.post(f"/hosts/{agent.id}/heartbeat", json={"instance": own}).status_code == 409
    eventually(lambda: has_two_agents(agent, admin, api), "both processes run")
    entries = [entry for entry in admin.get("/audit").json()["data"] if entry["token"] == agent.token]
    allowed = [entry["detail"] for entry in entries if entry["action"] == "host.register"]
    assert ["replaced_after_s" in detail for detail in allowed] == [True, False]
    denied = next(entry for entry in entries if entry["outcome"] == "denied")
    assert denied["detail"]["error"] == "agent-replaced"
    events = admin.get("/events/history", params={"type": "host.registered", "tail": 5}).json()["data"]
    said = [sentence_of(event["type"], event["data"]) for event in events if event["data"]["name"] == agent.name]
    assert "a new process replaces the one that sent a heartbeat" in said[-1]


def has_two_agents(agent: ScriptedAgent, admin: httpx.Client, api: Served) -> bool:
    """Whether the status and the metrics say that two processes are the agent of a host."""
    exported = admin.get(f"{api.url}/metrics").text
    figure = f'clonos_host_agent_replaced_timestamp_seconds{{host="{agent.name}"}} ' in exported
    said = f"{agent.name} has had two agents." in admin.get("/status").json()["summary"]
    assert figure or not said
    return said


def test_a_removed_host_gets_410(admin: httpx.Client, agent: ScriptedAgent) -> None:
    assert admin.post(f"/hosts/{agent.name}/drain").json()["state"] == "DRAINING"
    assert agent.heartbeat()["drain"]
    assert admin.post(f"/hosts/{agent.name}/undrain").json()["state"] == "READY"
    assert admin.delete(f"/hosts/{agent.name}").status_code == 204
    gone = agent.client.post(f"/hosts/{agent.id}/heartbeat", json={"instance": agent.instance, "runs": []})
    assert gone.status_code == 410
    assert agent.client.get(f"/hosts/{agent.id}/work").status_code == 410
    agent.register()
    agent.heartbeat()


def test_an_agent_cannot_access_other_hosts(
    admin: httpx.Client, api: Served, agent: ScriptedAgent, name: str, place: Place
) -> None:
    create(admin, name)
    run = place(name, agent.name)
    with ScriptedAgent(api, f"other-{name}") as other:
        other.register()
        stolen = {"instance": other.instance, "logs": [{"run": run, "offset": 0, "text": "x"}]}
        assert other.client.post(f"/hosts/{agent.id}/push", json=stolen).status_code == 403
        (result,) = other.client.post(f"/hosts/{other.id}/push", json=stolen).json()["logs"]
        assert result["status"] == 404
        assert other.client.get("/jobs").status_code == 403


def test_an_agent_takes_and_deletes_a_savepoint(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place, write: Callable[..., object]
) -> None:
    create(admin, name)
    assert admin.post(f"/jobs/{name}/savepoints").status_code == 409  # the job never ran
    place(name, agent.name)
    answer = admin.post(f"/jobs/{name}/savepoints", json={"name": "first"})
    assert answer.status_code == 202, answer.text
    operation = answer.json()["id"]
    (savepoint,) = admin.get(f"/jobs/{name}/savepoints").json()["data"]
    assert (savepoint["name"], savepoint["state"]) == ("first", "IN_PROGRESS")
    _task(write, agent.id, "savepoint", savepoint["id"], operation)
    (task,) = agent.work()["tasks"]
    agent.task_done(task["task"], epochs={"out": 5}, size_bytes=123)
    agent.task_done(task["task"], epochs={"out": 6}, size_bytes=124)  # a repeated report changes nothing
    done = admin.get(f"/savepoints/{savepoint['id']}").json()
    assert (done["state"], done["epochs"], done["size_bytes"]) == ("COMPLETED", {"out": 5}, 123)
    ended = admin.get(f"/operations/{operation}").json()
    assert (ended["state"], ended["result"]) == ("COMPLETED", {"savepoint": savepoint["id"]})
    assert agent.work()["tasks"] == []

    deleting = admin.delete(f"/savepoints/{savepoint['id']}")
    assert deleting.status_code == 202
    _task(write, agent.id, "delete-savepoint", savepoint["id"], deleting.json()["id"])
    agent.task_done(agent.work()["tasks"][0]["task"])
    assert admin.get(f"/savepoints/{savepoint['id']}").status_code == 404
    assert admin.get(f"/operations/{deleting.json()['id']}").json()["state"] == "COMPLETED"


def _task(write: Callable[..., object], agent: str, kind: str, savepoint: str, operation: str) -> None:
    from clonos_api.store import tasks

    write(lambda session: tasks.create(session, agent, kind, {"savepoint": savepoint}, operation=operation))


def test_the_last_events_of_a_driver_wait_for_the_disk(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent removes its copy after the last batch."""
    create(admin, name)
    run = place(name, agent.name)
    assert api.app is not None
    database, origins = api.app.state.database, []
    transaction = database.transaction

    def recorded(**options: Any) -> Any:
        origins.append(options.get("origin", Origin.USER))
        return transaction(**options)

    agent.push_events(run, {"event": "state", "job": name, "generation": 0, "at": time.time(), "state": "STARTING"})
    monkeypatch.setattr(database, "transaction", recorded)
    for last in (False, True):
        origins.clear()
        batch = {"run": run, "offset": 0, "lines": [], "last": last}
        body = {"instance": agent.instance, "events": [batch], "logs": []}
        assert agent.client.post(f"/hosts/{agent.id}/push", json=body).status_code == 200
        assert (Origin.USER in origins) is last
