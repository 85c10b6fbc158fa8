"""The facts about a job that the decisions read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.resources.hosts import HostState
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.facts import HostFacts
from clonos_api.reconcile.load import JobCase, Snapshot
from clonos_api.reconcile.loop import Term
from clonos_api.reconcile.placement import HOST_LABEL, Fleet
from clonos_api.reconcile.standby_demands import standby_demand
from clonos_api.settings import ApiSettings
from clonos_api.store.tables import JobRow, RunRow
from support.stored import typed

LOCATIONS = CheckpointLocations(Path("/home"), "s3a://shared", "s3a://savepoints")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def spec(**inner: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j"}, "spec": {"checkpoint": "s3a://shared/j", **inner}}


def job(**fields: Any) -> JobRow:
    row = {"id": "j", "name": "j", "labels": {}, "version": 2, "state": "RUNNING", "desired_state": "RUNNING"}
    row |= {"state_since": NOW, "restart_nonce": 0, "observed_nonce": 0, "row_version": 1}
    return typed(JobRow, **{**row, **fields})


def run(version: int, of: dict[str, Any]) -> RunRow:
    named = {"run": "r", "job": "j", "name": "j", "version": version, "artifact": "a" * 64, "desired": "RUNNING"}
    return typed(
        RunRow,
        id="r",
        host="a",
        state="RUNNING",
        consecutive_failures=0,
        attempts=1,
        ingest_state={},
        created_at=NOW,
        spec={**named, "spec": of},
    )


def test_standbys_of_an_old_version_stay_until_the_new_one_counts() -> None:
    """Also if the new version has none: a job that reverts to the old version needs one."""
    moving = {"cause": "upgrade", "leaves": "a", "version": 2, "previous": 1, "until": NOW.isoformat(), "kept": 1}
    old, new = spec(standby={"replicas": 1}), spec()
    assert standby_demand(JobCase(job(spec=new, moving=moving), run(1, old)), LOCATIONS).replicas == 1
    assert standby_demand(JobCase(job(spec=new, moving=moving), run(2, new)), LOCATIONS).replicas == 1, (
        "it has yet to prove itself"
    )
    assert standby_demand(JobCase(job(spec=new, moving=None), run(2, new)), LOCATIONS).replicas == 0


def test_a_checkpoint_of_the_next_start_does_not_move_the_one_of_the_run() -> None:
    """A PATCH counts from the next start: until then the driver works in its own checkpoint."""
    path, shared = spec(checkpoint="/data/j", standby={"replicas": 1}), spec(standby={"replicas": 1})
    running = JobCase(job(spec=shared, home="a"), run(1, path))
    facts, _ = running.facts(LOCATIONS)
    assert (facts.local, facts.relocatable) == (True, False)
    assert standby_demand(running, LOCATIONS).bound == "a"
    next_start, _ = JobCase(job(spec=shared, home="a"), None).facts(LOCATIONS)
    assert not next_start.local


def test_a_label_names_the_host_of_standbys_of_its_version() -> None:
    """A changed label counts from the next start: until then standbys have the version of the driver."""
    labelled = spec() | {"metadata": {"name": "j", "labels": {HOST_LABEL: "b"}}}
    running = run(1, spec() | {"metadata": {"name": "j", "labels": {HOST_LABEL: "a"}}})
    assert standby_demand(JobCase(job(spec=labelled), running), LOCATIONS).named_host == "a"
    assert standby_demand(JobCase(job(spec=labelled), None), LOCATIONS).named_host == "b"
    assert standby_demand(JobCase(job(spec=labelled), run(1, spec())), LOCATIONS).named_host is None


def test_slots_are_reserved_only_for_jobs_that_an_open_host_accepts() -> None:
    """Otherwise jobs whose host is lost keep all others from having standbys."""
    database: Any = SimpleNamespace(notifier=None)
    term = Term(database, ApiSettings(savepoints="s3a://savepoints"), cast(Any, None), 1)
    recovers = {"state": "RECOVERING", "spec": spec(), "row_version": 1}
    cases = [
        JobCase(job(**recovers), None),
        JobCase(job(**recovers, labels={HOST_LABEL: "lost"}), None),
        JobCase(job(**recovers | {"state": "RUNNING"}), run(2, spec())),
    ]
    hosts = [HostFacts(id="a", name="a", slots=4), HostFacts(id="l", name="lost", state=HostState.LOST)]
    snapshot = Snapshot(NOW, cases, [], Fleet(hosts), {}, {})
    term._reserve_slots(snapshot)
    assert snapshot.fleet.reserved == 1


def test_a_move_does_not_restore_removed_standbys() -> None:
    moving = {"cause": "move", "leaves": "a", "version": 1, "previous": 1, "until": NOW.isoformat()}
    case = JobCase(job(spec=spec(), moving=moving), run(1, spec(standby={"replicas": 2})))
    assert standby_demand(case, LOCATIONS).replicas == 0


@pytest.mark.parametrize(
    ("inner", "start", "prefers_pool"),
    [
        ({"standby": {"mode": "pool"}}, None, True),
        ({"standby": {"mode": "pool"}, "driver": {"memory": "2048m"}}, None, False),
        ({"standby": {"mode": "pool"}}, {"epoch": 3}, False),
        ({}, None, False),
        ({"standby": {"replicas": 1}}, None, False),
    ],
)
def test_only_jobs_that_use_a_pool_driver_are_placed_where_one_is(
    inner: dict[str, Any], start: dict[str, Any] | None, prefers_pool: bool
) -> None:
    """The others would take it from those, and start cold."""
    facts, _ = JobCase(job(spec=spec(**inner), start_from=start), None).facts(LOCATIONS)
    assert facts.prefers_pool is prefers_pool


def test_a_recovery_is_placed_by_what_its_driver_has() -> None:
    """Not by a newer specification, which counts from the next start."""
    pool, none = spec(standby={"mode": "pool"}), spec(standby={"mode": "none"})
    for eligible in (pool, spec(), spec(standby={"replicas": 1})):
        assert JobCase(job(spec=none), run(1, eligible)).facts(LOCATIONS)[0].prefers_pool
    assert not JobCase(job(spec=pool), run(1, none)).facts(LOCATIONS)[0].prefers_pool
