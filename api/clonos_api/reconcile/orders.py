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
        before: Its run before, since it was started.
        place: Where checkpoints are.
        restore: The checkpoint that it is to start from instead of its own.
    """
    spec = JobSpec.model_validate(job.spec)
    policy = spec.spec.restart_policy
    if place.shared and not spec.spec.checkpoint:
        where = checkpoints.location(None, job.name, home=place.home, shared=place.shared)
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"checkpoint": where})})
    run = new_id()
    return RunOrder(
        run=run,
        job=job.id,
        name=job.name,
        version=job.version,
        spec=spec,
        artifact=job.artifact,
        goal="RUN",
        restart=RestartOrder(
            attempts=policy.attempts, backoff_ms=policy.backoff_ms, max_backoff_ms=policy.max_backoff_ms
        ),
        start_from=StartFrom.model_validate(job.start_from) if job.start_from else None,
        restore_location=restore,
        # A run that takes over before the first claim was told repeats the wish: the log grants each once.
        wish="" if not job.start_from else (before.order.get("wish") if before else None) or run,
        attempt_base=before.attempts if before else 0,
    )
