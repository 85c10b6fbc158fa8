"""All jobs that have a causal log in a cluster: who owns them, how far they are, how much they keep."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from clonos.log.control import ControlState
from clonos.log.history import Entered, History, logged_jobs
from clonos.log.reading import Positioned
from clonos.log.records import Claim, Determinants, Owner
from clonos.log.topic import CONTROL
from clonos.settings import KafkaSettings

_AT_ONCE: Final = 8


@dataclass
class QueryOverview:
    """One query of a job.

    Attributes:
        lanes: How many sink lanes it has had.
        planned: Its newest planned epoch; -1 if none.
        ended: Its newest ended epoch; -1 if none.
    """

    lanes: int = 0
    planned: int = -1
    ended: int = -1

    @property
    def in_doubt(self) -> int:
        """Epochs planned and not ended: one while an epoch runs, or after a crash."""
        return max(0, self.planned - self.ended)


@dataclass
class Overview:
    """One job, as its log tells.

    Attributes:
        owner: Of the newest claim; None if nobody claimed yet.
        since: When it claimed first, in ms, as far as the log still tells.
        size: Bytes of all values.
        determinants: Bytes of the values that are determinants.
        foreign: How many records are not ours.
    """

    job: str
    partitions: int
    owner: Owner | None = None
    since: int | None = None
    queries: dict[str, QueryOverview] = field(default_factory=dict)
    records: int = 0
    size: int = 0
    determinants: int = 0
    foreign: int = 0


def survey(kafka: KafkaSettings) -> list[Overview]:
    """Every job that has a log, by name.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
    jobs = logged_jobs(kafka)
    if not jobs:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(jobs)), "clonos-survey") as pool:
        return list(pool.map(lambda job: overview(kafka, job, jobs[job]), jobs))


def overview(kafka: KafkaSettings, job: str, partitions: int) -> Overview:
    """One job, from its whole log (truncation keeps it short)."""
    found = Overview(job, partitions)
    state = ControlState()
    claims: list[Claim] = []

    def take(entered: Entered) -> bool:
        found.records += 1
        found.size += entered.size
        record = entered.record
        if record is None:
            found.foreign += 1
        elif isinstance(record, Determinants):
            found.determinants += entered.size
        elif entered.partition == CONTROL:
            if isinstance(record, Claim):
                claims.append(record)
            state.fold([Positioned(entered.offset, record)])
        return False  # counted, not kept

    history = History(kafka, job)
    try:
        history.read(take)
    finally:
        history.close()
    found.owner = state.owner
    found.since = next((claim.at for claim in claims if claim.owner == state.owner), None)
    for sink, _ in state.lanes:
        found.queries.setdefault(sink, QueryOverview()).lanes += 1
    for name, epoch in state.ended.items():
        found.queries.setdefault(name, QueryOverview()).ended = epoch
    for name, _ in state.plans:
        one = found.queries.setdefault(name, QueryOverview())
        one.planned = state.newest_plan(name)
    for one in found.queries.values():
        one.planned = max(one.planned, one.ended)  # its plan may be truncated
    return found
