"""Which jobs should publish and do not, and what happens there now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from clonos.resources.jobs import DesiredState, JobState
from clonos.resources.recovery_descriptions import PLANNED
from clonos_api.fleet.facts import Facts
from clonos_api.fleet.lines import Stall
from clonos_api.store import recoveries
from clonos_api.store.columns import JobFigures, QueryFigures
from clonos_api.store.tables import JobRow, RecoveryRow

# Without output for this time a job stalls, if it has input and its epochs usually take less.
_PATIENCE_S: Final = 2.0
_SLOW: Final = 3  # times the duration of its slow epochs
# Agents push events each second, so the newest epoch may be this much newer than the store knows.
_PUSHES_S: Final = 1.0
# A first epoch also loads classes and starts Python workers.
_FIRST_S: Final = 30.0
_WORKS: Final = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING)


def stall_of(job: JobRow, facts: Facts) -> Stall | None:
    """Return the stall of a job; None if it publishes, has no input, or is not to run."""
    if job.desired_state != DesiredState.RUNNING or job.state not in _WORKS:
        return None
    figures = job.figures
    recovery = facts.recoveries.get(job.id)
    if recovery is not None and recovery.ended_at is None and recovery.body.cause not in PLANNED:
        return Stall(recoveries.silent_since(recovery, figures), _step(recovery, figures))
    if job.state != JobState.RUNNING:
        return None
    if figures.kafka is not None and figures.kafka.silent_since is not None:
        return Stall(figures.kafka.silent_since, "Kafka does not answer its driver")
    if figures.waiting is not None:
        return Stall(figures.waiting.since, f"its driver waits: {figures.waiting.what}")
    return _without_epochs(job, facts.at) or _without_first_epoch(job, facts)


def computes_first_epoch(job: JobRow) -> datetime | None:
    """Since when the driver of a RUNNING job owns the causal log without an epoch; None: it has finished one, or has
    reported its unread records.
    """
    return job.figures.first_epoch_since if job.state == JobState.RUNNING else None


def _without_first_epoch(job: JobRow, facts: Facts) -> Stall | None:
    since = computes_first_epoch(job)
    if since is None or facts.at - since <= timedelta(seconds=_FIRST_S):
        return None
    host, _ = facts.drivers.get(job.run or "", ("", ""))
    on_host = f" on {host}" if host else ""
    return Stall(since, f"generation {job.generation}{on_host} has claimed the causal log, and finished no epoch yet")


def _without_epochs(job: JobRow, at: datetime) -> Stall | None:
    """Return the stall of a query whose driver reports nothing wrong, although records are waiting."""
    queries = job.figures.queries
    stalled: dict[str, datetime] = {}
    for name, query in queries.items():
        since, slow_s = _waiting_since(job, query), query.slow_epoch_ms / 1000
        limit_s = max(_SLOW * slow_s, _PATIENCE_S) + query.paced_ms(job.spec) / 1000 + _PUSHES_S
        if since is not None and at - since > timedelta(seconds=limit_s):
            stalled[name] = since
    if not stalled:
        return None
    name, since = min(stalled.items(), key=lambda item: (item[1], item[0]))
    of_query = f" for query {name}" if len(queries) > 1 else ""
    return Stall(since, f"records are waiting{of_query}, and no epoch has finished")


def _waiting_since(job: JobRow, query: QueryFigures) -> datetime | None:
    """Since when records wait for a query without an epoch; None: none wait."""
    return None if query.waiting_since is None else max(job.state_since, query.waiting_since)


def _step(recovery: RecoveryRow, figures: JobFigures) -> str:
    """Return what happens in a recovery now."""
    body = recovery.body
    host, generation = body.to_host, body.generation
    if host is None:
        return "a new driver is being placed"
    if generation is None:
        return f"{'the standby' if body.standby else 'a new driver'} on {host} starts to claim the causal log"
    queries = figures.queries
    waiting = recoveries.waiting_queries(recovery, figures) or queries
    epoch = "its first epoch"
    if len(waiting) == 1:
        ((name, query),) = waiting.items()
        epoch = f"epoch {query.epoch + 1}{f' of {name}' if len(queries) > 1 else ''}"
    return f"generation {generation} on {host} computes {epoch}"
