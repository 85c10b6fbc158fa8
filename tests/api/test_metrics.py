"""What Prometheus reads: each figure as the store has it, and a text that its parser takes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos_api.store import counters
from clonos_api.store.rows import new_id
from clonos_api.store.tables import RecoveryRow, StandbyRow
from serving import Served
from stored import a_job, a_run, an_agent

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def scraped(client: httpx.Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Name → labels → value."""
    answer = client.get(str(client.base_url.join("/metrics")))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} twice: the scrape fails"
            found[sample.name][labels] = sample.value
    return found


def of(found: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str, **labels: str) -> float:
    return found[name][tuple(sorted(labels.items()))]


def test_what_it_reads(admin: httpx.Client, write: Callable[..., Any], name: str) -> None:
    made: dict[str, Any] = {}
    stopped_name = f"{name}-stopped"

    async def make(session: AsyncSession) -> None:
        here, there = await an_agent(session), await an_agent(session)
        job = await a_job(session, name)
        run = await a_run(session, job, here)
        run.checkpoint_bytes = {"out": 4096}
        job.state, job.run, job.generation = "RUNNING", run.id, 3
        job.metrics = {
            "queries": {"out": {"epoch": 9, "lag": {"orders": 7}}},
            "open_transactions": {"words": (datetime.now(UTC) - timedelta(seconds=30)).isoformat()},
        }
        sums = {"records_out": 120, "epochs": 10, "epochs_failed": 1, "restarts": 2, "published_lanes": 40}
        await counters.add(session, {job.id: sums | {"epochs_timed": 11, "epochs_ms": 2500, "recorded_bytes": 700}})
        for state, epoch in (("READY", 9), ("WARMING", 4)):
            waits = await a_run(session, job, there)
            body = {"epochs": {"out": epoch}}
            session.add(
                StandbyRow(id=waits.id, job=job.id, agent=there.id, mode="dedicated", state=state, since=NOW, body=body)
            )
            made[state] = waits.id
        for number, gap_ms in enumerate((900.0, 450.0, None)):
            phases = [{"name": "claim", "started_at": NOW.isoformat(), "duration_ms": 100.0 + number}]
            at = NOW + timedelta(minutes=number)
            body = {"cause": "crash", "failed_generation": number, "from_agent": here.name, "phases": phases}
            body |= {"gap_ms": gap_ms}
            ended = at + timedelta(seconds=1) if gap_ms else None
            session.add(RecoveryRow(id=new_id(), job=job.id, started_at=at, ended_at=ended, body=body))
        made["there"] = there.name

        stopped = await a_job(session, stopped_name)
        stopped.state, stopped.metrics = "STOPPED", job.metrics

    write(make)
    found = scraped(admin)
    assert [
        labels for labels in found["eos_open_transaction_age_seconds"] if ("job_name", stopped_name) in labels
    ] == []
    assert of(found, "eos_job_state", job_name=name, state="RUNNING") == 1
    assert of(found, "eos_job_generation", job_name=name) == 3
    assert of(found, "eos_records_out_total", job_name=name) == 120
    assert of(found, "eos_records_in_total", job_name=name) == 0
    assert of(found, "eos_job_restarts_total", job_name=name) == 2
    assert of(found, "eos_checkpoints_total", job_name=name, status="completed") == 10
    assert of(found, "eos_checkpoints_total", job_name=name, status="failed") == 1
    assert of(found, "eos_source_lag_records", job_name=name, query="out", topic="orders") == 7
    assert of(found, "eos_last_checkpoint_size_bytes", job_name=name, query="out") == 4096
    assert of(found, "eos_checkpoint_duration_seconds_count", job_name=name) == 11
    assert of(found, "eos_checkpoint_duration_seconds_sum", job_name=name) == 2.5
    assert of(found, "eos_transactions_total", job_name=name, outcome="committed") == 40
    assert of(found, "eos_determinants_recorded_bytes_total", job_name=name) == 700
    assert 30 <= of(found, "eos_open_transaction_age_seconds", job_name=name, topic="words") < 90
    there = {"job_name": name, "host": made["there"]}
    assert of(found, "eos_standby_lag_epochs", **there, standby=made["WARMING"]) == 5
    assert of(found, "eos_standby_state", **there, standby=made["READY"], state="READY") == 1
    assert of(found, "eos_recovery_gap_seconds", job_name=name, cause="crash") == 0.45, "the newest that has ended"
    assert of(found, "eos_recovery_duration_seconds", job_name=name, cause="crash", phase="claim") == 0.101
    assert of(found, "eos_host_slots_used", host=made["there"]) == 2
    assert of(found, "eos_leader") == 0


def test_names_that_would_break_the_text(admin: httpx.Client, write: Callable[..., Any], name: str) -> None:
    """Topics may hold what a label must escape."""

    async def make(session: AsyncSession) -> None:
        job = await a_job(session, name)
        job.metrics = {"queries": {'o"ut\n': {"lag": {"a\\b": 1}}}}

    write(make)
    assert of(scraped(admin), "eos_source_lag_records", job_name=name, query='o"ut\n', topic="a\\b") == 1


def test_it_needs_a_token(api: Served, admin: httpx.Client, name: str) -> None:
    """A viewer's: what Prometheus is given."""
    body = {"name": name, "role": Role.VIEWER, "subject": name}
    token = admin.post("/tokens", json=body).json()["token"]
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
        assert httpx.get(f"{api.url}/metrics", headers=headers, trust_env=False).status_code == status
