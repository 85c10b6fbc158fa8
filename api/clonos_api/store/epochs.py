"""Epochs, and all else that drivers tell: their event files are ingested here, each byte once, with what it says.

`generation`, `metrics`, `restarts` and `observed_version` of a job and `events_offset` and `told` of a run are
written here alone, with the job's row locked. Two runs of one job (a lost host that comes back) may be told about in
any order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError, NotFound, SpecError
from clonos.resources.hosts import EventsPiece
from clonos.resources.jobs import OperatorMetrics, QueryMetrics
from clonos_api.store import counters, exceptions, generations, pushed, recoveries, standbys
from clonos_api.store.bulk import insert_all, update_all
from clonos_api.store.ingest import (
    Claimed,
    Ended,
    EpochDone,
    Fact,
    Following,
    Lag,
    OpenTransactions,
    Retention,
    Told,
    Troubled,
    Truncated,
    Unreadable,
    fold,
    read_lines,
)
from clonos_api.store.pushed import Locked, LockedRun
from clonos_api.store.tables import AgentRow, EpochRow, GenerationRow, JobRow, RunRow

# Names of the figures of an ``epoch`` event, and of what they are summed as.
_SUMMED: Final = {
    "read": "records_in",
    "records": "records_out",
    "recorded": "recorded_determinants",
    "recorded_bytes": "recorded_bytes",
    "replayed": "replayed_determinants",
    "published_lanes": "published_lanes",
    "skipped_lanes": "skipped_lanes",
    "diverged_lanes": "diverged_lanes",
    "dead_letters": "dead_letters",
    "dropped": "dropped",
}
# A job names its operators in its code; what is more is some mistake of its file's.
_OPERATORS: Final = 200
_Key = tuple[int, str, int]
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Epoch:
    """An `EpochRow` that is, or is to be."""

    completed_at: datetime
    body: dict[str, Any]
    changed: bool = False


async def ingest(session: AsyncSession, run: str, offset: int, lines: Sequence[str], *, gap: bool = False) -> int:
    """Take in lines of a run's event file.

    Args:
        session: A transaction.
        run: Id of the run.
        offset: Byte of the file at which the first line begins.
        lines: Whole lines as the driver wrote them, without their ends.
        gap: What is between the byte that is known and `offset` is lost on the host: go on here.

    Returns:
        The byte up to which the file is known now; what to send next begins there.

    Raises:
        NotFound: There is no such run.
        SpecError: The lines are not from the same file.
    """
    locked = await pushed.lock(session, events=[run])
    taken = await ingest_all(session, locked, [EventsPiece(run=run, offset=offset, lines=list(lines), gap=gap)])
    return pushed.answer(taken[0])


async def ingest_all(session: AsyncSession, locked: Locked, pieces: Sequence[EventsPiece]) -> list[int | ClonosError]:
    """Take in lines of several runs' event files, each as `ingest` does; one that is wrong holds up no other.

    Args:
        session: A transaction.
        locked: The jobs and runs.
        pieces: One of a run at the most.
    """
    ends: list[int | ClonosError] = []
    jobs: dict[str, _Ingestion] = {}
    offsets = []
    for piece in pieces:
        await asyncio.sleep(0)  # a push tells of many runs, and heartbeats are not to wait for all of them
        run = locked.runs.get(piece.run)
        if run is None:
            ends.append(NotFound(f"There is no run {piece.run}."))
            continue
        try:
            read, end = read_lines(run.events_offset, piece.offset, piece.lines, gap=piece.gap)
        except SpecError as error:
            ends.append(error)
            continue
        ends.append(end)
        if end == run.events_offset:
            continue
        told = Told(**run.told)
        facts = fold(told, read)
        offsets.append({"id": run.id, "events_offset": end, "told": told.dump()})
        job = locked.jobs[run.job]
        one = jobs.setdefault(run.job, _Ingestion(session, job.id, job.generation, job.restarts, job.metrics))
        await one.take(run, facts)
    if offsets:
        await update_all(session, RunRow, offsets, keys=("id",))
        await _write(session, list(jobs.values()))
    return ends


@dataclass
class _Ingestion:
    """What one push tells of a job: what is known of it, and what the facts change."""

    session: AsyncSession
    job: str
    generation: int
    restarts: int
    known: dict[str, Any] | None
    sums: Counter[str] = field(default_factory=Counter)
    epochs: dict[_Key, _Epoch] = field(default_factory=dict)
    finished: Counter[tuple[int, int]] = field(default_factory=Counter)
    published: Counter[tuple[int, int]] = field(default_factory=Counter)
    columns: dict[str, Any] = field(default_factory=dict)
    last_at: datetime | None = None
    truncated_at: datetime | None = None

    def __post_init__(self) -> None:
        self.metrics: dict[str, Any] = {"at": None, "restarts": 0, "queries": {}, **(self.known or {})}
        self.queries: dict[str, Any] = {name: dict(one) for name, one in self.metrics["queries"].items()}

    async def take(self, run: LockedRun, facts: list[Fact]) -> None:
        self.run, self.lost, self.agent, self.sizes = run.id, run.state == "LOST", run.agent, run.checkpoint_bytes or {}
        await self._load([fact for fact in facts if isinstance(fact, EpochDone) and fact.replay])
        for fact in facts:
            match fact:
                case Claimed():
                    await self._claimed(fact)
                case EpochDone():
                    await self._epoch(fact)
                case Troubled():
                    await self._troubled(fact)
                case Ended():
                    await generations.ended(self.session, self.job, fact.generation, fact.at)
                    self._open(fact.generation, {})
                case Lag():
                    self._query(fact.query).update(lag=fact.topics, partition_lag=fact.partitions)
                case Retention():
                    self._query(fact.query)["retention"] = fact.topics
                case OpenTransactions():
                    self._open(fact.generation, {one: at.isoformat() for one, at in fact.topics.items()})
                case Truncated():
                    self.sums["truncations"] += 1
                    self.truncated_at = fact.at
                case Following():
                    await standbys.followed(self.session, run.id, fact.epochs)
                case Unreadable():
                    self.sums["unreadable_events"] += 1

    async def _load(self, replayed: list[EpochDone]) -> None:
        """Epochs that may be known already: only those that are replayed."""
        place = tuple_(EpochRow.lineage, EpochRow.query, EpochRow.epoch)
        for chunk in _chunks(sorted({_key(one) for one in replayed})):
            query = select(EpochRow).where(EpochRow.job == self.job, place.in_(chunk))
            for row in await self.session.scalars(query):
                self.epochs[row.lineage, row.query, row.epoch] = _Epoch(row.completed_at, row.body)

    async def _claimed(self, claim: Claimed) -> None:
        session, job = self.session, self.job
        before = await generations.newest(session, job)
        open_one = await recoveries.opened(session, job)
        cause = await self._cause(claim, before, open_one.body["cause"] if open_one else None)
        if cause in ("restart", "crash") and before is not None:
            await recoveries.begin(
                session,
                job,
                cause=cause,
                failed_generation=before.generation,
                from_agent=await self._agent_of(before.run),
                at=claim.failed_at or claim.at,
            )
        order = (await session.execute(select(RunRow.order).where(RunRow.id == self.run))).scalar_one()
        attempt = int(order.get("attempt_base", 0)) + claim.attempt
        await generations.claimed(session, job, self.run, claim, attempt, cause)
        await recoveries.claimed(session, job, claim.generation, self.agent)
        if claim.generation > self.generation:
            self.generation = claim.generation
            self._open(claim.generation, {})  # it has ended its predecessor's, and will tell of others
            self.metrics |= {"delivery": claim.delivery, "sharing_depth": claim.sharing_depth}
            for name in self.queries:
                self._query(name)["retention"] = {}
            self.columns |= {"generation": claim.generation, "observed_version": int(order["version"])}
            if cause != "start":
                self.sums["restarts"] += 1
                self.columns["restarts"] = self.restarts + self.sums["restarts"]

    async def _agent_of(self, run: str) -> str:
        """Name of the host that had it; of this one if that is not known any more."""
        query = select(AgentRow.name).join(RunRow, RunRow.agent == AgentRow.id).where(RunRow.id == run)
        return (await self.session.execute(query)).scalar() or self.agent

    async def _cause(self, claim: Claimed, before: GenerationRow | None, recovering: str | None) -> str:
        """Why there was a new claim."""
        if before is None:
            return "start"
        if claim.cause is not None:
            return claim.cause  # within one run: it knows
        other = await self.session.get(RunRow, before.run)
        if other is not None and other.state == "LOST":
            # Also where a recovery is still open: the host may be gone before it told that it was over.
            return "host-lost"
        if recovering is not None:
            return recovering
        return "start" if before.ended_at is not None else "crash"

    async def _epoch(self, done: EpochDone) -> None:
        if done.marks is not None:
            before = self.last_at or await recoveries.last_epoch_at(self.session, self.job)
            if await recoveries.finished(self.session, self.job, done, before):
                self.sums["recoveries"] += 1
        self.last_at = done.at
        epoch, body = done.checkpoint, done.checkpoint.model_dump(mode="json")
        body["size_bytes"] = self.sizes.get(epoch.query)
        known = self.epochs.get(_key(done))
        new = known is None
        self.epochs[_key(done)] = _Epoch(done.at, body, changed=True)
        figures = {name: done.figures[figure] for figure, name in _SUMMED.items()}
        if not new:
            # It had ended: all that it holds was published, and told of, before.
            figures |= {"records_in": 0, "records_out": 0, "published_lanes": 0}
        self.sums.update(figures)
        self.sums.update(epochs_timed=1, epochs_ms=round(epoch.duration_ms))
        self.sums["epochs"] += new
        self.sums["epochs_replayed"] += done.replay
        self.finished[done.lineage, epoch.generation] += new
        self.published[done.lineage, epoch.generation] += figures["records_out"]
        query = self._query(epoch.query)
        query["epoch"] = epoch.epoch
        query["epochs"] += new
        for name, figure in figures.items():
            if name in query:
                query[name] += figure
        operators = query["operators"]
        for operator, tally in done.operators.items():
            if operator in operators or len(operators) < _OPERATORS:
                sums = operators.setdefault(operator, OperatorMetrics().model_dump())
                for name, number in tally.items():
                    sums[name] += number

    async def _troubled(self, trouble: Troubled) -> None:
        await exceptions.told(self.session, self.job, trouble)
        self.sums["epochs_failed"] += trouble.again
        if trouble.again and trouble.generation and not self.lost:
            await recoveries.begin(
                self.session,
                self.job,
                cause="restart",
                failed_generation=trouble.generation,
                from_agent=self.agent,
                at=trouble.at,
                failure=trouble.failure,
            )

    def _open(self, generation: int, topics: dict[str, str]) -> None:
        """Runs of one job tell in any order: the newest claim's word counts."""
        if generation >= self.generation:
            self.metrics["open_transactions"] = topics

    def _query(self, name: str) -> dict[str, Any]:
        # What an earlier version wrote has not all of them.
        one: dict[str, Any] = QueryMetrics().model_dump(mode="json") | self.queries.get(name, {})
        self.queries[name] = one
        return one

    def told(self) -> dict[str, Any]:
        """The job's new metrics."""
        self.metrics |= {"queries": self.queries, "restarts": self.metrics["restarts"] + self.sums["restarts"]}
        if self.last_at is not None:
            self.metrics["at"] = self.last_at.isoformat()
        return self.metrics


