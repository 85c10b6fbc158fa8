"""The epochs in doubt of a job at its start: which code planned them, and which code finishes them.

An epoch in doubt is replayed by the code that planned it. Of several codes each finishes its own epochs, in runs that
end then (`RunOptions.finish_in_doubt`). An epoch without published output may be computed by other code, if its own
code cannot finish it (`RunOptions.accept_unpublished`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from clonos.driver.code_identity import changed_parts
from clonos.errors import CheckpointMismatch
from clonos.extend.sink import Sink
from clonos.log.claiming import Ownership
from clonos.log.records import Plan
from clonos.resolve_command import new_code_command


@dataclass(frozen=True)
class EpochInDoubt:
    """An epoch that the log holds a plan of, and that Spark's checkpoint has not committed."""

    query: str  # the query, which has the name of its sink
    epoch: int  # Spark's batch id
    code: str  # hash of the code that planned it
    published: bool  # whether readers may have output of it

    def __str__(self) -> str:
        """For messages: ``epoch 12 of output``."""
        return f"epoch {self.epoch} of {self.query}"


def epochs_in_doubt(own: Ownership, committed: Mapping[str, int], sinks: Iterable[Sink]) -> list[EpochInDoubt]:
    """Return the epochs in doubt, without rescales, which compute nothing.

    Args:
        own: The claimed log.
        committed: Query → the newest epoch that Spark's checkpoint has committed.
        sinks: The sinks of the job's queries.
    """
    in_doubt = []
    for sink in sinks:
        query = sink.name
        for epoch in own.state.plans_beyond(query, committed.get(query, -1)):
            plan = own.state.plan(query, epoch)
            if plan is None or plan.rescaled_to:
                continue
            published = (
                epoch <= own.state.committed.get(query, -1)
                or plan.delivery == "at-least-once"
                or may_be_visible(own, plan, sink)
            )
            in_doubt.append(EpochInDoubt(query, epoch, plan.code, published))
    return in_doubt


def may_be_visible(own: Ownership, plan: Plan, sink: Sink) -> bool:
    """Whether readers may have output of a planned epoch, although the log has not committed the epoch.

    Args:
        own: The claimed log, so that no other driver publishes.
        plan: The plan of the epoch.
        sink: The sink of its query. If markers do not prove its output, the output may be visible.
    """
    if plan.rescaled_to:
        return False
    if not getattr(sink, "proved_by_markers", False):
        return True
    return any(_is_of(own, partition, plan.query, plan.epoch) for partition in plan.log_partitions)


def of_other_code(
    own: Ownership, epochs: Iterable[EpochInDoubt], code: str, requested: Collection[tuple[str, int]]
) -> list[EpochInDoubt]:
    """Return the epochs that `code` may not replay: other code planned them, and no decision is recorded or requested.

    Args:
        own: The claimed log.
        epochs: Epochs in doubt.
        code: Hash of the job's code.
        requested: Query and epoch of each decision that this start requests.
    """

    def is_decided(epoch: EpochInDoubt) -> bool:
        decided = own.state.resolutions.get((epoch.query, epoch.epoch))
        return (epoch.query, epoch.epoch) in requested or (decided is not None and decided.code == code)

    return [epoch for epoch in epochs if epoch.code != code and not is_decided(epoch)]


def last_own(epochs: Iterable[EpochInDoubt], code: str) -> dict[str, int]:
    """Query → the newest of the epochs in doubt that `code` finishes: those before the first one of other code."""
    last: dict[str, int] = {}
    ended = set[str]()
    for epoch in epochs:
        if epoch.code != code:
            ended.add(epoch.query)
        elif epoch.query not in ended:
            last[epoch.query] = epoch.epoch
    return last


def code_changed(
    job: str, epochs: list[EpochInDoubt], code: str, codes: Mapping[str, Mapping[str, str]]
) -> CheckpointMismatch:
    """Return the error about epochs in doubt that other code planned.

    Args:
        job: Name of the job.
        epochs: The epochs, at least one.
        code: Hash of the job's code.
        codes: Hash of a code → its parts.
    """
    planned_by = list(dict.fromkeys(epoch.code for epoch in epochs))
    changed = [changed_parts(codes.get(planned, {}), codes.get(code, {})) for planned in planned_by]
    parts = "; ".join(dict.fromkeys(filter(None, changed)))
    several = len(epochs) > 1
    return CheckpointMismatch(
        f"The job's code changed while {' and '.join(map(str, epochs))} {'were' if several else 'was'} in doubt"
        f"{parts and f': {parts}'}.",
        hint=f"let the old code finish {'them' if several else 'it'}: `clonos run … --finish-in-doubt` with the old "
        f"files{', once for each version of them' if len(planned_by) > 1 else ''}; or accept the new code for all "
        f"epochs in doubt: {new_code_command(job)}.",
        codes=planned_by,
    )


def _is_of(own: Ownership, partition: int, query: str, epoch: int) -> bool:
    marker = own.markers.get(partition)
    return (
        marker is not None
        and (marker.query, marker.epoch) == (query, epoch)
        and marker.owner.lineage == own.owner.lineage
    )
