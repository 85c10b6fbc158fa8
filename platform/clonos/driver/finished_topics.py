"""Deleted topics of a pattern that a query has read to their end: the query continues without them.

Each plan of a query with a pattern names the topics that its epoch reads to the end. A topic with further records
is in the plan of each epoch, because Spark gives every such partition a share of a bounded epoch.
"""

from __future__ import annotations

from collections.abc import Collection

from clonos.driver.checkpoint import progress_of
from clonos.extend.source import Progress
from clonos.log.control import ControlState
from clonos.log.records import Plan


def finished_topics(state: ControlState, query: str, committed: int, deleted: Collection[str]) -> frozenset[str]:
    """Return the topics among `deleted` that the query had read to their end when it last planned an epoch.

    Args:
        state: The state of the causal log.
        query: Name of the query.
        committed: The newest epoch that its checkpoint has committed; -1: none.
        deleted: Topics of the checkpoint's progress that do not exist any more.
    """
    if not deleted:
        return frozenset()
    replayed = [plan for (name, epoch), (_, plan) in state.plans.items() if name == query and epoch > committed]
    required = frozenset[str]().union(*map(_topics, replayed))
    finished = set[str]()
    if (newest := state.plan(query, committed)) is not None:
        finished |= newest.finished_topics | (set(deleted) - _topics(newest))
    if (in_doubt := state.plan(query, committed + 1)) is not None:  # it was planned without them
        finished |= set(deleted) - progress_of(in_doubt.offsets).keys()
    return frozenset(deleted) & finished - required


def with_replay(start: Progress, plan: Plan | None) -> Progress:
    """`start` with the partitions that only the epoch to be replayed reads, from their first offset in its plan.

    Args:
        start: The progress of the checkpoint.
        plan: The plan of the epoch after the checkpoint's newest; None: the epoch is not replayed.
    """
    progress = {topic: dict(partitions) for topic, partitions in start.items()}
    for part in (part for scan in (plan.scans if plan is not None else ()) for part in scan):
        partitions = progress.setdefault(part.topic, {})
        if part.partition not in start.get(part.topic, {}):
            partitions[part.partition] = min(part.start, partitions.get(part.partition, part.start))
    return progress


def without(progress: Progress, topics: Collection[str]) -> Progress:
    """`progress` without `topics`."""
    return {topic: partitions for topic, partitions in progress.items() if topic not in topics}


def _topics(plan: Plan) -> frozenset[str]:
    return frozenset(part.topic for scan in plan.scans for part in scan)
