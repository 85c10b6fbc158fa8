"""The content of pages, from rows as drivers and agents write them."""

from __future__ import annotations

import asyncio
import dataclasses
import html
import io
import itertools
import json
import re
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import DatabaseUnavailable
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.resolve_command import new_code_command, resolve_command
from clonos.resources.jobs import Failure, Phase, Recovery
from clonos.resources.service import Role
from clonos.testing.harness import eventually
from clonos_api.dashboard.job import TABS
from clonos_api.dashboard.live import Drawn, Pulse
from clonos_api.dashboard.recovery import waterfall
from clonos_api.dashboard.rendering import _hint, part
from clonos_api.fleet import Board, Boards, Head, Line, Seat
from clonos_api.store import clusters, runs
from clonos_api.store.db.database import Database
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import ExceptionRow, HostRow, JobRow, RecoveryRow, RunRow, StandbyRow
from component.dashboard.rows import Browser, board, line_of, running_rows
from support.serving import Served, served, write
from support.stored import EventFile, host_row, ingest, job_row, respec, run_row, run_spec, set_figures

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PHASES = [("detect", 5.0), ("decide", 20.0), ("wake", 60.0), ("claim", 75.5), ("restore", 140.0), ("replay", 99.5)]


def guarded(name: str, *, replicas: int = 1, ready: bool = True) -> Callable[[AsyncSession], Any]:
    async def make(session: AsyncSession) -> tuple[str, str]:
        queries = {"out": {"epoch": 3, "records_out": 50, "lag": {"in": 12}}}
        job, run = await running_rows(session, name, queries=queries)
        here, there = await session.get_one(HostRow, run.host), await host_row(session)
        respec(job, standby={"replicas": replicas})
        if ready:
            state = {
                "mode": "dedicated",
                "state": "READY",
                "since": NOW,
                "body": {"placement_reason": "far from the driver"},
            }
            session.add(StandbyRow(id=new_id(), job=job.id, host=there.id, **state))
        recovery = new_id()
        phases = [{"name": name, "started_at": NOW.isoformat(), "duration_ms": ms} for name, ms in PHASES]
        body = {"cause": "crash", "failed_generation": 1, "generation": 2, "from_host": here.name, "downtime_ms": 431.0}
        body |= {"phases": phases, "standby": new_id(), "outcome": "COMPLETED", "replayed_records": 800}
        ended = NOW + timedelta(milliseconds=400)
        session.add(RecoveryRow(id=recovery, job=job.id, started_at=NOW, ended_at=ended, body=body))
        return job.id, recovery

    return make


def test_the_overview_shows_why_a_job_is_degraded(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name, replicas=2))
    line = line_of(api, job)
    assert line.health == "weak"
    assert line.weak == ("1 of 2 standbys ready: a failure may lead to a cold restart",)
    assert (line.lag, line.last.downtime_ms if line.last else None) == (12, 431.0)
    assert {(seat.role, seat.state) for seat in line.seats} == {("driver", "RUNNING"), ("standby", "READY")}
    with browser() as client:
        shown = client.get("/").text
        assert f'id="j-{job}"' in shown
        assert "1 of 2 standbys ready" in shown


def test_the_banner_counts_jobs_without_a_standby(name: str) -> None:
    line = Line("1", name, "ada", "RUNNING", NOW, "good", (), (), None, None, 0, None, None)
    for alone, said in (
        ((), None),
        ((True,), "1 of 2 has no standby, as specified"),
        ((True,) * 2, "2 of 3 have"),
    ):
        lines = (line, *(dataclasses.replace(line, alone=flag) for flag in alone))
        shown = part("overview_banner.html", board=Board(1, NOW, (), lines))
        assert ("no standby" in shown) is (said is not None)
        assert (said or "No running job is failing, behind") in shown


FAILED = Line(
    "1",
    "cards",
    "ada",
    "FAILED",
    NOW,
    "bad",
    (),
    (),
    "The topic payments.review does not exist.",
    None,
    0,
    None,
    None,
    epochs=(("scored", 27), ("minutes", 14)),
    hint="create it: `clonos kafka create payments.review`.",
)


def test_the_banner_names_a_failing_job_its_error_and_the_next_step_and_promises_nothing() -> None:
    shown = " ".join(part("overview_banner.html", board=Board(1, NOW, (), (FAILED,))).split())
    text = re.sub(r"<[^>]+>", "", shown)
    assert (
        "cards failed after epoch 27 of scored and epoch 14 of minutes: The topic payments.review does not exist. "
        "What to do: create it: clonos kafka create payments.review Copy." in text
    )
    assert '<a href="jobs/1">cards</a>' in shown
    assert "exactly once" not in text, "nothing has observed that"
    three = tuple(dataclasses.replace(FAILED, id=str(number), name=f"cards-{number}") for number in range(3))
    text = re.sub(r"<[^>]+>", "", " ".join(part("overview_banner.html", board=Board(1, NOW, (), three)).split()))
    assert "What to do: clonos job inspect cards-0 Copy shows more." in text
    assert "cards-2" not in text
    assert "1 more jobs are failing." in text


