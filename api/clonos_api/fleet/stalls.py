"""Which jobs should publish and do not, and what happens there now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from clonos.resources.jobs import DesiredState, JobState
from clonos.resources.recovery_descriptions import PLANNED
from clonos.units import parse_duration
from clonos_api.fleet.facts import Facts, queries_of
from clonos_api.fleet.lines import Stall
from clonos_api.store.tables import JobRow, RecoveryRow

# Without output for this time a job stalls, if it has input and its epochs usually take less.
_PATIENCE_S: Final = 2.0
_SLOW: Final = 3  # times the duration of its slow epochs
# Agents push events each second, so the newest epoch may be this much newer than the store knows.
_PUSHES_S: Final = 1.0
_WORKS: Final = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING)


def stall_of(job: JobRow, facts: Facts) -> Stall | None:
    """The stall of a job; None if it publishes, has no input, or is not to run."""
    if job.desired_state != DesiredState.RUNNING or job.state not in _WORKS:
        return None
    metrics = job.metrics or {}
    recovery = facts.recoveries.get(job.id)
    if recovery is not None and recovery.ended_at is None and recovery.body["cause"] not in PLANNED:
        output = _moment(metrics.get("at"))
        since = min(recovery.started_at, output) if output is not None else recovery.started_at
        return Stall(since, _step(recovery, metrics))
    if job.state != JobState.RUNNING:
        return None
    silent = _moment((metrics.get("kafka") or {}).get("silent_since"))
    if silent is not None:
        return Stall(silent, "Kafka does not answer its driver")
    waiting = metrics.get("waiting")
    if waiting:
        return Stall(_moment(waiting["since"]) or job.state_since, f"its driver waits: {waiting['what']}")
    return _without_epochs(job, facts.at)


def _without_epochs(job: JobRow, at: datetime) -> Stall | None:
    """The stall of a job whose driver reports nothing wrong, although records are waiting."""
    metrics = job.metrics or {}
    if not sum(sum(query["lag"].values()) for query in queries_of(job) if query.get("lag")):
        return None
    received = _moment(metrics.get("received_at")) or _moment(metrics.get("at"))
    since = max(job.state_since, received) if received is not None else job.state_since
    slow_s = float(metrics.get("slow_epoch_ms", 0)) / 1000
    interval_s = parse_duration(((job.spec.get("spec") or {}).get("trigger") or {}).get("interval") or "0s")
    limit_s = max(_SLOW * slow_s, _PATIENCE_S) + interval_s + _PUSHES_S
    if at - since <= timedelta(seconds=limit_s):
        return None
    return Stall(since, "records are waiting, and no epoch has finished")


def _step(recovery: RecoveryRow, metrics: dict[str, Any]) -> str:
    """What happens in a recovery now."""
    body = recovery.body
    host, generation = body.get("to_host"), body.get("generation")
    if host is None:
        return "a new driver is being placed"
    if generation is None:
        return f"{'the standby' if body.get('standby') else 'a new driver'} on {host} starts to claim the causal log"
    epochs = [int(query.get("epoch", -1)) + 1 for query in (metrics.get("queries") or {}).values()]
    epoch = f"epoch {epochs[0]}" if len(epochs) == 1 else "its first epoch"
    return f"generation {generation} on {host} computes {epoch}"


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
