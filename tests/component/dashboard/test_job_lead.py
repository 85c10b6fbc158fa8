"""The lead line of a job's page, and the stream that updates it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from httpx_sse import EventSource, ServerSentEvent
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos.testing.harness import eventually
from clonos_api.dashboard.job_live import Lead
from clonos_api.fleet import Forecast, Line, Seat, Stall
from clonos_api.fleet.lead import clause
from clonos_api.store import events
from clonos_api.store.tables import JobRow
from component.dashboard.rows import Browser, running_rows
from support.serving import Served, write
from support.stored import set_figures

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNNING = Line(
    "1", "orders", "ada", "RUNNING", NOW, "good", (Seat("host-1", "driver", "RUNNING"),), (), None, None, 0, 12, 120.4
)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "publishes 120 records/s, lag 12"),
        ({"out_per_s": 1.25, "lag": None}, "publishes 1.2 records/s"),
        ({"out_per_s": None}, "runs, lag 12"),
        ({"seats": (Seat("host-1", "driver", "DISCONNECTED"),)}, "has no connected driver"),
        ({"state": "RECOVERING"}, "a new driver takes over"),
        ({"state": "STOPPING"}, "stops after the epoch in progress"),
        ({"first": True, "health": "busy"}, "runs, and has finished no epoch yet"),
        ({"state": "STARTING", "health": "busy"}, "starts"),
        ({"state": "STARTING", "health": "bad"}, "has not started yet"),
        ({"state": "CREATED", "health": "bad"}, "has not started yet"),
        ({"state": "STOPPED", "epochs": (("scored", 12),)}, "stopped after epoch 12"),
        (
            {"state": "FAILED", "epochs": (("scored", 12), ("minutes", 3_400))},
            "failed after epoch 12 of scored and epoch 3 400 of minutes",
        ),
        ({"state": "CANCELED"}, "canceled"),
        ({"state": "CREATED"}, "has never run"),
    ],
)
def test_what_a_job_does(fields: dict[str, Any], text: str) -> None:
    assert clause(replace(RUNNING, **fields)) == text


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"forecast": Forecast(True, "host-3", 0.6)}, ["✔", "takeover in about 600 ms, host-3"]),
        ({"forecast": Forecast(True, "host-3")}, ["takeover, host-3"]),
        ({"forecast": Forecast(False, "", 12.0), "alone": True}, ["▲", "cold restart in about 12 s", "requests no"]),
        ({"forecast": Forecast(False, "host-3", 12.0, 35.0)}, ["warms up on host-3", ", READY in about 35 s"]),
        (
            {"stall": Stall(NOW, "its driver <waits>"), "health": "bad"},
            ["✕", "no output for", "its driver &lt;waits&gt;"],
        ),
        ({"weak": ("1 of 2 standbys ready",), "health": "weak"}, ["1 of 2 standbys ready", 'class="banner weak"']),
    ],
)
def test_the_lead_line_has_the_forecast_the_stall_and_the_reasons(fields: dict[str, Any], texts: list[str]) -> None:
    shown = " ".join(Lead.of(replace(RUNNING, **fields)).whole().split())
    assert [text for text in texts if text not in shown] == []
    assert ("publishes 120" in shown) is ("stall" not in fields)


def test_a_job_without_output_has_no_forecast() -> None:
    line = replace(RUNNING, stall=Stall(NOW, "Kafka does not answer"), forecast=Forecast(True, "host-3", 0.6))
    assert "takeover" not in Lead.of(line).whole()


def running(name: str) -> Callable[[AsyncSession], Any]:
    async def make(session: AsyncSession) -> str:
        job, _ = await running_rows(session, name, queries={"out": {"epoch": 46, "lag": {"in": 12}}})
        return job.id

    return make


def test_a_page_has_its_lead_line(api: Served, browser: Browser, name: str) -> None:
    job = write(api, running(name))

    def lead() -> str | None:
        page = client.get(f"/jobs/{job}").text
        text = page.partition('<div id="lead"')[2].partition("</div>")[0]
        return text if "lag 12" in text else None

    with browser(Role.VIEWER) as client:
        assert "cold restart" in eventually(lead, "the board has the new job")


def of_type(stream: Iterator[ServerSentEvent], kind: str) -> ServerSentEvent:
    return next(event for event in stream if event.event == kind)


def test_the_stream_has_the_lead_line_its_changes_and_a_signal_for_each_event(
    api: Served, browser: Browser, name: str
) -> None:
    job = write(api, running(name))
    other = write(api, running(f"{name}-2"))
    with browser(Role.VIEWER) as client, client.stream("GET", f"/jobs/{name}/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = EventSource(response).iter_sse()
        first = of_type(stream, "lead").json()
        while not first["html"]:  # the board is older than the job
            first |= of_type(stream, "lead").json()
        assert first["epochs"] == [46]
        assert "lag 12" in first["figures"][0]

        async def progress(session: AsyncSession) -> None:
            row = await session.get_one(JobRow, job)
            set_figures(row, {"queries": {"out": {"epoch": 47, "lag": {"in": 3}}}})

        write(api, progress)
        changed: dict[str, Any] = {}
        while changed.get("epochs") != [47]:
            changed |= of_type(stream, "lead").json()
        assert "html" not in changed, "only what has changed is sent"
        assert "lag 3" in changed["figures"][0]

        async def happen(session: AsyncSession) -> None:
            for subject in (other, job):
                events.append(session, "job.updated", job=subject, data={"version": 2})

        write(api, happen)
        assert of_type(stream, "changed").data == ""
        assert int(of_type(stream, "beat").data) < 25_000


def test_the_stream_of_an_unknown_job_does_not_exist(api: Served, browser: Browser) -> None:
    with browser(Role.VIEWER) as client:
        assert client.get("/jobs/nosuch/live").status_code == 404
