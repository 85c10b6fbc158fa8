"""What is read of a job for those who decide about it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clonos.resources.hosts import RunOrder
from clonos_api.reconcile.reading import Case, Place, guarded_of
from clonos_api.store.tables import JobRow, RunRow

PLACE = Place(Path("/home"), "s3a://shared", "s3a://savepoints")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def spec(**inner: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j"}, "spec": {"checkpoint": "s3a://shared/j", **inner}}


def job(**fields: Any) -> JobRow:
    row = {"id": "j", "name": "j", "labels": {}, "version": 2, "state": "RUNNING", "desired_state": "RUNNING"}
    row |= {"state_since": NOW, "restart_nonce": 0, "observed_nonce": 0, "token": 1}
    return JobRow(**{**row, **fields})


def run(version: int, of: dict[str, Any]) -> RunRow:
    named = {"run": "r", "job": "j", "name": "j", "version": version, "artifact": "a" * 64, "goal": "RUN"}
    order = RunOrder.model_validate({**named, "spec": of}).model_dump(mode="json")
    return RunRow(id="r", agent="a", state="RUNNING", in_row=0, attempts=1, told={}, created_at=NOW, order=order)


def test_standbys_of_an_old_version_stay_until_the_new_one_counts() -> None:
    """Also where the new one is to have none: whoever goes back needs one."""
    moving = {"cause": "upgrade", "leaves": "a", "version": 2, "previous": 1, "until": NOW.isoformat(), "kept": 1}
    old, new = spec(standby={"replicas": 1}), spec()
    assert guarded_of(job(spec=new, moving=moving), run(1, old), PLACE, 0).wanted == 1
    assert guarded_of(job(spec=new, moving=moving), run(2, new), PLACE, 0).wanted == 1, "it has yet to prove itself"
    assert guarded_of(job(spec=new, moving=None), run(2, new), PLACE, 0).wanted == 0


def test_standbys_that_somebody_gave_up_do_not_come_back_for_a_move() -> None:
    moving = {"cause": "move", "leaves": "a", "version": 1, "previous": 1, "until": NOW.isoformat()}
    assert guarded_of(job(spec=spec(), moving=moving), run(1, spec(standby={"replicas": 2})), PLACE, 0).wanted == 0


@pytest.mark.parametrize(
    ("inner", "start", "pooled"),
    [
        ({"standby": {"mode": "pool"}}, None, True),
        ({"standby": {"mode": "pool"}, "driverMemoryMb": 2048}, None, False),
        ({"standby": {"mode": "pool"}}, {"epoch": 3}, False),
        ({}, None, False),
    ],
)
def test_only_jobs_that_can_have_a_spare_are_placed_where_one_is(
    inner: dict[str, Any], start: dict[str, Any] | None, pooled: bool
) -> None:
    """The others would take it from those, and start cold."""
    facts, _ = Case(job(spec=spec(**inner), start_from=start), None).facts(PLACE)
    assert facts.pooled is pooled


def test_a_recovery_is_placed_by_what_its_driver_has() -> None:
    """Not by a newer specification, which counts from the next start."""
    pool, plain = spec(standby={"mode": "pool"}), spec()
    assert Case(job(spec=plain), run(1, pool)).facts(PLACE)[0].pooled
    assert not Case(job(spec=pool), run(1, plain)).facts(PLACE)[0].pooled
