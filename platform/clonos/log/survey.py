"""An overview of all jobs that have a causal log in a cluster: owner, progress and size of each."""

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

_PARALLEL_JOBS: Final = 8


@dataclass
class QueryOverview:
    """One query of a job, as its causal log shows it."""

    lanes: int = 0  # number of sink lanes that the log has assigned
    planned: int = -1  # newest planned epoch; -1 if none
    committed: int = -1  # newest committed epoch; -1 if none

    @property
    def in_doubt(self) -> int:
        """Number of epochs that are planned and not committed: one while an epoch runs, or after a crash."""
        return max(0, self.planned - self.committed)


@dataclass
class Overview:
    """One job, as its causal log shows it."""

    job: str
    partitions: int  # number of the log's partitions
    owner: Owner | None = None  # owner of the newest claim; None before the first claim
    since: int | None = None  # time of that owner's oldest claim in the log, in ms since 1970
    queries: dict[str, QueryOverview] = field(default_factory=dict)
    records: int = 0  # number of records in the log, without truncated ones
    size: int = 0  # size of all values in bytes
    determinants: int = 0  # size of the determinants in bytes
    foreign: int = 0  # number of records that Clonos did not write


def survey(kafka: KafkaSettings) -> list[Overview]:
    """Return an overview of every job that has a causal log in this Kafka cluster, sorted by name."""
    jobs = logged_jobs(kafka)
    if not jobs:
        return []
    with ThreadPoolExecutor(min(_PARALLEL_JOBS, len(jobs)), "clonos-survey") as pool:
        return list(pool.map(lambda job: overview(kafka, job, jobs[job]), jobs))


def overview(kafka: KafkaSettings, job: str, partitions: int) -> Overview:
    """Return an overview of one job, from its whole causal log, which truncation keeps short."""
    result = Overview(job, partitions)
    state = ControlState()
    claims: list[Claim] = []

    def take(entered: Entered) -> bool:
        result.records += 1
        result.size += entered.size
        record = entered.record
        if record is None:
            result.foreign += 1
        elif isinstance(record, Determinants):
            result.determinants += entered.size
        elif entered.partition == CONTROL:
            if isinstance(record, Claim):
                claims.append(record)
            state.fold([Positioned(entered.offset, record)])
        return False  # only counted

    history = History(kafka, job)
    try:
        history.read(take)
    finally:
        history.close()
    result.owner = state.owner
    result.since = next((claim.timestamp_ms for claim in claims if claim.owner == state.owner), None)
    for sink, _ in state.lanes:
        result.queries.setdefault(sink, QueryOverview()).lanes += 1
    for name, epoch in state.committed.items():
        result.queries.setdefault(name, QueryOverview()).committed = epoch
    for (name, epoch), (_, plan) in state.plans.items():
        shown = result.queries.setdefault(name, QueryOverview())
        if not plan.live:  # it is never in doubt
            shown.planned = max(shown.planned, epoch)
    for query in result.queries.values():
        query.planned = max(query.planned, query.committed)  # its plan may be truncated
    return result