def test_a_running_job_without_an_epoch_is_not_called_healthy() -> None:
    line = dataclasses.replace(FAILED, state="RUNNING", health="busy", failure=None, first=True)
    line = dataclasses.replace(line, seats=(Seat("host-1", "driver", "RUNNING"),))
    shown = part("overview_banner.html", board=Board(1, NOW, (), (line,)))
    assert "cards: runs, and has finished no epoch yet." in " ".join(shown.split())


Changes = dict[str, Any]


def changed(
    job: str, spec: Changes | None = None, metrics: Changes | None = None, since_s: float = 0, **columns: Any
) -> Callable[..., Any]:
    async def change(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        respec(row, **(spec or {}))
        set_figures(row, metrics or {})
        for name, value in columns.items():
            setattr(row, name, value)
        row.state_since = datetime.now(UTC) - timedelta(seconds=since_s)

    return change


BEHIND = {"out": {"epoch": 3, "records_out": 50, "lag": {"in": 12}, "waiting_since": NOW.isoformat()}}
AT_LEAST_ONCE = "delivers at least once, as configured"


@pytest.mark.parametrize(
    ("change", "health", "exact", "weak"),
    [
        ({"spec": {"delivery": "at-least-once"}}, "weak", False, AT_LEAST_ONCE),
        (
            {"metrics": {"delivery": {"out": "at-least-once"}}},
            "weak",
            False,
            "delivers at least once (out), as configured",
        ),
        # The running version decides, not a later one.
        ({"spec": {"delivery": "at-least-once"}, "metrics": {"delivery": {"out": "exactly-once"}}}, "good", True, None),
        ({"metrics": {"sharing_depth": "0"}}, "weak", False, "records no answers"),
        ({"spec": {"sharingDepth": "0"}, "metrics": {"sharing_depth": "full"}}, "good", True, None),
        ({"metrics": {"queries": BEHIND, "received_at": NOW.isoformat()}, "since_s": 600}, "bad", True, None),
        ({"metrics": {"queries": {"out": {"lag": {"in": 0}}}}, "since_s": 600}, "good", True, None),
        ({"spec": {"standby": {"mode": "pool"}}}, "weak", True, "no pool driver on another host"),
        ({"spec": {"standby": {"mode": "none", "replicas": 1}}}, "good", True, None),
        ({"state": "RECOVERING", "since_s": 0}, "busy", True, None),
        ({"state": "RECOVERING", "since_s": 600}, "bad", True, None),
        ({"state": "STOPPED", "desired_state": "RUNNING", "since_s": 600}, "bad", True, None),
        ({"state": "STOPPED", "desired_state": "STOPPED", "since_s": 600}, "idle", True, None),
        ({"run": None, "since_s": 0}, "busy", True, None),
        ({"run": None, "since_s": 600, "metrics": {"queries": {}}}, "bad", True, None),
    ],
)
def test_a_job_has_its_health(
    api: Served, name: str, change: Changes, health: str, exact: bool, weak: str | None
) -> None:
    job, _ = write(api, guarded(name))
    write(api, changed(job, **change))
    line = line_of(api, job)
    assert (line.health, line.exact) == (health, exact)
    assert [reason for reason in line.weak if weak and weak in reason] == list(line.weak)
    assert bool(line.weak) is (weak is not None)
    assert line.alone is (change.get("spec", {}).get("standby", {}).get("mode") == "none")


def test_a_disconnected_host_cannot_take_over(api: Served, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def disconnect(session: AsyncSession) -> None:
        waits = (await session.scalars(select(StandbyRow).where(StandbyRow.job == job))).one()
        (await session.get_one(HostRow, waits.host)).lease_until = datetime.now(UTC) - timedelta(minutes=1)

    write(api, disconnect)
    overview = board(api)
    line = next(entry for entry in overview.lines if entry.id == job)
    assert [(seat.role, seat.state) for seat in line.seats] == [("driver", "RUNNING"), ("standby", "DISCONNECTED")]
    assert line.weak == ("0 of 1 standbys ready: a failure may lead to a cold restart",)
    assert "1 of" in part("overview_banner.html", board=overview)
    assert "disconnected" in part("overview_banner.html", board=overview)


def test_a_silent_host_is_shown_before_its_lease_expires_and_cannot_take_over(api: Served, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def silence(session: AsyncSession) -> None:
        waits = (await session.scalars(select(StandbyRow).where(StandbyRow.job == job))).one()
        host = await session.get_one(HostRow, waits.host)
        host.heartbeat_at, host.heartbeat_interval_s = datetime.now(UTC) - timedelta(seconds=5), 1.0
        host.lease_until = datetime.now(UTC) + timedelta(seconds=60)

    write(api, silence)
    overview = board(api)
    line = next(entry for entry in overview.lines if entry.id == job)
    assert [seat.state for seat in line.seats if seat.role == "standby"] == ["READY"], "it may be only slow"
    assert line.forecast is not None
    assert not line.forecast.warm
    (silent,) = [head for head in overview.hosts if head.state == "SILENT"]
    assert f"{silent.name} sends no heartbeats." in part("overview_banner.html", board=overview)


def test_a_standby_on_a_lost_host_does_not_count(api: Served, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def lose(session: AsyncSession) -> None:
        waits = (await session.scalars(select(StandbyRow).where(StandbyRow.job == job))).one()
        (await session.get_one(HostRow, waits.host)).state = "LOST"

    write(api, lose)
    line = line_of(api, job)
    assert [seat.state for seat in line.seats if seat.role == "standby"] == ["DISCONNECTED"]
    assert line.forecast is not None
    assert not line.forecast.warm


def test_the_page_of_hosts_shows_what_is_measured(api: Served, browser: Callable[..., httpx.Client], name: str) -> None:
    async def measure(session: AsyncSession) -> None:
        sizes = {"memory_bytes": 8 << 30, "available_bytes": 5 << 30, "standby_bytes": 1 << 30}
        (await host_row(session, name)).capacity = {"cores": 4, "busy_cores": 1.25, **sizes}

    write(api, measure)
    with browser() as client:
        text = client.get("/hosts").text
    row = text[text.index(f"host-{name}") :]
    for shown in ("1.2 of 4", "5.0 GiB of 8.0 GiB", "a standby takes 1.0 GiB"):
        assert shown in row
    assert "a driver takes" not in row[: row.index("</tr>")]
    assert "▲" not in row[: row.index("</tr>")]

    async def use(session: AsyncSession) -> None:
        host = (await session.scalars(select(HostRow).where(HostRow.name == name))).one()
        host.capacity = host.capacity.model_copy(update={"busy_cores": 3.9})

    write(api, use)
    with browser() as client:
        text = client.get("/hosts").text
    row = text[text.index(f"host-{name}") :]
    assert "▲</span> 3.9 of 4</span>" in row[: row.index("</tr>")]


def test_the_banner_shows_that_no_replica_leads(tmp_path: Path) -> None:
    with served(tmp_path) as api:
        write(api, guarded("orders"))
        overview = board(api)
        assert not overview.led
        assert "nothing takes over" in part("overview_banner.html", board=overview)


def test_the_banner_names_the_first_degraded_job() -> None:
    line = Line("1", "orders", "ada", "RUNNING", NOW, "good", (), (), None, None, 0, None, None)
    weak = [dataclasses.replace(line, id=f"w{n}", name=f"w{n}", health="weak", weak=(f"reason {n}",)) for n in range(5)]
    failed = dataclasses.replace(line, id="f", name="f", state="FAILED", health="bad", failure="records are gone")
    busy = dataclasses.replace(line, id="b", name="b", state="STARTING", health="busy")
    for others in ([], [failed], [busy]):
        shown = part("overview_banner.html", board=Board(1, NOW, (), (line, *weak, *others)))
        assert "w0: reason 0. 4 more below." in " ".join(shown.split())
        assert "nothing is lost" not in shown
    rests = dataclasses.replace(line, state="STOPPED", health="idle")
    assert "No job is set to run" in part("overview_banner.html", board=Board(1, NOW, (), (rests,)))


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        ("RUNNING", ["Stop", "Restart", "Savepoint", "Verify", "Move", "Cancel"]),
        ("STOPPING", ["Cancel"]),
        ("STOPPED", ["Start", "Verify"]),
        ("FAILED", ["Start", "Verify"]),
        ("CANCELED", []),
    ],
)
def test_each_state_has_the_buttons_that_the_api_takes(
    api: Served, browser: Browser, name: str, state: str, buttons: list[str]
) -> None:
    job, _ = write(api, guarded(name))
    desired = {"CANCELED": "CANCELED", "RUNNING": "RUNNING"}.get(state, "STOPPED")
    write(api, changed(job, state=state, desired_state=desired))
    with browser() as client:
        shown = client.get(f"/jobs/{job}").text
    assert re.findall(r"<button[^>]*data-call[^>]*>(\w+)</button>", shown) == buttons


def test_buttons_that_cannot_work_are_disabled_with_the_reason(tmp_path: Path) -> None:
    async def make(session: AsyncSession) -> str:
        job, host = await job_row(session, "cards"), await host_row(session)
        run = await run_row(session, job, host)
        job.state, job.run, job.generation, run.state, host.state = "RUNNING", run.id, 1, "RUNNING", "LOST"
        return job.id

    with served(tmp_path) as api, api.client() as client:
        job = write(api, make)
        page = f"{api.url}/jobs/{job}"
        shown = client.get(page, headers={"Accept": "text/html"}).text
        assert re.findall(r'<button disabled aria-describedby="blocked">(\w+)<', shown) == [
            "Savepoint",
            "Verify",
            "Move",
        ]
        reasons = shown.partition('id="blocked">')[2].partition("</p>")[0]
        assert reasons.strip() == "Verify, Savepoint: no host is READY. Move: no other host is READY."
        assert re.findall(r'class="apart"><button[^>]*>(\w+)<', shown) == ["Cancel"]

        async def back(session: AsyncSession) -> None:
            (await session.scalars(select(HostRow))).one().state = "READY"
            await host_row(session)

        write(api, back)
        eventually(
            lambda: "<button disabled" not in client.get(page, headers={"Accept": "text/html"}).text, "buttons work"
        )


@pytest.mark.parametrize("ready", [True, False])
def test_the_tab_of_recoveries_answers_its_question(api: Served, browser: Browser, name: str, ready: bool) -> None:
    job, _ = write(api, guarded(name, ready=ready))

    async def retire(session: AsyncSession) -> None:
        host = await host_row(session)
        state = {"mode": "dedicated", "state": "RETIRED", "since": NOW, "body": {"placement_reason": "x"}}
        session.add(StandbyRow(id=new_id(), job=job, host=host.id, **state))

    write(api, retire)
    with browser(Role.VIEWER) as client:

        def answer() -> str | None:
            shown = client.get(f"/jobs/{job}", params={"tab": "recoveries"}).text
            text = " ".join(re.sub(r"<[^>]+>", "", shown.partition("Can a standby take over now?")[2]).split())
            return text if "only a RUNNING job" not in text else None  # the board is older than the job

        text = eventually(answer, "the board has the job")
    assert text.startswith("Yes: the standby on" if ready else "No: no standby is READY or warms up")
    assert "Earlier standbys: 1" in text
    with browser() as client:
        dialogs = re.findall(r'data-text="([^"]*)"', client.get(f"/jobs/{job}", params={"tab": "recoveries"}).text)
    waits = [text for text in dialogs if "takes over" in text]
    assert len(waits) == 1 + ready, "to move the job, and to promote its standby"
    for text in waits:
        assert ("it publishes, for about" in text) is ready, "no time that nothing has shown"


@pytest.mark.parametrize(
    ("hint", "copied"),
    [
        ("run `clonos job start JOB` then", ["clonos job start cards"]),
        (
            "use `clonos job resolve cards --new-code`, or `clonos run … --accept-new-code`",
            ["clonos job resolve cards --new-code"],
        ),
        ("`clonos logs <x>`", ["clonos logs &lt;x&gt;"]),
        ("set `max_per_epoch`; `clonos apply PATH`", []),
    ],
)
def test_commands_of_a_hint_can_be_copied(hint: str, copied: list[str]) -> None:
    shown = _hint(hint, "cards")
    assert re.findall(r"<code>([^<]*)</code> <button[^>]*data-copy", shown) == copied


def test_the_configuration_shows_the_code_to_its_owner(api: Served, browser: Browser, name: str) -> None:
    with api.client() as admin:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            files = {"job.py": b"print('<main>')", "lib/words.py": b"WORDS = 1", "lib/data.bin": b"\xff\xfe"}
            for file, content in files.items():
                archive.writestr(file, content)
        sent = {"file": ("code.zip", packed.getvalue())}
        answer = admin.post("/artifacts", files=sent).raise_for_status().json()

    async def make(session: AsyncSession) -> str:
        job = await job_row(session, name)
        job.artifact = answer["id"]
        return job.id

    job = write(api, make)
    with browser() as client:
        shown = client.get(f"/jobs/{job}", params={"tab": "configuration"}).text
    assert "print(&#39;&lt;main&gt;&#39;)" in shown
    assert shown.index("<code>job.py</code>") < shown.index("<code>lib/words.py</code>")
    assert "# not a text file" in shown
    with browser(Role.VIEWER, subject="eve") as client:
        shown = client.get(f"/jobs/{job}", params={"tab": "configuration"}).text
    assert "WORDS = 1" not in shown
    assert "Its owner and admins see the code here." in shown


def test_a_failed_page_links_the_page_of_its_error(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    for slug, link in (("topic-missing", '<a href="docs/errors/topic-missing">topic-missing</a>'), ("x-1", "x-1")):
        failure = Failure(error=slug, what="It is away.", hint="h")
        write(api, changed(job, state="FAILED", failure=failure.model_dump(mode="json")))
        with browser(Role.VIEWER) as client:
            assert f"<strong>{link}</strong>" in client.get(f"/jobs/{job}").text
            assert client.get(f"/docs/errors/{slug}").status_code == (200 if "href" in link else 404)


def test_the_start_button_sends_what_the_api_takes(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    write(api, changed(job, state="STOPPED", desired_state="STOPPED"))
    with browser() as client:
        button = re.search(r"<button[^>]*data-call=\"POST ([^ \"]+/start)\"[^>]*>", client.get(f"/jobs/{job}").text)
        assert button is not None
        body = re.search(r"data-body=[\"']([^\"']*)", button.group())
        content = {"content": body.group(1), "headers": {"Content-Type": "application/json"}} if body else {}
        answer = client.post(button.group(1), **content)
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    ("decision", "buttons"),
    [
        ("keep", ["Keep", "Republish", "Dead letter"]),
        ("keep", ["Keep"]),
        ("new-code", ["Accept new code"]),
        ("new-code of one epoch", ["Accept new code"]),  # the hint of drivers of earlier versions
    ],
)
def test_a_job_that_an_epoch_in_doubt_stopped_has_a_button_for_each_decision(
    api: Served, browser: Browser, name: str, decision: str, buttons: list[str]
) -> None:
    job, _ = write(api, guarded(name))
    hint = {
        "keep": resolve_command(name, "out", 12, "keep"),
        "new-code": f"accept it: {new_code_command(name)}.",
        "new-code of one epoch": resolve_command(name, "out", 12, "new-code"),
    }[decision]
    if len(buttons) == 3:
        hint = f"decide (--keep, --republish or --dead-letter TOPIC): {hint}"
    failure = Failure(error="replay-divergence", what="It differs.", hint=hint)
    write(api, changed(job, state="FAILED", desired_state="STOPPED", failure=failure.model_dump(mode="json")))
    with browser() as client:
        shown = client.get(f"/jobs/{job}").text
    calls = re.findall(r"<button data-call=\"POST [^ \"]+/resolve\" data-body='([^']*)'[^>]*>([\w ]+)</button>", shown)
    assert [text for _, text in calls] == buttons
    epochs = {json.loads(html.unescape(body)).get("epoch") for body, _ in calls}
    assert epochs == ({12} if decision == "keep" else {None}), "new code is accepted for all epochs in doubt"
    with browser(Role.VIEWER) as client:
        assert "/resolve" not in client.get(f"/jobs/{job}").text


def test_a_job_of_another_platform_has_a_button_that_adopts_it(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    failure = Failure(error="job-foreign", what="It belongs to another platform.", hint="use --adopt.")
    write(api, changed(job, state="FAILED", desired_state="STOPPED", failure=failure.model_dump(mode="json")))
    with browser() as client:
        shown = client.get(f"/jobs/{job}").text
    (body,) = re.findall(r"<button data-call=\"POST [^ \"]+/start\" data-body='([^']*)'[^>]*>Adopt</button>", shown)
    assert json.loads(html.unescape(body)) == {"adopt": True}
    with browser(Role.VIEWER) as client:
        assert "Adopt" not in client.get(f"/jobs/{job}").text


def test_an_exception_shows_its_stack_trace(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def fail(session: AsyncSession) -> None:
        failure = {"error": "epoch-failed", "what": "It failed.", "stack": "OSError: <away>"}
        session.add(ExceptionRow(job=job, at=NOW, generation=1, failure=failure))

    write(api, fail)
    with browser(Role.VIEWER) as client:
        assert "OSError: &lt;away&gt;</pre>" in client.get(f"/jobs/{job}", params={"tab": "logs"}).text


def test_a_beat_has_the_delay_of_the_next_read(api: Served) -> None:
    async def look() -> tuple[bytes, bytes]:
        database = Database(api.settings.database)
        pulse = Pulse(Boards(database), viewers=1)
        try:
            await pulse.begin()
            first = pulse.beat()
            pulse.viewers = 0
            return first, pulse.beat()
        finally:
            await asyncio.wait_for(pulse._task, 10) if pulse._task else None
            await database.close()

    for beat in asyncio.run(look()):
        event, _, late_ms = beat.decode().strip().partition("\ndata: ")
        assert (event, 0 <= int(late_ms) < 5000) == ("event: beat", True)


def test_close_retention_degrades_a_job_but_not_its_guarantee(api: Served, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def close(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        set_figures(row, {"queries": {"out": {"lag": {"in": 900}, "retention": {"in": 94}}}})

    write(api, close)
    line = line_of(api, job)
    assert line.weak == (
        "94 % of the records in in are unread, and its retention deletes records: unread records may be lost",
    )
    assert line.exact


def test_a_long_open_transaction_degrades_a_job(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))

    async def hang(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        recent = datetime.now(UTC) - timedelta(seconds=20)
        open_ones = {"words": NOW.isoformat(), "letters": recent.isoformat()}
        set_figures(row, {"open_transactions": open_ones})

    write(api, hang)
    line = line_of(api, job)
    assert line.weak == ("readers of words wait for a long open transaction",)
    assert line.exact, "published records are still published once"
    with browser(Role.VIEWER) as client:
        shown = client.get(f"/jobs/{job}").text
        assert "Readers of words wait for a transaction that has been open since" in shown
        assert "Readers of letters wait" in shown

    async def end(session: AsyncSession) -> None:
        (await session.get_one(JobRow, job)).state = "STOPPED"

    write(api, end)
    assert not line_of(api, job).weak, "nothing has checked it since"


def test_tabs_show_partitions_operators_and_lanes(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    with api.client() as admin, browser(Role.VIEWER) as client:
        run = admin.get(f"/jobs/{job}").json()["run"]
        file = EventFile()
        file.start(1)
        tally = {"recorded": 31, "replayed": 4, "bytes": 2048}
        file.epoch(0, published_lanes=3, operators={"fraud_score": tally}, offsets={"in": {"0": 70, "1": 90}})
        file.write_event("lag", query="out", topics={"in": 17}, partitions={"in": {"0": 0, "1": 17}})

        async def push(session: AsyncSession) -> int:
            return await ingest(session, run, 0, file.lines)

        write(api, push)
        checkpoints, overview = (
            re.sub(r"<[^>]+>|\s+", " ", client.get(f"/jobs/{job}", params={"tab": tab}).text)
            for tab in ("checkpoints", "overview")
        )
    assert re.search(r"out +fraud_score +31 +2.0 KiB +4 ", checkpoints)
    assert re.search(r"out +1 +70 +3 +0 ", overview), "epochs, records, transactions, skipped"
    assert re.search(r"1 +90 *, +17 behind", overview)


def parts(stream: bytes) -> dict[str, Any]:
    """The data of each event, by its type."""
    decoded = EventSource(httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=stream))
    return {event.event: event.json() for event in decoded.iter_sse()}


def test_only_changes_are_sent(api: Served, name: str) -> None:
    first, _ = write(api, guarded(name))
    second, _ = write(api, guarded(f"{name}-b"))
    before = board(api)

    async def change(session: AsyncSession) -> None:
        recovering, reading = await session.get_one(JobRow, first), await session.get_one(JobRow, second)
        recovering.state = "RECOVERING"
        queries = {"out": {"epoch": 4, "records_out": 60, "lag": {"in": 7}}}
        set_figures(reading, {"queries": queries})

    write(api, change)
    after = dataclasses.replace(board(api), number=2)
    drawn = Drawn()
    changes = parts(asyncio.run(drawn.changes(before, after)))
    assert set(changes["rows"]["rows"]) == {first}
    assert "RECOVERING" in changes["rows"]["rows"][first]
    assert changes["figures"] == {first: ["–", "–", ""], second: ["7", "–", ""]}, "an input that is not read has no lag"
    assert asyncio.run(drawn.changes(after, after)) == b""
    whole = parts(asyncio.run(drawn.whole(after)))["board"]
    assert set(whole["rows"]) == set(whole["figures"]) == set(whole["order"]) >= {first, second}
    after = dataclasses.replace(after, hosts=after.hosts[:2])  # the heading shows hosts only while there is room
    lost = [dataclasses.replace(head, state="LOST") for head in after.hosts]
    changes = parts(asyncio.run(drawn.changes(after, dataclasses.replace(after, number=3, hosts=tuple(lost)))))
    assert "LOST" in changes["rows"]["head"], "the heading shows the state"


class Failing(Boards):
    """Boards that cannot be read after the first ones."""

    def __init__(self, boards: list[Board | Exception]) -> None:
        self.left = boards

    async def newest(self) -> Board:
        result = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(result, Exception):
            raise result
        return result

    def pause_s(self) -> float:
        return 0.0


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), ValueError("a state of a newer version")])
def test_streams_restart_when_the_board_cannot_be_read(error: Exception) -> None:
    """Not frozen rows that are called live, and not for good."""
    empty = Board(1, NOW, (), ())

    async def look() -> None:
        pulse = Pulse(Failing([empty, empty, error]))
        pulse.viewers = 1
        known, _ = await pulse.begin()
        assert await pulse.after(known, 5.0) == (known + 2, None)
        pulse.boards = Failing([empty, dataclasses.replace(empty, number=2, hosts=(Head("a", "READY", "a", 0, 2),))])
        known, _ = await pulse.begin()
        _, changes = await pulse.after(known, 5.0)
        assert changes
        assert set(parts(changes)) == {"board"}, "another host is another table"
        known, _ = await pulse.begin()
        pulse.ring()
        assert await asyncio.gather(pulse.after(known, 0.05)) == [(known, b"")], "a wake-up alone sends nothing"
        pulse.viewers = 0

    asyncio.run(look())


def test_a_stream_begins_with_the_complete_board(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    with browser() as client, client.stream("GET", "/live") as stream:
        event = next(line for line in stream.iter_lines() if line.startswith("event:"))
        assert event == "event: board"
        assert stream.headers["content-type"].startswith("text/event-stream")
    assert job


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_renders_with_and_without_data(api: Served, browser: Browser, name: str, tab: str) -> None:
    job, _ = write(api, guarded(name))

    async def bare(session: AsyncSession) -> str:
        return (await job_row(session, f"{name}-bare")).id

    with browser() as client:
        for subject in (job, write(api, bare)):
            answer = client.get(f"/jobs/{subject}", params={"tab": tab})
            assert answer.status_code == 200, answer.text
            assert 'aria-current="page">' + TABS[tab] in answer.text
            part = client.get(f"/jobs/{subject}", params={"tab": tab}, headers={"HX-Request": "true"})
            assert part.status_code == 200, part.text
            assert "<html" not in part.text
            assert name in part.text


def test_the_log_tab_has_its_own_script_filters_and_a_download(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    with browser() as client:
        page = client.get(f"/jobs/{job}", params={"tab": "logs"}).text
        for element in ('id="log-search"', 'id="log-level"', 'id="log-epochs"', 'id="log-raw"', 'id="log-empty"'):
            assert element in page
        script = re.search(r'src="(assets/\w+/logs\.js)"', page)
        assert script
        assert len(client.get(script[1]).raise_for_status().text) < 6_000
        assert "logs.js" not in client.get(f"/jobs/{job}").text
        link = re.search(r'id="log-download" href="([^"]+)"', page)
        assert link
        file = client.get(link[1]).raise_for_status()
        assert file.headers["content-disposition"] == f'attachment; filename="{name}.log"'


def test_a_recovery_page_has_the_same_figures_as_rest(api: Served, browser: Browser, name: str) -> None:
    job, recovery = write(api, guarded(name))
    with browser() as client:
        recovery_json = client.get(f"/api/v1/jobs/{job}/recoveries/{recovery}").json()
        shown = client.get(f"/jobs/{job}/recoveries/{recovery}").text
        assert "431 ms" in shown
        for phase in recovery_json["phases"]:
            assert f"{phase['duration_ms']:.0f} ms" in shown
        part = client.get(f"/jobs/{job}/recoveries/{recovery}", headers={"HX-Request": "true"})
        assert (part.status_code, "431 ms" in part.text) == (200, True)
        missing = client.get(f"/jobs/{job}/recoveries/{new_id()}")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert client.get("/hosts", headers={"HX-Request": "true"}).status_code == 200


def test_recoveries_of_all_jobs_are_in_one_list(api: Served, browser: Browser, name: str) -> None:
    made = [write(api, guarded(f"{name}-{letter}")) for letter in "ab"]
    with api.client() as client:
        rows: list[dict[str, Any]] = []
        more: dict[str, Any] = {"next": None, "has_more": True}
        while more["has_more"]:
            cursor = {"starting_after": more["next"]} if more["next"] else {}
            more = client.get("/recoveries", params={"limit": 1, **cursor}).raise_for_status().json()
            rows += more["data"]
    ours = {row["id"]: row for row in rows if row["job"] in {job for job, _ in made}}
    assert len(rows) == len({row["id"] for row in rows})
    assert {(row["job_name"], row["downtime_ms"]) for row in ours.values()} == {
        (f"{name}-a", 431.0),
        (f"{name}-b", 431.0),
    }
    assert all("no output for 431 ms" in row["summary"] for row in ours.values())
    with browser(Role.VIEWER) as client:
        shown = client.get("/recoveries").text
        assert f'<a href="jobs/{made[0][0]}/recoveries/{made[0][1]}">' in shown
        assert client.get("/recoveries", params={"starting_after": "1.x"}).status_code == 200


def test_a_waterfall_has_no_gap_and_no_overlap() -> None:
    phases = [Phase(name=phase, started_at=NOW, duration_ms=ms) for phase, ms in PHASES]
    recovery = Recovery(
        id="r", job="j", cause="crash", failed_generation=1, from_host="a", started_at=NOW, phases=phases
    )
    bars = waterfall(recovery)
    assert sum(bar.width for bar in bars) == pytest.approx(100)
    for current, following in itertools.pairwise(bars):
        assert current.left + current.width == pytest.approx(following.left)
    assert waterfall(recovery.model_copy(update={"phases": []})) == []


def test_names_cannot_break_out_of_the_page(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    evil = "<script>alert(1)</script>"

    async def change(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        row.state, row.failure = "FAILED", {"error": evil, "what": evil, "kept": evil, "hint": evil, "domain": "user"}

    write(api, change)
    with browser(Role.VIEWER) as client:
        for page in ("/", f"/jobs/{job}"):
            assert evil not in client.get(page).text
        assert evil not in asyncio.run(Drawn().whole(board(api))).decode()


def test_a_ready_standby_has_a_promote_button_for_its_owner(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, guarded(name))
    for role, buttons in ((Role.ADMIN, 1), (Role.VIEWER, 0)):
        with browser(role) as client:
            shown = client.get(f"/jobs/{job}", params={"tab": "recoveries"}).text
            assert "far from the driver" in shown
            assert shown.count(">Promote</button>") == buttons, role


def test_a_job_on_a_cluster_links_to_it_and_to_its_application(api: Served, browser: Browser, name: str) -> None:
    described = ClusterSpec.model_validate(
        {"metadata": {"name": name}, "spec": {"master": "spark://m:7077", "ui": "http://m:8080"}}
    )

    async def make(session: AsyncSession) -> str:
        await clusters.create(session, described, by="ada")
        job = await job_row(session, name)
        run = await runs.create(session, job, await host_row(session), run_spec(job, cluster=described))
        respec(job, cluster=name)
        job.run = run.id
        job.desired_state = "STOPPED"
        await session.flush()
        file = EventFile()
        file.write_event("session", master="spark://m:7077", application_id="app-7", ui="http://h:4040")
        listed = [{"id": "4", "host": "w", "cores": 2, "stdout": "javascript:alert(1)", "stderr": "http://w/?a=7&x=4"}]
        file.write_event("executors", wanted=3, registered=1, executors=listed)
        await ingest(session, run.id, 0, file.lines)
        return job.id

    job = write(api, make)
    with browser() as client:
        shown = client.get(f"/jobs/{job}").text
        assert f'<a href="clusters#cluster-{name}">{name}</a>' in shown
        assert f'<a href="jobs/{job}?tab=configuration#executors">1 of 3</a>' in shown
        tab = client.get(f"/jobs/{job}", params={"tab": "configuration"}).text
        assert '<a href="http://h:4040" rel="noreferrer">app-7</a>' in tab
        assert '<a href="http://m:8080" rel="noreferrer">http://m:8080</a>' in tab
        assert re.findall(r'<a href="([^"]+)"[^>]* of executor 4">', tab) == ["http://w/?a=7&amp;x=4"]
        api_run = client.get(f"/api/v1/jobs/{job}/runs", headers={"Accept": "application/json"}).json()["data"][0]
        assert (api_run["cluster"], api_run["application_id"]) == (name, "app-7")

        async def drop(session: AsyncSession) -> None:
            await session.execute(delete(RunRow).where(RunRow.job == job))
            await clusters.remove(session, await clusters.get(session, name))

        write(api, drop)
        assert "(removed)" in client.get(f"/jobs/{job}").text


def test_the_clusters_page(api: Served, browser: Browser, name: str) -> None:
    described = ClusterSpec.model_validate(
        {"metadata": {"name": name}, "spec": {"master": "spark://m:7077", "ui": "http://m:8080", "hosts": ["h-1"]}}
    )
    versions = {"spark": "4.2.1", "java": "25", "python": "3.12.4", "executors": 2, "hosts": ("w-1", "w-2")}

    async def make(session: AsyncSession) -> None:
        row = await clusters.create(session, described, by="ada")
        report = ClusterReport(**versions, problems=("Executor 0 on <w-1> has Python 3.12.",))
        await clusters.succeed(session, await clusters.begin_check(session, row), report)

    def section(role: Role = Role.VIEWER) -> str:
        with browser(role) as client:
            shown = client.get("/clusters").text
        return shown[shown.index(f'id="cluster-{name}"') :].partition("</section>")[0]

    write(api, make)
    text = " ".join(re.sub(r"<[^>]+>", " ", section()).split())
    assert "INCOMPATIBLE" in text
    assert "Executor 0 on &lt;w-1&gt; has Python 3.12." in text
    assert "4.2.1, 25, 3.12.4" in text
    assert "2 on w-1, w-2" in text
    assert "Hosts with drivers h-1" in text
    assert text.endswith("Jobs none")
    assert '<a href="http://m:8080" rel="noreferrer">spark://m:7077</a>' in section()
    assert re.findall(r'data-call="([A-Z]+)', section(Role.ADMIN)) == ["POST", "DELETE"]
    assert "data-call" not in section(Role.OPERATOR)

    async def use(session: AsyncSession) -> None:
        job = await job_row(session, f"{name}-job")
        respec(job, cluster=name)
        job.state = "RUNNING"

    write(api, use)
    assert f'<a href="jobs/{name}-job">' in section()
    assert "DELETE" not in section(Role.ADMIN), "a cluster in use cannot be removed"
