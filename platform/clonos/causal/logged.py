"""What a log line written in a Spark task is about."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import TaskContext

from clonos.causal.scope import current_epoch


def task_fields() -> Mapping[str, object]:
    """Job, generation, query, epoch and task of the Spark task that runs here; nothing between tasks."""
    epoch = current_epoch()
    if epoch is None:
        return {}
    context = TaskContext.get()
    return {
        "job": epoch.job,
        "generation": epoch.owner.generation,
        "query": epoch.query,
        "epoch": epoch.epoch,
        **({"task": context.partitionId()} if context is not None else {}),
    }
