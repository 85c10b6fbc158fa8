"""The committed epochs of a job's causal log, with the sums of their markers."""

from __future__ import annotations

from typing import NamedTuple

from clonos.audit.multiset import Sum
from clonos.log.history import Entered, History
from clonos.log.records import Claim, EpochCommitted, Marker, Plan
from clonos.log.topic import CONTROL
from clonos.settings import KafkaSettings


class CommittedEpoch(NamedTuple):
    """A committed epoch of the causal log, and the sum of the markers of all epochs up to it."""

    query: str
    epoch: int
    total: Sum  # of a step of a live epoch: up to that step


_EpochKey = tuple[int, str, int]  # lineage, query, epoch
_PublisherKey = tuple[int, str, int, int]  # of steps: also the number of the publisher


def _key(record: Marker | EpochCommitted) -> _EpochKey:
    return record.owner.lineage, record.query, record.epoch


class CommittedEpochs:
    """The committed epochs of a job's causal log, in the order of their commits, with the sums of their markers.

    Raises:
        CausalLogMissing: The job has no log.
    """

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self._history = History(kafka, job)
        self._markers: dict[_EpochKey, dict[int, Marker]] = {}
        self._waiting: list[EpochCommitted] = []
        self._steps: dict[_PublisherKey, dict[int, Marker]] = {}
        self._counted_steps: dict[_PublisherKey, int] = {}  # the newest step that is counted
        self._counted: set[_EpochKey] = set()
        self.at_least_once = False  # whether a query delivers at least once: it writes no markers
        # The committed epochs whose markers are all visible; the first one stands for the beginning.
        self.epochs = [CommittedEpoch("", -1, Sum())]
        self.repeated: list[str] = []  # lanes that have two markers for one epoch
        self.incomplete: list[str] = []  # epochs without all their markers, after `give_up`
        self.topics: set[str] = set()  # the output topics that claims and plans name
        self._sources: dict[str, set[str]] = {}
        self._lineage = 0
        self.complete = False  # whether the log holds all that was ever written to it, in one lineage
        self._begun: dict[int, bool] = {}  # log partition → whether its first record was at offset 0

    def update(self) -> None:
        """Read what was written since the last call; `BrokerUnavailable` if Kafka did not answer."""
        commits: list[EpochCommitted] = []
        first = self._lineage == 0  # the first record of a log is a claim

        def take(entered: Entered) -> bool:
            record = entered.record
            if entered.partition not in self._begun:
                self._begun[entered.partition] = entered.offset == 0
                # A truncation of lanes may leave control as it is: plans of another query retain it.
                whole = all(self._begun.values())
                if entered.partition != CONTROL:
                    self.complete = self.complete and whole
                elif first:
                    self.complete = whole and isinstance(record, Claim)
            if record is None or entered.void:
                return False
            match record:
                case Claim():
                    self.topics |= record.topic_ids.keys()
                    self._begin(record.owner.lineage)
                    if record.marker is not None:
                        self._add(record.marker)
                case Plan():
                    self.topics |= record.topic_ids.keys()
                    self.at_least_once |= record.delivery == "at-least-once"
                    read = self._sources.setdefault(record.query, set())
                    read |= {part.topic for scan in record.scans for part in scan}
                case Marker():
                    self._add(record)
                case EpochCommitted():
                    # A truncation repeats the commits of queries without new epochs.
                    if _key(record) not in self._counted:
                        commits.append(record)
            return False

        self._history.read(take)
        self._waiting += commits
        self._count()

    def _begin(self, lineage: int) -> None:
        if lineage > self._lineage > 0:
            self.complete = False  # a start from an older point publishes epochs again
        self._lineage = max(self._lineage, lineage)

    def _add(self, marker: Marker) -> None:
        if marker.step:
            publisher = (*_key(marker), marker.input_slice.start)
            if marker.step > self._counted_steps.get(publisher, 0):
                self._steps.setdefault(publisher, {})[marker.step] = marker
            return
        if _key(marker) in self._counted:
            return
        lanes = self._markers.setdefault(_key(marker), {})
        known = lanes.get(marker.lane)
        if known is not None and known != marker:  # a claim repeats the newest marker as it is
            self.repeated.append(f"{marker.query} epoch {marker.epoch} lane {marker.lane}")
        lanes[marker.lane] = marker

    def _count(self) -> None:
        """Add the committed epochs whose markers are visible, and the steps of live epochs."""
        if not self.complete and len(self.epochs) == 1:
            del self._waiting[: self._truncated()]
        for key, steps in sorted(self._steps.items()):
            _, query, epoch, _ = key
            if key not in self._counted_steps:
                first = min(steps)
                # Lanes are read one after the other: of the first steps, one may be missing that is read next.
                lanes = steps[first].input_slice.until
                self._counted_steps[key] = 0 if first <= lanes else first - 1
            counted = self._counted_steps[key]
            while (marker := steps.pop(counted + 1, None)) is not None:
                self._counted_steps[key] = counted = marker.step
                published = Sum(marker.records, int.from_bytes(marker.digest[8:]))
                self.epochs.append(CommittedEpoch(query, epoch, self.epochs[-1].total.plus(published)))
        while self._waiting:
            commit = self._waiting[0]
            if commit.offsets:  # of a live epoch, whose steps are counted
                del self._waiting[0]
                continue
            published = self._published(commit)
            if published.records < commit.records:
                return
            del self._waiting[0]
            self._markers.pop(_key(commit), None)
            self._counted.add(_key(commit))
            self.epochs.append(CommittedEpoch(commit.query, commit.epoch, self.epochs[-1].total.plus(published)))

    def _truncated(self) -> int:
        """Return the number of oldest commits without all their markers.

        Each query's lanes are truncated on their own, so the oldest commits with markers of one query may precede the
        newest commits without markers of another.
        """
        begun: set[str] = set()  # queries that have a commit with its markers
        truncated = 0
        for number, commit in enumerate(self._waiting, 1):
            if commit.query in begun or not commit.records or commit.offsets:
                continue
            if self._published(commit).records >= commit.records:
                begun.add(commit.query)
            else:
                truncated = number
        return truncated

    def _published(self, commit: EpochCommitted) -> Sum:
        published = Sum()
        for marker in self._markers.get(_key(commit), {}).values():
            published = published.plus(Sum(marker.records, int.from_bytes(marker.digest[8:])))
        return published

    def give_up(self) -> None:
        """Count the epochs that still miss markers as incomplete."""
        self.incomplete += [f"{commit.query} epoch {commit.epoch}" for commit in self._waiting]

    @property
    def outputs(self) -> set[str]:
        """The known topics of the job's sinks; empty if one query may read what another publishes."""
        sources = set[str]().union(*self._sources.values())
        alike = all(read == sources for read in self._sources.values())
        return self.topics - sources if alike else set()

    def close(self) -> None:
        """Close the readers of the log."""
        self._history.close()
