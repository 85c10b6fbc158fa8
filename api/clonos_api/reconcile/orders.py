"""What an agent is ordered, made from a job's row."""

from __future__ import annotations

from clonos.resources.hosts import RestartOrder, RunOrder
from clonos.resources.jobs import StartFrom
from clonos.spec import JobSpec
from clonos_api.reconcile import checkpoints
from clonos_api.reconcile.reading import Place
from clonos_api.store.rows import new_id
from clonos_api.store.tables import JobRow, RunRow


def run_order(job: JobRow, before: RunRow | None, place: Place, restore: str | None) -> RunOrder:
    """The order of a new run.

    Args:
        job: The job.
        before: Its run before, since it was started: what somebody changed meanwhile counts from the next start.
        place: Where checkpoints are.
        restore: The checkpoint that it is to start from instead of its own.
    """
    spec = _specification(job, place) if before is None else JobSpec.model_validate(before.order["spec"])
    policy = spec.spec.restart_policy
    run = new_id()
    return RunOrder(
        run=run,
        job=job.id,
        name=job.name,
        version=job.version if before is None else before.order["version"],
        spec=spec,
        artifact=job.artifact if before is None else before.order["artifact"],
        goal="RUN",
        restart=RestartOrder(
            attempts=policy.attempts,
            backoff_ms=policy.backoff_ms,
            max_backoff_ms=policy.max_backoff_ms,
            failed_before=before.in_row if before else 0,
        ),
        start_from=StartFrom.model_validate(job.start_from) if job.start_from else None,
        restore_location=restore,
        # A run that takes over before the first claim was told repeats the wish: the log grants each once.
        wish="" if not job.start_from else (before.order.get("wish") if before else None) or run,
        attempt_base=before.attempts if before else 0,
        accept_code=before.order.get("accept_code", False) if before else _goes_back(job),
    )


def standby_order(job: JobRow, driver: RunRow | None, place: Place) -> RunOrder:
    """The order of a standby.

    Args:
        job: The job.
        driver: Its run, whose version the standby has; None: it is to have the newest.
        place: Where checkpoints are.
    """
    order = run_order(job, driver, place, None)
    restart = order.restart.model_copy(update={"failed_before": 0})
    waits = {"standby": True, "start_from": None, "wish": "", "attempt_base": 0, "accept_code": False}
    return order.model_copy(update={**waits, "restart": restart})


def _specification(job: JobRow, place: Place) -> JobSpec:
    spec = JobSpec.model_validate(job.spec)
    if place.shared and not spec.spec.checkpoint:
        where = checkpoints.location(None, job.name, home=place.home, shared=place.shared)
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"checkpoint": where})})
    return spec


def _goes_back(job: JobRow) -> bool:
    """Whether the newest version failed, and may have left an epoch in doubt."""
    return bool(job.moving and job.moving.get("failure"))
