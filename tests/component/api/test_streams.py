"""Event and log streams: in order, resumable without loss or repetition, with keep-alives."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil
from pathlib import Path

import httpx
import pytest
from streams import Stream

from clonos.client import Client
from clonos.testing.harness import eventually
from clonos_api.replica import Replica
from clonos_api.routes.events import start_after
from clonos_api.settings import ApiSettings, Limits
from clonos_api.store import events
from support.scripted import ScriptedAgent, create
from support.serving import Served, served

Place = Callable[[str, str], str]
# Prompt, also on a busy machine: less than a stream takes to check its token by itself, or a long-poll to time out.
PROMPT_S = 60.0


def test_a_stream_delivers_new_events(api: Served, admin: httpx.Client, name: str) -> None:
    with Stream(api, "/events") as stream:
        job = create(admin, name)
        event = stream.next()
        while event["event"] != "job.created":
            event = stream.next()
        assert job["id"] in event["data"]
        admin.post(f"/jobs/{name}/start")
        assert {stream.next()["event"] for _ in range(2)} >= {"job.desired"}


def test_a_stream_filters_by_job_and_type(api: Served, admin: httpx.Client, name: str) -> None:
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


def test_a_stream_resumes_without_loss_or_repetition(api: Served, admin: httpx.Client, name: str) -> None:
    create(admin, name)
    seen: list[int] = []
    last: str | None = None
    for turn in range(5):
        with Stream(api, "/events", job=name, last_event_id=last, after=None if last else 0) as stream:
            wanted = {int(event["seq"]) for event in _history(admin, name)} - set(seen)
            for _ in wanted:
                event = stream.next()
                seen.append(int(event["id"]))
                last = event["id"]
        # Events occur while no stream is open.
        for action in ("start", "stop") * (turn + 1):
            admin.post(f"/jobs/{name}/{action}")
    assert seen == sorted(set(seen))
    assert [event["seq"] for event in _history(admin, name)][: len(seen)] == seen
    with Stream(api, "/events", job=name, last_event_id=last) as stream:
        missed = stream.take(10)
    assert min(event["seq"] for event in missed) > seen[-1]


def test_history_returns_the_newest_events(admin: httpx.Client, agent: ScriptedAgent, name: str) -> None:
    made = create(admin, name)
    for _ in range(3):
        admin.post(f"/jobs/{name}/stop")
    every = admin.get("/events/history", params={"job": name, "limit": 200}).json()["data"]
    page = admin.get("/events/history", params={"job": name, "tail": 2}).json()
    assert page["data"] == every[-2:]
    assert int(page["next"]) >= every[-1]["seq"]
    assert not page["has_more"]
    of_type = admin.get("/events/history", params={"job": name, "tail": 2, "type": "job.desired"}).json()["data"]
    assert [event["type"] for event in of_type] == ["job.desired"] * 2
    assert of_type == [event for event in every if event["type"] == "job.desired"][-2:]
    first = admin.get("/events/history", params={"job": made["id"], "limit": 1, "type": ["job", "run"]}).json()
    assert (first["data"][0]["type"], first["has_more"]) == ("job.created", True)
    late = admin.get("/events/history", params={"job": name, "since": every[2]["at"], "limit": 200}).json()["data"]
    assert late == [event for event in every if event["at"] >= every[2]["at"]]
    assert (
        admin.get("/events/history", params={"job": name, "tail": 2, "since": "2999-01-01T00:00:00Z"}).json()["data"]
        == []
    )
    for wrong in ("2999-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"):
        assert admin.get("/events/history", params={"since": wrong}).status_code == 422


def _history(admin: httpx.Client, job: str) -> list[dict[str, int]]:
    history: list[dict[str, int]] = []
    after: str | None = "0"
    while after is not None:
        page = admin.get("/events/history", params={"job": job, "after": after, "limit": 7}).json()
        history += page["data"]
        after = page["next"]
    return history


def test_a_stream_reads_old_events_from_the_database(tmp_path: Path, name: str) -> None:
    with served(tmp_path) as service, service.client() as admin:
        assert service.app is not None
        service.app.state.replica.feed._recent = type(service.app.state.replica.feed._recent)(maxlen=3)
        create(admin, name)
        for _ in range(10):
            admin.post(f"/jobs/{name}/start")
        with Stream(service, "/events", after=0) as stream:
            numbers = [int(stream.next()["id"]) for _ in range(12)]
        assert numbers == list(range(1, 13))


def test_an_idle_stream_sends_keep_alives(tmp_path: Path) -> None:
    with served(tmp_path, heartbeat_s=0.1) as service, service.client() as client:
        with client.stream("GET", "/events") as answer:
            lines = answer.iter_lines()
            lines_read = [next(lines) for _ in range(6)]
        assert lines_read == ["event: heartbeat", ""] * 3


def test_a_number_of_another_database_is_a_gap(api: Served) -> None:
    with Stream(api, "/events", last_event_id="999999") as stream:
        assert stream.next()["event"] == "gap"
    with api.client() as client:
        assert client.get("/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_the_number_of_streams_is_limited(tmp_path: Path) -> None:
    from clonos_api.settings import Limits

    with served(tmp_path, limits=Limits(streams=2)) as service, service.client() as client:
        with Stream(service, "/events"), Stream(service, "/events"):
            refused = client.get("/events")
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
        assert service.app is not None
        streams = service.app.state.replica.streams
        eventually(lambda: not streams.total(), "the service notices that both are closed")
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
        assert events.ended.wait(PROMPT_S)
        assert log.ended.wait(PROMPT_S)
        assert revoked["id"] in others.next()["data"], "only the revoked token's streams end"
        assert not others.ended.is_set()


def test_a_stream_ends_when_its_token_expires(api: Served, admin: httpx.Client) -> None:
    begun = time.monotonic()
    with Stream(api, "/events", token=_token(admin)["token"]):
        opened_s = time.monotonic() - begun
    with Stream(api, "/events", token=_token(admin, expires_in_s=ceil(4 + 5 * opened_s))["token"]) as events:
        assert not events.ended.is_set(), "the token is valid for longer than a stream takes to open"
        assert events.ended.wait(5 * opened_s + PROMPT_S)


def test_revoking_a_token_ends_its_long_poll(api: Served, admin: httpx.Client, agent: ScriptedAgent) -> None:
    revision = agent.work()["revision"]
    answers: list[int] = []
    asked = {"after": revision, "wait_s": 20.0}
    path = f"/hosts/{agent.id}/work"
    poller = threading.Thread(target=lambda: answers.append(agent.client.get(path, params=asked).status_code))
    poller.start()
    eventually(lambda: api.app is not None and api.app.state.replica.waits, "it waits")
    assert admin.delete(f"/tokens/{agent.token}").status_code == 204
    poller.join(PROMPT_S)
    assert answers == [401]


def test_a_log_is_tailed_paged_and_followed(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place
) -> None:
    create(admin, name)
    run = place(name, agent.name)
    text = "".join(f"line {number}\n" for number in range(10))
    end = agent.push_log(run, text, 0)
    assert agent.push_log(run, text, 0) == end == len(text)
    tail = admin.get(f"/jobs/{name}/logs", params={"tail": 3}).json()
    assert tail["lines"] == ["line 7", "line 8", "line 9"]
    end = agent.push_log(run, "more\n", end)
    assert admin.get(f"/jobs/{name}/logs", params={"after": tail["next"]}).json()["lines"] == ["more"]
    assert admin.get(f"/jobs/{name}/logs", params={"after": "nonsense"}).status_code == 422
    with Stream(api, f"/jobs/{name}/logs", follow="true", tail=1) as stream:
        first = stream.next()
        assert first["data"] == "more"
        end = agent.push_log(run, "one\ntwo\n", end)
        assert [stream.next()["data"] for _ in range(2)] == ["one", "two"]
    agent.push_log(run, "three\n", end)
    # Only the last event of a batch has an id; a client resumes from there.
    with Stream(api, f"/jobs/{name}/logs", follow="true", last_event_id=first["id"]) as stream:
        assert [stream.next()["data"] for _ in range(3)] == ["one", "two", "three"]


def test_client_follows_a_log_line_with_unicode_line_breaks(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place
) -> None:
    create(admin, name)
    line = "before\u2028\u2029\x85\x0cafter"
    agent.push_log(place(name, agent.name), f"{line}\n\nnext\n", 0)
    with Client(api.url, api.admin) as client:
        piece = next(client.jobs.follow_logs(name, tail=10))
    assert piece.lines == [line, "", "next"]


@pytest.mark.anyio
async def test_an_event_number_not_read_yet_is_not_a_gap(tmp_path: Path) -> None:
    """Another replica sent that event: there is no gap, and no event is repeated."""
    replica = Replica.of(ApiSettings(home=tmp_path))
    await replica.prepare()
    for number in range(10):
        async with replica.database.transaction() as session:
            events.append(session, "job.state", data={"to": str(number)})
    async with replica.database.reading() as session:
        _, newest = await events.bounds(session)
    replica.feed.newest = newest - 2
    assert await start_after(replica, newest) == (newest, b"")
    start, said = await start_after(replica, newest + 1)
    assert (start, said.startswith(b"event: gap\n")) == (newest, True), "a number of another database"
    await replica.database.close()


@pytest.mark.anyio
async def test_a_start_gives_out_no_number_again_that_a_failed_machine_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []
    for boot in ("a", "a", "b", "b"):
        (tmp_path / "boot_id").write_text(boot)
        monkeypatch.setattr("clonos_api.store.db.numbers._BOOT_ID", tmp_path / "boot_id")
        replica = Replica.of(ApiSettings(home=tmp_path))
        await replica.prepare()
        async with replica.database.transaction() as session:
            events.append(session, "job.state")
        async with replica.database.reading() as session:
            numbers.append((await events.bounds(session))[1])
        await replica.database.close()
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    assert [step > 100_000 for step in steps] == [False, True, False], "only after a start of the machine"
    assert numbers[0] < 100


def test_one_token_does_not_take_all_streams(tmp_path: Path) -> None:
    limits = Limits(streams=40, streams_per_token=3, requests_per_s=10_000, burst=10_000)
    with served(tmp_path, limits=limits) as api, api.client() as admin, ExitStack() as opened:
        tokens = [
            admin.post("/tokens", json={"name": f"t{number}", "role": "viewer"}).json()["token"] for number in range(14)
        ]

        def status(token: str) -> int:
            client = opened.enter_context(api.client(token))
            return opened.enter_context(client.stream("GET", "/events")).status_code

        assert [status(tokens[0]) for _ in range(4)] == [200, 200, 200, 429]
        statuses = [status(token) for token in tokens[1:] for _ in range(3)]
        assert statuses == [200] * 35 + [503] * 4, "the last twentieth is reserved"
        assert [status(api.admin) for _ in range(3)] == [200, 200, 503]
