"""Epochs, and all else that drivers tell: their event files are ingested here, each byte once, with what it says.

`generation`, `metrics`, `restarts` and `observed_version` of a job and `events_offset` and `told` of a run are
written here alone, with the job's row locked. Two runs of one job (a lost host that comes back) may be told about in
any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, NotFound
from clonos.resources.jobs import QueryMetrics
from clonos_api.store import counters, exceptions, generations, recoveries
from clonos_api.store.ingest import (
    Claimed,
    Ended,
    EpochDone,
    Fact,
    Lag,
    Told,
    Troubled,
    Truncated,
    Unreadable,
    fold,
    read_lines,
)
from clonos_api.store.rows import upsert
from clonos_api.store.tables import AgentRow, EpochRow, GenerationRow, JobRow, RunRow

# Names of the figures of an ``epoch`` event, and of what they are summed as.
_SUMMED: Final = {
    "read": "records_in",
    "records": "records_out",
    "recorded": "recorded_determinants",
    "replayed": "replayed_determinants",
    "skipped_lanes": "skipped_lanes",
    "diverged_lanes": "diverged_lanes",
    "dead_letters": "dead_letters",
    "dropped": "dropped",
}
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
    # Job before run, as everywhere. It also makes one of several pushes about one job, so the run needs no lock.
    told_about = select(RunRow.job).where(RunRow.id == run).scalar_subquery()
    query = select(JobRow.id, JobRow.generation, JobRow.restarts, JobRow.metrics).where(JobRow.id == told_about)
    job = (await session.execute(query.with_for_update(key_share=True))).one_or_none()
    if job is None:
        raise NotFound(f"There is no run {run}.")
    columns = (RunRow.events_offset, RunRow.told, RunRow.state, RunRow.checkpoint_bytes, AgentRow.name)
    of_run = select(*columns).join(AgentRow, AgentRow.id == RunRow.agent).where(RunRow.id == run)
    have, so_far, state, sizes, agent = (await session.execute(of_run)).one()
    read, end = read_lines(have, offset, lines, gap=gap)
    if end == have:
        return end
    told = Told(**so_far)
    facts = fold(told, read)
    statement = (
        update(RunRow)
        .where(RunRow.id == run, RunRow.events_offset == have)
        .values(events_offset=end, told=told.dump())
        .returning(RunRow.id)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise Fenced(f"Somebody else told the events of run {run} meanwhile.")
    known = _Ingestion(
        session, job.id, job.generation, job.restarts, job.metrics, run, state == "LOST", agent, sizes or {}
    )
    await known.take(facts)
    return end


@dataclass
class _Ingestion:
    """One push: what is known of the job and the run, and what the facts change."""

    session: AsyncSession
    job: str
    generation: int
    restarts: int
    known: dict[str, Any] | None
    run: str
    lost: bool
    agent: str
    sizes: dict[str, int]
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

    async def take(self, facts: list[Fact]) -> None:
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
                case Lag():
                    self._query(fact.query)["lag"] = fact.topics
                case Truncated():
                    self.sums["truncations"] += 1
                    self.truncated_at = fact.at
                case Unreadable():
                    self.sums["unreadable_events"] += 1
        await self._write()

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
                from_agent=self.agent,
                at=claim.failed_at or claim.at,
            )
        order = (await session.execute(select(RunRow.order).where(RunRow.id == self.run))).scalar_one()
        attempt = int(order.get("attempt_base", 0)) + claim.attempt
        await generations.claimed(session, job, self.run, claim, attempt, cause)
        await recoveries.claimed(session, job, claim.generation, self.agent)
        if claim.generation > self.generation:
            self.generation = claim.generation
            self.columns |= {"generation": claim.generation, "observed_version": int(order["version"])}
            if cause != "start":
                self.sums["restarts"] += 1
                self.columns["restarts"] = self.restarts + self.sums["restarts"]

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
        if known is not None:  # published in parts: what the attempts before published counts too
            body["records_out"] += known.body["records_out"]
        self.epochs[_key(done)] = _Epoch(done.at, body, changed=True)
        figures = {name: done.figures[figure] for figure, name in _SUMMED.items()}
        if not new:
            figures["records_in"] = 0
        self.sums.update(figures)
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

    def _query(self, name: str) -> dict[str, Any]:
        one: dict[str, Any] = self.queries.setdefault(name, {})
        if not one:
            one.update(QueryMetrics().model_dump(mode="json"))
        return one

    async def _write(self) -> None:
        session, job = self.session, self.job
        await session.flush()
        await self._write_epochs()
        for (lineage, generation), epochs in self.finished.items():
            records = self.published[lineage, generation]
            await generations.counted(session, job, lineage, generation, epochs, records)
        await counters.add(session, job, self.sums)
        if self.truncated_at is not None:
            await counters.reach(session, job, "truncated_at", int(self.truncated_at.timestamp()))
        self.metrics |= {"queries": self.queries, "restarts": self.metrics["restarts"] + self.sums["restarts"]}
        if self.last_at is not None:
            self.metrics["at"] = self.last_at.isoformat()
        statement = update(JobRow).where(JobRow.id == job).values(metrics=self.metrics, **self.columns)
        await session.execute(statement.execution_options(synchronize_session=False))

    async def _write_epochs(self) -> None:
        changed = [(key, one) for key, one in sorted(self.epochs.items()) if one.changed]
        for chunk in _chunks(changed):
            rows = [
                {
                    "job": self.job,
                    "lineage": lineage,
                    "query": query,
                    "epoch": epoch,
                    "completed_at": one.completed_at,
                    "body": one.body,
                }
                for (lineage, query, epoch), one in chunk
            ]
            statement = upsert(self.session, EpochRow)
            new = {"completed_at": statement.excluded.completed_at, "body": statement.excluded.body}
            keys = list(EpochRow.__table__.primary_key)
            await self.session.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), rows)


def _key(done: EpochDone) -> _Key:
    return done.lineage, done.checkpoint.query, done.checkpoint.epoch


def _chunks(items: list[_T], size: int = 100) -> list[list[_T]]:
    """SQLite takes so many parameters and no more."""
    return [items[at : at + size] for at in range(0, len(items), size)]
