"""Checks, after a claim, that a job continues the one that the causal log knows: the same sinks, the same topics.

A renamed sink would publish all of its input again, and a removed one would leave an epoch published in part. A topic
that was deleted and created again has other records at the old offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clonos.driver.resolutions import RequestedResolution
from clonos.driver.topic_ids import created_again
from clonos.errors import CheckpointMismatch, SinkRemoved
from clonos.log.claiming import Ownership
from clonos.log.control import ControlState
from clonos.log.records import Resolution
from clonos.resolve_command import resolve_command


def known_sinks(state: ControlState) -> frozenset[str]:
    """Return the sinks that have planned or committed an epoch in the newest lineage."""
    return frozenset(state.committed) | frozenset(query for query, _ in state.plans)


def check_sinks(own: Ownership, sinks: Sequence[str], requests: Sequence[RequestedResolution], code: str) -> list[str]:
    """Refuse a job that lacks a sink which the log knows.

    Args:
        own: The claimed log; its claim names the dropped sinks.
        sinks: The names of the job's sinks.
        requests: The user's decisions; ``keep`` ends the epoch in doubt of a dropped sink.
        code: Hash of the job's code.

    Returns:
        The sinks that are new to a job which has run before.

    Raises:
        SinkRemoved: A sink is missing and not declared as dropped, or was dropped with an epoch in doubt.
    """
    state = own.state
    known = known_sinks(state)
    missing = sorted(known - set(sinks) - state.dropped)
    if missing:
        new = sorted(set(sinks) - known)
        raise SinkRemoved(
            f"The causal log has output of the sinks {missing}, which the job does not define"
            + (f"; it defines {new}, which would publish all of its input." if new else "."),
            hint=f"give the sink its old name, or declare droppedSinks: [{', '.join(missing)}] in the job.yaml.",
        )
    for name in sorted(known & state.dropped):
        epoch, committed = state.newest_plan(name), state.committed.get(name, -1)
        if epoch <= committed or (name, epoch) in state.resolutions:
            continue
        if RequestedResolution(name, epoch, "keep") not in requests:
            raise SinkRemoved(
                f"The dropped sink {name} has epoch {epoch} in doubt: some of its lanes may be published.",
                hint="run the job with the sink once to finish the epoch, or leave it as it is: "
                f"{resolve_command(own.job, name, epoch, 'keep')}.",
            )
        record = Resolution(own.owner, name, epoch, "keep", code)
        state.take(own.control.append(record), record)
    return sorted(set(sinks) - known) if known else []


def check_sink_topic(own: Ownership, query: str, epoch: int, now: Mapping[str, str]) -> list[str]:
    """Refuse to finish an epoch if a part of it was published to a topic that was then deleted and created again.

    Args:
        own: The claimed log.
        query: The query.
        epoch: Its epoch in doubt.
        now: Topic → id, of the topic that the query writes.

    Returns:
        The topics with another id, if nothing of the epoch was published to them.

    Raises:
        CheckpointMismatch: A lane of the epoch is published, and the user has not decided to publish it again.
    """
    changed = created_again(own.state.topic_ids, now)
    decision = own.state.resolutions.get((query, epoch))
    published = any(
        marker is not None and (marker.query, marker.epoch, marker.owner.lineage) == (query, epoch, own.owner.lineage)
        for marker in own.markers.values()
    )
    if changed and published and decision is None:
        raise CheckpointMismatch(
            f"The sink topic {changed[0]} was deleted and created again while epoch {epoch} of {query} was in doubt: "
            "the lanes that were published are gone.",
            hint=f"publish the epoch again, or leave them out (--keep): "
            f"{resolve_command(own.job, query, epoch, 'republish')}.",
        )
    return changed
