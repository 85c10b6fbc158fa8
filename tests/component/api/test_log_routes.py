"""The log of a job: parsed, filtered, paged, followed and downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from streams import Stream

from clonos.client import Client
from clonos.errors import TooManyRequests
from clonos.telemetry.log_entries import LogFilter
from clonos_api.replica import Replica
from clonos_api.routes import logs as log_routes
from clonos_api.store import log_entries
from clonos_api.store.tables import HostRow, StandbyRow
from clonos_api.streams.open_requests import OpenRequest
from support.scripted import ScriptedAgent, create
from support.serving import Change, Served

Place = Callable[[str, str], str]
STATE = '{"event": "state", "job": "j", "generation": 2, "state": "RUNNING", "at": 1795728165.6}'
EPOCH = '{"event": "epoch", "generation": 2, "query": "out", "epoch": %d, "replay": false, "at": 1795728166.1}'
JVM = '{"job":"j","level":"WARN","logger":"a.b.Net","event":"Connection reset","timestamp":"2026-11-26T21:22:47.348Z"}'
TRACEBACK = ["Traceback (most recent call last):", '  File "job.py", line 12, in score', "OSError: away"]
LINES = [STATE, *(EPOCH % number for number in range(20)), JVM, *TRACEBACK, "own line"]


@pytest.fixture
def log(admin: httpx.Client, agent: ScriptedAgent, name: str, place: Place) -> Callable[..., Any]:
    """A job with a log; gets a part of the log."""
    create(admin, name)
    agent.push_log(place(name, agent.name), "".join(f"{line}\n" for line in LINES), 0)

    def get(**query: Any) -> Any:
        return admin.get(f"/jobs/{name}/logs", params=query).raise_for_status().json()

    return get


def messages(part: dict[str, Any]) -> list[str]:
    return [entry["message"] for entry in part["entries"]]


def test_a_log_is_parsed(log: Callable[..., Any]) -> None:
    part = log(parsed=True)
    assert part["lines"] == []
    assert len(part["entries"]) == 24
    state, epoch, *_, jvm, error, own = part["entries"]
    assert state.items() >= {"time": "2026-11-26T21:22:45.600000Z", "level": "info", "process": "driver"}.items()
    assert state.items() >= {"generation": 2, "message": "state RUNNING", "routine": False}.items()
    assert (epoch["query"], epoch["epoch"], epoch["routine"]) == ("out", 0, True)
    assert (jvm["process"], jvm["level"], jvm["message"]) == ("spark-jvm", "warning", "Net: Connection reset")
    assert (error["level"], error["message"], error["lines"]) == ("error", "OSError: away", TRACEBACK)
    assert (own["message"], own["run"]) == ("own line", state["run"])
    assert log()["entries"] == []
    assert messages(log(parsed=True, tail=2)) == ["OSError: away", "own line"]
    assert messages(log(parsed=True, tail=0)) == []


def test_a_log_is_filtered(log: Callable[..., Any], admin: httpx.Client, name: str) -> None:
    assert messages(log(level="warning", parsed=True)) == ["Net: Connection reset", "OSError: away"]
    assert log(level="warning")["lines"] == [JVM, *TRACEBACK], "the lines as they were written"
    assert log(search="RESET")["lines"] == [JVM]
    assert log(search='"state": "RUN')["lines"] == [STATE], "raw lines are searched, too"
    assert log(level="error", search="reset")["lines"] == []
    assert messages(log(since="2026-11-26T21:22:47Z", parsed=True))[0] == "Net: Connection reset"
    assert log(level="warning", tail=1)["lines"] == TRACEBACK
    for wrong in ({"level": "loud"}, {"search": "x" * 201}, {"since": "yesterday"}, {"levels": "info"}):
        assert admin.get(f"/jobs/{name}/logs", params=wrong).status_code == 422, wrong


def test_pages_of_a_filtered_log(log: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A page holds whole entries, and looks for matching ones until the end of the log."""
    monkeypatch.setattr(log_routes, "_LINES", 23)  # ends inside the traceback
    begun = log(parsed=True, after="0:0")
    assert (begun["entries"][-1]["message"], len(begun["entries"])) == ("own line", 24)
    monkeypatch.setattr(log_routes, "_LINES", 4)
    pages = [log(parsed=True, after="0:0")]
    while pages[-1]["entries"]:
        pages.append(log(parsed=True, after=pages[-1]["next"]))
    assert sum(len(page["entries"]) for page in pages) == 24
    assert all(entry["lines"] in ([], TRACEBACK) for page in pages for entry in page["entries"])
    found = log(search="own", after="0:0")
    assert (found["lines"], log(after=found["next"])["lines"]) == (["own line"], [])


