"""Which jobs should publish and do not, and what happens there now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from clonos.resources.jobs import DesiredState, JobState
from clonos.resources.recovery_descriptions import PLANNED
from clonos.units import parse_duration
from clonos_api.fleet.facts import Facts
from clonos_api.fleet.lines import Stall
from clonos_api.store import recoveries
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
    """The stall of a job; None if it publishes, has no input, or is not to run."""
    if job.desired_state != DesiredState.RUNNING or job.state not in _WORKS:
        return None
    metrics = job.metrics or {}
    recovery = facts.recoveries.get(job.id)
    if recovery is not None and recovery.ended_at is None and recovery.body["cause"] not in PLANNED:
        return Stall(recoveries.silent_since(recovery, metrics), _step(recovery, metrics))
    if job.state != JobState.RUNNING:
        return None
    silent = _moment((metrics.get("kafka") or {}).get("silent_since"))
    if silent is not None:
        return Stall(silent, "Kafka does not answer its driver")
    waiting = metrics.get("waiting")
    if waiting:
        return Stall(_moment(waiting["since"]) or job.state_since, f"its driver waits: {waiting['what']}")
    return _without_epochs(job, facts.at) or _without_first_epoch(job, facts)


def computes_first_epoch(job: JobRow) -> datetime | None:
    """Since when the driver of a RUNNING job owns the causal log without an epoch; None: it has finished one, or has
    reported its unread records.
    """
    return _moment((job.metrics or {}).get("first_epoch_since")) if job.state == JobState.RUNNING else None


def _without_first_epoch(job: JobRow, facts: Facts) -> Stall | None:
    since = computes_first_epoch(job)
    if since is None or facts.at - since <= timedelta(seconds=_FIRST_S):
        return None
    host, _ = facts.drivers.get(job.run or "", ("", ""))
    on_host = f" on {host}" if host else ""
    return Stall(since, f"generation {job.generation}{on_host} has claimed the causal log, and finished no epoch yet")


def _without_epochs(job: JobRow, at: datetime) -> Stall | None:
    """The stall of a query whose driver reports nothing wrong, although records are waiting."""
    interval_s = parse_duration(((job.spec.get("spec") or {}).get("trigger") or {}).get("interval") or "0s")
    queries = (job.metrics or {}).get("queries") or {}
    stalled: dict[str, datetime] = {}
    for name, query in queries.items():
        since, slow_s = _waiting_since(job, query), float(query.get("slow_epoch_ms") or 0.0) / 1000
        limit_s = max(_SLOW * slow_s, _PATIENCE_S) + interval_s + _PUSHES_S
        if since is not None and at - since > timedelta(seconds=limit_s):
            stalled[name] = since
    if not stalled:
        return None
    name, since = min(stalled.items(), key=lambda item: (item[1], item[0]))
    of_query = f" for query {name}" if len(queries) > 1 else ""
    return Stall(since, f"records are waiting{of_query}, and no epoch has finished")


def _waiting_since(job: JobRow, query: Mapping[str, Any]) -> datetime | None:
    """Since when records wait for a query without an epoch; None: none wait."""
    since = _moment(query.get("waiting_since"))
    return None if since is None else max(job.state_since, since)


def _step(recovery: RecoveryRow, metrics: dict[str, Any]) -> str:
    """What happens in a recovery now."""
    body = recovery.body
    host, generation = body.get("to_host"), body.get("generation")
    if host is None:
        return "a new driver is being placed"
    if generation is None:
        return f"{'the standby' if body.get('standby') else 'a new driver'} on {host} starts to claim the causal log"
    queries = metrics.get("queries") or {}
    waiting = recoveries.waiting_queries(recovery, metrics) or queries
    epoch = "its first epoch"
    if len(waiting) == 1:
        ((name, query),) = waiting.items()
        epoch = f"epoch {int(query.get('epoch', -1)) + 1}{f' of {name}' if len(queries) > 1 else ''}"
    return f"generation {generation} on {host} computes {epoch}"


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
