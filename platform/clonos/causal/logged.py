"""The fields of a log line that is written in a Spark task: job, generation, query, epoch and task."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import TaskContext

from clonos.causal.scope import current_epoch


def task_fields() -> Mapping[str, object]:
    """Job, generation, query, epoch and task of the current Spark task; empty outside tasks."""
    epoch = current_epoch()
    if epoch is None:
        return {}
    context = TaskContext.get()
    return {
        "job": epoch.identity.job,
        "generation": epoch.identity.owner.generation,
        "query": epoch.identity.query,
        "epoch": epoch.identity.epoch,
        **({"task": context.partitionId()} if context is not None else {}),
    }