async def _write(session: AsyncSession, jobs: list[_Ingestion]) -> None:
    """What was told of all jobs, table by table."""
    await session.flush()
    await _write_epochs(session, jobs)
    finished = {
        (one.job, lineage, generation): (epochs, one.published[lineage, generation])
        for one in jobs
        for (lineage, generation), epochs in one.finished.items()
    }
    await generations.counted(session, finished)
    await counters.add(session, {one.job: one.sums for one in jobs})
    for one in jobs:
        if one.truncated_at is not None:
            await counters.reach(session, one.job, "truncated_at", int(one.truncated_at.timestamp()))
        if one.columns:
            claimed = update(JobRow).where(JobRow.id == one.job).values(**one.columns)
            await session.execute(claimed.execution_options(synchronize_session=False))
    await update_all(session, JobRow, [{"id": one.job, "metrics": one.told()} for one in jobs], keys=("id",))


async def _write_epochs(session: AsyncSession, jobs: list[_Ingestion]) -> None:
    changed = [
        {
            "job": one.job,
            "lineage": lineage,
            "query": query,
            "epoch": number,
            "completed_at": epoch.completed_at,
            "body": epoch.body,
        }
        for one in jobs
        for (lineage, query, number), epoch in sorted(one.epochs.items(), key=lambda item: item[0])
        if epoch.changed
    ]
    keys = ("job", "lineage", "query", "epoch")
    await insert_all(session, EpochRow, changed, keys=keys, replace=("completed_at", "body"))


def _key(done: EpochDone) -> _Key:
    return done.lineage, done.checkpoint.query, done.checkpoint.epoch


def _chunks(items: list[_T], size: int = 100) -> list[list[_T]]:
    """SQLite takes so many parameters and no more."""
    return [items[at : at + size] for at in range(0, len(items), size)]
