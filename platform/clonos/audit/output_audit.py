"""Audits a job's output from outside: what `read_committed` readers see must be what the markers say was published.

Each marker holds the number of records of its lane and their multiset digest, which is a sum. So the sum over the
markers of some epochs equals the digest of the records that these epochs published. A reader does not see where an
epoch ends. The auditor therefore compares the state of the output at several moments, *snapshots*, with the sums up to
each committed epoch. Two snapshots that have the same distance from two epochs prove all epochs between these: a record
that was published twice, or not at all, or with other content, would change the distance.

If neither the log nor the output was truncated, the beginning of both is the first such pair. For a job at rest with a
truncated log, the output itself shows earlier moments: each transaction leaves a gap in the offsets of its partitions.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from clonos.audit.committed_epochs import CommittedEpoch, CommittedEpochs
from clonos.audit.multiset import Sum
from clonos.audit.visible_output import OnRead, VisibleOutput
from clonos.deadline import Deadline
from clonos.settings import KafkaSettings

_PAUSE_S: Final = 0.2
_MISFIT: Final = "Of earlier epochs, no moment of the output fits: it has other records, or transactions overlapped."


@dataclass(frozen=True)
class OutputAudit:
    """The result of an audit."""

    verified: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Query → first and last epoch that is proved. Empty: none."""
    records: int = 0
    """Number of records that these epochs published."""
    repeated: tuple[str, ...] = ()
    """Lanes that have two markers for one epoch, as ``query epoch N lane M``: they were published twice."""
    incomplete: tuple[str, ...] = ()
    """Committed epochs whose markers have fewer records than their commit, as ``query epoch N``."""
    distance: int | None = None
    """For an output and a log that are complete, and contradict each other: number of records that were published more
    (above 0) or less than the markers say; 0: as many, with other content. None otherwise.
    """
    reason: str = ""
    """Why nothing was proved, or not the newest epochs; empty if everything observed was."""

    @property
    def clean(self) -> bool:
        """Whether epochs are proved up to the newest one, and nothing contradicts the log."""
        return bool(self.verified) and not (self.repeated or self.incomplete or self.reason)

    @property
    def contradicted(self) -> bool:
        """Whether something contradicts the log. Neither this nor `clean`: not enough was proved."""
        return bool(self.repeated or self.incomplete or self.distance is not None)


def audit_output(
    kafka: KafkaSettings,
    job: str,
    *,
    topics: Collection[str] = (),
    seconds: float = 10.0,
    on_read: OnRead = lambda _read, _total: None,
) -> OutputAudit:
    """Audit the output of a job.

    Args:
        kafka: The Kafka cluster of the log and of the output.
        job: The job's name.
        topics: All topics to which the job publishes; empty: those that the causal log names. No other program may
            write to them.
        seconds: How long to observe a running job, and then to wait for a snapshot between two epochs. A log and an
            output that are complete need one look.
        on_read: Called while the output is read, with the number of records that were read, and of all.

    Raises:
        CausalLogMissing: The job has no log.
        BrokerUnavailable: Kafka did not answer.

    Example:
        >>> audit_output(KafkaSettings(), "words").clean  # doctest: +SKIP
        True
    """
    log = CommittedEpochs(kafka, job)
    try:
        log.update()
        names = set(topics) or log.outputs
        if not names:
            return OutputAudit(
                reason="The causal log does not show which topics are the sinks': name all of them with --topic."
            )
        if log.at_least_once:
            return OutputAudit(reason="The job delivers at least once, as configured: it writes no markers.")
        output = VisibleOutput(kafka, names, on_read)
        try:
            return _observe(log, output, seconds)
        finally:
            output.close()
    finally:
        log.close()


