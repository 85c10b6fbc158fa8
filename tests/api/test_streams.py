"""Streams of events and of logs: in order, resumed without loss or repetition, and alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from streams import Stream

from clonos_api.routes.events import start_after
from clonos_api.services import Services
from clonos_api.settings import ApiSettings
from clonos_api.store import events
from observe import eventually
from scripted import ScriptedAgent, create
from serving import Served, served

Place = Callable[[str, str], str]


def test_events_come_as_they_happen(api: Served, admin: httpx.Client, name: str) -> None:
    with Stream(api, "/events") as stream:
        job = create(admin, name)
        event = stream.next()
        while event["event"] != "job.created":
            event = stream.next()
        assert job["id"] in event["data"]
        admin.post(f"/jobs/{name}/start")
        assert {stream.next()["event"] for _ in range(2)} >= {"job.desired"}


def test_a_stream_is_of_one_job_and_of_some_types(api: Served, admin: httpx.Client, name: str) -> None:
    create(admin, name)
    create(admin, f"{name}-other")
    with Stream(api, "/events", job=name, type=["job.desired"]) as stream:
        admin.post(f"/jobs/{name}-other/start")
        admin.patch(
            f"/jobs/{name}", json={"artifact": admin.get(f"/jobs/{name}").json()["artifact"]}, headers={"If-Match": "*"}
        )
        admin.post(f"/jobs/{name}/start")
        (only,) = stream.take(1)
        assert only["type"] == "job.desired"
        with pytest.raises(queue.Empty):
            stream.next(0.5)


def test_a_stream_is_resumed_without_loss_or_repetition(api: Served, admin: httpx.Client, name: str) -> None:
    create(admin, name)
    seen: list[int] = []
    last: str | None = None
    for turn in range(5):
        with Stream(api, "/events", job=name, last_event_id=last, after=None if last else 0) as stream:
            wanted = {int(one["seq"]) for one in _history(admin, name)} - set(seen)
            for _ in wanted:
                event = stream.next()
                seen.append(int(event["id"]))
                last = event["id"]
        # While nobody listens, things happen.
        for action in ("start", "stop") * (turn + 1):
            admin.post(f"/jobs/{name}/{action}")
    assert seen == sorted(set(seen))
    assert [one["seq"] for one in _history(admin, name)][: len(seen)] == seen
    with Stream(api, "/events", job=name, last_event_id=last) as stream:
        missed = stream.take(10)
    assert min(one["seq"] for one in missed) > seen[-1]


def test_the_newest_events_without_the_rest(admin: httpx.Client, agent: ScriptedAgent, name: str) -> None:
    made = create(admin, name)
    for _ in range(3):
        admin.post(f"/jobs/{name}/stop")
    every = admin.get("/events/history", params={"job": name, "limit": 200}).json()["data"]
    told = admin.get("/events/history", params={"job": name, "tail": 2}).json()
    assert told["data"] == every[-2:]
    assert int(told["next"]) >= every[-1]["seq"]
    assert not told["has_more"]
    of_type = admin.get("/events/history", params={"job": name, "tail": 2, "type": "job.desired"}).json()["data"]
    assert [one["type"] for one in of_type] == ["job.desired"] * 2
    assert of_type == [one for one in every if one["type"] == "job.desired"][-2:]
    first = admin.get("/events/history", params={"job": made["id"], "limit": 1, "type": ["job", "run"]}).json()
    assert (first["data"][0]["type"], first["has_more"]) == ("job.created", True)
    late = admin.get("/events/history", params={"job": name, "since": every[2]["at"], "limit": 200}).json()["data"]
    assert late == [one for one in every if one["at"] >= every[2]["at"]]
    assert (
        admin.get("/events/history", params={"job": name, "tail": 2, "since": "2999-01-01T00:00:00Z"}).json()["data"]
        == []
    )
    for wrong in ("2999-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"):
        assert admin.get("/events/history", params={"since": wrong}).status_code == 422


def _history(admin: httpx.Client, job: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    after: str | None = "0"
    while after is not None:
        page = admin.get("/events/history", params={"job": job, "after": after, "limit": 7}).json()
        found += page["data"]
        after = page["next"]
    return found


def test_events_of_another_replica_come_too(api: Served, admin: httpx.Client, name: str, place: Place) -> None:
    create(admin, name)
    with ScriptedAgent(api, f"host-{name}") as agent:
        agent.register()
        with Stream(api, "/events", job=name, type="run") as stream:
            run = place(name, agent.name)
            assert run in stream.next(3.0)["data"]


def test_old_numbers_are_read_from_the_database(tmp_path: Path, name: str) -> None:
    with served(tmp_path) as service, service.client() as admin:
        assert service.app is not None
        service.app.state.services.feed._kept = type(service.app.state.services.feed._kept)(maxlen=3)
        create(admin, name)
        for _ in range(10):
            admin.post(f"/jobs/{name}/start")
        with Stream(service, "/events", after=0) as stream:
            numbers = [int(stream.next()["id"]) for _ in range(12)]
        assert numbers == list(range(1, 13))


def test_a_stream_lives_while_nothing_happens(tmp_path: Path) -> None:
    with served(tmp_path, heartbeat_s=0.1) as service, service.client() as client:
        with client.stream("GET", "/events") as answer:
            lines = answer.iter_lines()
            comments = [next(lines) for _ in range(6)]
        assert comments[0] == comments[2] == comments[4] == ": alive"


def test_numbers_of_another_database_are_a_gap(api: Served) -> None:
    with Stream(api, "/events", last_event_id="999999") as stream:
        assert stream.next()["event"] == "gap"
    with api.client() as client:
        assert client.get("/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_so_many_streams_and_no_more(tmp_path: Path) -> None:
    from clonos_api.settings import Limits

    with served(tmp_path, limits=Limits(streams=2)) as service, service.client() as client:
        with Stream(service, "/events"), Stream(service, "/events"):
            refused = client.get("/events")
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
        with Stream(service, "/events"):
            pass


def _token(admin: httpx.Client, **more: object) -> dict[str, str]:
    made = admin.post("/tokens", json={"name": "reader", "role": "viewer", **more})
    assert made.status_code == 201, made.text
    token: dict[str, str] = made.json()
    return token


def test_a_stream_ends_with_its_token(api: Served, admin: httpx.Client, name: str) -> None:
    create(admin, name)
    revoked, other = _token(admin), _token(admin)
    logs = f"/jobs/{name}/logs"
    with (
        Stream(api, "/events", token=revoked["token"]) as events,
        Stream(api, logs, token=revoked["token"], follow="true") as log,
        Stream(api, "/events", token=other["token"], type="token.revoked") as others,
    ):
        assert admin.delete(f"/tokens/{revoked['id']}").status_code == 204
        assert events.ended.wait(2.0)
        assert log.ended.wait(2.0)
        assert revoked["id"] in others.next()["data"], "only the revoked token's streams end"
        assert not others.ended.is_set()


def test_a_stream_ends_when_its_token_expires(api: Served, admin: httpx.Client) -> None:
    with Stream(api, "/events", token=_token(admin, expires_in_s=2)["token"]) as events:
        assert not events.ended.wait(0.5)
        assert events.ended.wait(3.0)


def test_a_revoked_agent_is_given_no_work(api: Served, admin: httpx.Client, agent: ScriptedAgent) -> None:
    revision = agent.work()["revision"]
    answers: list[int] = []
    asked = {"after": revision, "wait_s": 20.0}
    path = f"/agents/{agent.id}/work"
    poller = threading.Thread(target=lambda: answers.append(agent.client.get(path, params=asked).status_code))
    poller.start()
    eventually(lambda: api.app is not None and api.app.state.services.waits, "it waits")
    assert admin.delete(f"/tokens/{agent.token}").status_code == 204
    poller.join(2.0)
    assert answers == [401]


def test_a_log_is_tailed_read_on_and_followed(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place
) -> None:
    create(admin, name)
    run = place(name, agent.name)
    text = "".join(f"line {number}\n" for number in range(10))
    end = agent.log(run, text, 0)
    assert agent.log(run, text, 0) == end == len(text)
    tail = admin.get(f"/jobs/{name}/logs", params={"tail": 3}).json()
    assert tail["lines"] == ["line 7", "line 8", "line 9"]
    end = agent.log(run, "more\n", end)
    assert admin.get(f"/jobs/{name}/logs", params={"after": tail["next"]}).json()["lines"] == ["more"]
    assert admin.get(f"/jobs/{name}/logs", params={"after": "nonsense"}).status_code == 422
    with Stream(api, f"/jobs/{name}/logs", follow="true", tail=1) as stream:
        first = stream.next()
        assert first["data"] == "more"
        end = agent.log(run, "one\ntwo\n", end)
        assert [stream.next(3.0)["data"] for _ in range(2)] == ["one", "two"]
    agent.log(run, "three\n", end)
    # Only the last event of a piece has an id; who lost the stream goes on from there.
    with Stream(api, f"/jobs/{name}/logs", follow="true", last_event_id=first["id"]) as stream:
        assert [stream.next()["data"] for _ in range(3)] == ["one", "two", "three"]


@pytest.mark.anyio
async def test_a_replica_that_has_not_heard_of_an_event_yet_goes_on_after_it(tmp_path: Path) -> None:
    """Another one has told it; that is no gap, and nothing comes twice."""
    services = Services.of(ApiSettings(home=tmp_path))
    await services.prepare()
    for number in range(10):
        async with services.database.transaction() as session:
            events.append(session, "job.state", data={"number": number})
    async with services.database.reading() as session:
        _, newest = await events.bounds(session)
    services.feed.newest = newest - 2
    assert await start_after(services, newest) == (newest, b"")
    start, said = await start_after(services, newest + 1)
    assert (start, said.startswith(b"event: gap\n")) == (newest, True), "a number of another database"
    await services.database.close()
