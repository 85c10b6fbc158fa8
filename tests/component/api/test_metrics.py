"""Metrics for Prometheus: each value equals the store, and its parser accepts the text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos_api.store import counters
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import RecoveryRow, StandbyRow
from support.serving import Served
from support.stored import host_row, job_row, run_row

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def scraped(client: httpx.Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Name → labels → value."""
    answer = client.get(str(client.base_url.join("/metrics")))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in samples.setdefault(sample.name, {}), f"{sample.name}{labels} twice: the scrape fails"
            samples[sample.name][labels] = sample.value
    return samples


def of(samples: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str, **labels: str) -> float:
    return samples[name][tuple(sorted(labels.items()))]


def test_metrics_have_the_figures_of_jobs_and_hosts(admin: httpx.Client, write: Callable[..., Any], name: str) -> None:
    made: dict[str, Any] = {}
    stopped_name = f"{name}-stopped"

    async def make(session: AsyncSession) -> None:
        here, there = await host_row(session), await host_row(session)
        job = await job_row(session, name)
        run = await run_row(session, job, here)
        run.checkpoint_bytes = {"out": 4096}
        job.state, job.run, job.generation = "RUNNING", run.id, 3
        job.metrics = {
            "queries": {"out": {"epoch": 9, "lag": {"orders": 7}}},
            "open_transactions": {"words": (datetime.now(UTC) - timedelta(seconds=30)).isoformat()},
        }
        sums = {"records_out": 120, "epochs": 10, "epochs_failed": 1, "restarts": 2, "published_lanes": 40}
        await counters.add(session, {job.id: sums | {"epochs_timed": 11, "epochs_ms": 2500, "recorded_bytes": 700}})
        for state, epoch in (("READY", 9), ("WARMING", 4)):
            waits = await run_row(session, job, there)
            body = {"epochs": {"out": epoch}}
            session.add(
                StandbyRow(id=waits.id, job=job.id, host=there.id, mode="dedicated", state=state, since=NOW, body=body)
            )
            made[state] = waits.id
        for number, downtime_ms in enumerate((900.0, 450.0, None)):
            phases = [{"name": "claim", "started_at": NOW.isoformat(), "duration_ms": 100.0 + number}]
            at = NOW + timedelta(minutes=number)
            body = {"cause": "crash", "failed_generation": number, "from_host": here.name, "phases": phases}
            body |= {"downtime_ms": downtime_ms}
            ended = at + timedelta(seconds=1) if downtime_ms else None
            session.add(RecoveryRow(id=new_id(), job=job.id, started_at=at, ended_at=ended, body=body))
        made["there"] = there.name

        stopped = await job_row(session, stopped_name)
        stopped.state, stopped.metrics = "STOPPED", job.metrics

    write(make)
    samples = scraped(admin)
    assert [
        labels for labels in samples["clonos_open_transaction_age_seconds"] if ("job_name", stopped_name) in labels
    ] == []
    assert of(samples, "clonos_job_state", job_name=name, state="RUNNING") == 1
    assert of(samples, "clonos_job_generation", job_name=name) == 3
    assert of(samples, "clonos_records_out_total", job_name=name) == 120
    assert of(samples, "clonos_records_in_total", job_name=name) == 0
    assert of(samples, "clonos_job_restarts_total", job_name=name) == 2
    assert of(samples, "clonos_checkpoints_total", job_name=name, status="completed") == 10
    assert of(samples, "clonos_checkpoints_total", job_name=name, status="failed") == 1
    assert of(samples, "clonos_source_lag_records", job_name=name, query="out", topic="orders") == 7
    assert of(samples, "clonos_last_checkpoint_size_bytes", job_name=name, query="out") == 4096
    assert of(samples, "clonos_checkpoint_duration_seconds_count", job_name=name) == 11
    assert of(samples, "clonos_checkpoint_duration_seconds_sum", job_name=name) == 2.5
    assert of(samples, "clonos_transactions_total", job_name=name, outcome="committed") == 40
    assert of(samples, "clonos_determinants_recorded_bytes_total", job_name=name) == 700
    assert 30 <= of(samples, "clonos_open_transaction_age_seconds", job_name=name, topic="words") < 90
    there = {"job_name": name, "host": made["there"]}
    assert of(samples, "clonos_standby_lag_epochs", **there, standby=made["WARMING"]) == 5
    assert of(samples, "clonos_standby_state", **there, standby=made["READY"], state="READY") == 1
    assert of(samples, "clonos_recovery_downtime_seconds", job_name=name, cause="crash") == 0.45, (
        "the newest that has ended"
    )
    assert of(samples, "clonos_recovery_duration_seconds", job_name=name, cause="crash", phase="claim") == 0.101
    assert of(samples, "clonos_host_slots_used", host=made["there"]) == 2
    assert of(samples, "clonos_leader") == 0
    assert of(samples, "clonos_database_free_bytes") > 0


def test_label_values_are_escaped(admin: httpx.Client, write: Callable[..., Any], name: str) -> None:
    """Topic names may contain characters that labels must escape."""

    async def make(session: AsyncSession) -> None:
        job = await job_row(session, name)
        job.metrics = {"queries": {'o"ut\n': {"lag": {"a\\b": 1}}}}

    write(make)
    assert of(scraped(admin), "clonos_source_lag_records", job_name=name, query='o"ut\n', topic="a\\b") == 1


def test_metrics_need_a_token(api: Served, admin: httpx.Client, name: str) -> None:
    """Prometheus uses the token of a viewer."""
    body = {"name": name, "role": Role.VIEWER, "subject": name}
    token = admin.post("/tokens", json=body).json()["token"]
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
        assert (
            httpx.get(f"{api.url}/metrics", headers=headers, timeout=60, trust_env=False, verify=False).status_code
            == status
        )


def test_requests_are_counted_by_route_method_and_status(admin: httpx.Client, name: str) -> None:
    def count(samples: dict[str, dict[tuple[tuple[str, str], ...], float]], **labels: str) -> float:
        return samples["clonos_api_request_duration_seconds_count"].get(tuple(sorted(labels.items())), 0)

    job = {"method": "GET", "route": "/api/v1/jobs/{job}", "status": "404"}
    before = scraped(admin)
    for number in range(3):
        assert admin.get(f"/jobs/{name}-{number}").status_code == 404
    assert admin.get(f"/no/{name}").status_code == 404
    assert httpx.get(str(admin.base_url.join("/api/v1/jobs")), timeout=60, trust_env=False).status_code == 401
    samples = scraped(admin)
    assert count(samples, **job) - count(before, **job) == 3
    for status in ("401", "404"):
        unmatched = {"method": "GET", "route": "none", "status": status}
        assert count(samples, **unmatched) - count(before, **unmatched) >= 1
    assert of(samples, "clonos_api_request_duration_seconds_bucket", le="+Inf", **job) == count(samples, **job)
    assert of(samples, "clonos_api_requests_in_progress") >= 1, "the scrape itself"
    assert not [labels for labels in samples["clonos_api_request_duration_seconds_count"] if name in str(labels)]