def _observe(log: CommittedEpochs, output: VisibleOutput, seconds: float) -> OutputAudit:
    snapshots = [Sum()] if output.complete else []
    deadline, last = Deadline(seconds), Deadline(2 * seconds)
    misfit = ""
    while True:
        snapshots.append(output.snapshot())
        log.update()
        late = deadline.passed()
        whole = log.complete and output.complete
        if whole or late:
            fit = _fit(log.epochs, snapshots, whole=whole)
            if not whole and not _span(fit.epochs):  # a job at rest: what its output was before
                sums = [after.total.minus(before.total) for before, after in itertools.pairwise(log.epochs)]
                earlier = output.earlier(reversed(sums))
                fit = _fit(log.epochs, [*earlier.sums, *snapshots], whole=whole)
                if _span(fit.epochs) and not earlier.fits:
                    misfit = _MISFIT
            # The newest snapshot may be in the middle of an epoch: then another one is taken.
            if fit.newest or last.passed():
                log.give_up()
                result = _result(log, output.topics, snapshots, fit, whole=whole)
                return replace(result, reason=result.reason or misfit)
        time.sleep(_PAUSE_S)


class _Fit(NamedTuple):
    """The snapshots and epochs of one distance: the epochs, in order, and whether the newest snapshot is among them."""

    epochs: list[CommittedEpoch]
    newest: bool


def _fit(epochs: Sequence[CommittedEpoch], snapshots: Sequence[Sum], *, whole: bool) -> _Fit:
    """Return the distance that spans the most records; with `whole`, the distance 0."""
    fits: dict[Sum, list[CommittedEpoch]] = {}
    for epoch in epochs:
        for snapshot in dict.fromkeys(snapshots):
            fits.setdefault(snapshot.minus(epoch.total), []).append(epoch)
    best = _Fit([], newest=False)
    for distance, same in fits.items():
        if _span(same) > _span(best.epochs) and (distance == Sum() or not whole):
            best = _Fit(same, newest=snapshots[-1].minus(same[-1].total) == distance)
    return best


def _result(
    log: CommittedEpochs, topics: Sequence[str], snapshots: Sequence[Sum], fit: _Fit, *, whole: bool
) -> OutputAudit:
    repeated, incomplete = tuple(log.repeated), tuple(log.incomplete)
    distance = None
    if whole and not fit.newest and len(log.epochs) > 1:
        distance = snapshots[-1].records - log.epochs[-1].total.records
    if not _span(fit.epochs):
        return OutputAudit({}, 0, repeated, incomplete, distance, _reason(log, topics, snapshots, distance))
    first, last = (log.epochs.index(epoch) for epoch in (fit.epochs[0], fit.epochs[-1]))
    reason = (
        ""
        if fit.newest
        else f"Of later epochs, no moment of the output fits. {_reason(log, topics, snapshots, distance)}"
    )
    records = fit.epochs[-1].total.records - fit.epochs[0].total.records
    return OutputAudit(_ranges(log.epochs[first + 1 : last + 1]), records, repeated, incomplete, distance, reason)


def _reason(log: CommittedEpochs, topics: Sequence[str], snapshots: Sequence[Sum], distance: int | None) -> str:
    if len(log.epochs) == 1:
        return "No committed epoch is in the causal log."
    if distance == 0:
        return f"{', '.join(topics)}: as many records as the markers say, with other content."
    if distance is not None:
        records = "1 record" if abs(distance) == 1 else f"{abs(distance)} records"
        if distance > 0:
            hint = "If another program writes to one of them, name the topics of this job alone with --topic."
        else:
            hint = "If the job publishes to other topics too, name all of them with --topic."
        return f"{', '.join(topics)}: {records} {'more' if distance > 0 else 'less'} than the markers say. {hint}"
    if len({*snapshots} - {Sum()}) == 1:  # a complete output has one at its beginning, too
        return "Nothing was published during the audit, and older records or markers were deleted."
    return "No moment of the output fits the markers: another program may write to the topics, or records differ."


def _span(pairs: Sequence[CommittedEpoch]) -> int:
    """Return the number of records between the first and the last of the pairs."""
    return pairs[-1].total.records - pairs[0].total.records if pairs else 0


def _ranges(epochs: Iterable[CommittedEpoch]) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    for ended in epochs:
        first, _ = ranges.get(ended.query, (ended.epoch, 0))
        ranges[ended.query] = (first, ended.epoch)
    return ranges