def test_a_filtered_log_is_followed(
    log: Callable[..., Any], api: Served, agent: ScriptedAgent, admin: httpx.Client, name: str
) -> None:
    run = log(parsed=True, tail=1)["entries"][0]["run"]
    end = sum(len(line) + 1 for line in LINES)
    with Stream(api, f"/jobs/{name}/logs", follow="true", parsed="true", level="warning", tail=1) as stream:
        assert json.loads(stream.next()["data"])["message"] == "OSError: away"
        end = agent.push_log(run, f"{STATE}\n", end)
        end = agent.push_log(run, f"{JVM}\nnot this line\n", end)
        event = stream.next()
        assert json.loads(event["data"])["message"] == "Net: Connection reset"
    agent.push_log(run, "ERROR:root:again\n", end)
    query = {"follow": "true", "parsed": "true", "level": "warning", "last_event_id": event["id"]}
    with Stream(api, f"/jobs/{name}/logs", **query) as stream:
        assert json.loads(stream.next()["data"])["message"] == "root:again"
    with Stream(api, f"/jobs/{name}/logs", follow="true", search="root", tail=5) as stream:
        assert stream.next()["data"] == "ERROR:root:again"


def test_the_client_reads_entries(log: Callable[..., Any], api: Served, name: str) -> None:
    assert log()
    with Client(api.url, api.admin) as client:
        part = client.jobs.logs(name, only=LogFilter("warning", "away"), parsed=True)
        assert [(entry.level, entry.lines) for entry in part.entries] == [("error", tuple(TRACEBACK))]
        followed = next(client.jobs.follow_logs(name, only=LogFilter("warning"), parsed=True))
        assert followed.entries[-1:] == part.entries
        assert followed.lines == []


def test_a_log_is_downloaded(
    log: Callable[..., Any], admin: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log()
    monkeypatch.setattr(log_routes, "_LINES", 4)  # several pages
    file = admin.get(f"/jobs/{name}/logs", params={"download": True})
    assert file.text.splitlines() == LINES
    assert file.headers["content-type"] == "text/plain; charset=utf-8"
    assert file.headers["content-disposition"] == f'attachment; filename="{name}.log"'
    errors = admin.get(f"/jobs/{name}/logs", params={"download": True, "level": "error"})
    assert errors.text.splitlines() == TRACEBACK


def test_a_long_search_takes_several_requests(
    log: Callable[..., Any], api: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = log(parsed=True)["entries"]
    monkeypatch.setattr(log_entries, "_SEARCHED", 8)
    monkeypatch.setattr(log_routes, "_LINES", 4)
    state = {"search": "RUNNING"}
    newest = log(**state)
    assert (newest["lines"], newest["older"] is not None) == ([], True)
    own = log(after="0:0", search="own")
    assert (own["lines"], own["more"]) == ([], True)
    assert log(after="0:0", search="own", tail=1)["next"] == own["next"]
    with Client(api.url, api.admin) as client:
        assert client.jobs.logs(name, only=LogFilter(search="RUNNING")).lines == [STATE]
        assert client.jobs.logs(name, after="0:0", only=LogFilter(search="own")).lines == ["own line"]
        entries = client.jobs.logs(name, parsed=True).entries
        assert [entry.message for entry in entries] == [entry["message"] for entry in everything]
        assert len(client.jobs.logs(name, parsed=True, tail=15).entries) == 15
        assert next(client.jobs.follow_logs(name, only=LogFilter(search="RUNNING"))).lines == [STATE]
        assert next(client.jobs.follow_logs(name, after="0:0", only=LogFilter(search="own"))).lines == ["own line"]


def test_a_search_ends_after_some_time(log: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not log(after="0:0", search="own")["more"]
    monkeypatch.setattr(log_entries, "_SEARCH_S", 0.0)
    monkeypatch.setattr(log_routes, "_LINES", 4)
    own = log(after="0:0", search="own")
    assert (own["lines"], own["more"]) == ([], True)


def test_a_download_is_a_stream(
    log: Callable[..., Any], admin: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent in pieces, ends when its token is revoked, and counts as a stream of its token."""
    assert log()
    download = {"download": True}
    monkeypatch.setattr(log_routes, "_PIECE_BYTES", 7)
    assert admin.get(f"/jobs/{name}/logs", params=download).text.splitlines() == LINES
    monkeypatch.setattr(OpenRequest, "over", lambda _: True)
    text = admin.get(f"/jobs/{name}/logs", params=download).text
    assert (text[:7], text[7:29]) == (STATE[:7], "The download ended bef")

    def refuse(*_: object) -> None:
        raise TooManyRequests("This token has 8 open streams.")

    monkeypatch.setattr(Replica, "check_streams", refuse)
    assert admin.get(f"/jobs/{name}/logs", params=download).status_code == 429
    assert log()["lines"] == LINES


def test_a_standby_differs_from_the_driver(
    admin: httpx.Client,
    agent: ScriptedAgent,
    name: str,
    place: Place,
    write: Callable[[Change], Any],
    api: Served,
) -> None:
    job = create(admin, name)["id"]
    run = place(name, agent.name)

    async def standby(session: AsyncSession) -> None:
        host = await session.get(HostRow, agent.id)
        assert host is not None
        row = {"mode": "dedicated", "state": "READY", "since": datetime.now(UTC), "body": {}}
        session.add(StandbyRow(id=run, job=job, host=host.id, **row))

    write(standby)
    ready = '{"event": "standby", "job": "j", "generation": 0, "state": "READY", "at": 1.0}'
    agent.push_log(run, f"{ready}\n{STATE}\n", 0)
    entries = admin.get(f"/jobs/{name}/logs", params={"parsed": True}).json()["entries"]
    assert [entry["process"] for entry in entries] == ["standby", "driver"]
