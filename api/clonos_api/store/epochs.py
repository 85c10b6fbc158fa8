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
from typing import Any, Final

from sqlalchemy import select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
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
from clonos_api.store.rows import found
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
    job_id = (await session.execute(select(RunRow.job).where(RunRow.id == run))).scalar_one_or_none()
    # Job before run, as everywhere. It also makes one of several pushes about one job.
    job = (
        await session.scalars(
            select(JobRow)
            .where(JobRow.id == job_id)
            .with_for_update(key_share=True)
            .execution_options(populate_existing=True)
        )
    ).one_or_none()
    job = found(job, f"run {run}")
    row = (
        await session.scalars(
            select(RunRow).where(RunRow.id == run).with_for_update().execution_options(populate_existing=True)
        )
    ).one()
    read, end = read_lines(row.events_offset, offset, lines, gap=gap)
    if end == row.events_offset:
        return end
    told = Told(**row.told)
    facts = fold(told, read)
    statement = (
        update(RunRow)
        .where(RunRow.id == run, RunRow.events_offset == row.events_offset)
        .values(events_offset=end, told=told.dump())
        .returning(RunRow.id)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise Fenced(f"Somebody else told the events of run {run} meanwhile.")
    agent = (await session.execute(select(AgentRow.name).where(AgentRow.id == row.agent))).scalar_one()
    await _Ingestion(session, job, row, agent).take(facts)
    return end


@dataclass
class _Ingestion:
    """One push."""

    session: AsyncSession
    job: JobRow
    run: RunRow
    agent: str
    sums: Counter[str] = field(default_factory=Counter)
    rows: dict[_Key, EpochRow] = field(default_factory=dict)
    by_generation: Counter[tuple[int, int]] = field(default_factory=Counter)
    records: Counter[tuple[int, int]] = field(default_factory=Counter)
    columns: dict[str, Any] = field(default_factory=dict)

    async def take(self, facts: list[Fact]) -> None:
        await self._load([fact for fact in facts if isinstance(fact, EpochDone)])
        self.metrics: dict[str, Any] = {"at": None, "restarts": 0, "queries": {}, **(self.job.metrics or {})}
        self.queries: dict[str, Any] = {name: dict(one) for name, one in self.metrics["queries"].items()}
        self.last_at: datetime | None = None
        for fact in facts:
            match fact:
                case Claimed():
                    await self._claimed(fact)
                case EpochDone():
                    await self._epoch(fact)
                case Troubled():
                    await self._troubled(fact)
                case Ended():
                    await generations.ended(self.session, self.job.id, fact.generation, fact.at)
                case Lag():
                    self._query(fact.query)["lag"] = fact.topics
                case Truncated():
                    self.sums["truncations"] += 1
                    self.columns["truncated_at"] = fact.at
                case Unreadable():
                    self.sums["unreadable_events"] += 1
        await self._write()

    async def _load(self, epochs: list[EpochDone]) -> None:
        """Epochs that are known already: a replay tells them again."""
        place = tuple_(EpochRow.lineage, EpochRow.query, EpochRow.epoch)
        for chunk in _chunks(sorted({_key(one) for one in epochs})):
            query = select(EpochRow).where(EpochRow.job == self.job.id, place.in_(chunk))
            for row in await self.session.scalars(query):
                self.rows[row.lineage, row.query, row.epoch] = row

    async def _claimed(self, claim: Claimed) -> None:
        session, job = self.session, self.job
        before = await generations.newest(session, job.id)
        open_one = await recoveries.opened(session, job.id)
        cause = await self._cause(claim, before, open_one.body["cause"] if open_one else None)
        if cause in ("restart", "crash") and before is not None:
            await recoveries.begin(
                session,
                job.id,
                cause=cause,
                failed_generation=before.generation,
                from_agent=self.agent,
                at=claim.failed_at or claim.at,
            )
        attempt = int(self.run.order.get("attempt_base", 0)) + claim.attempt
        await generations.claimed(session, job.id, self.run.id, claim, attempt, cause)
        await recoveries.claimed(session, job.id, claim.generation, self.agent)
        if claim.generation > self.columns.get("generation", job.generation):
            self.columns |= {"generation": claim.generation, "observed_version": int(self.run.order["version"])}
            if cause != "start":
                self.columns["restarts"] = self.columns.get("restarts", job.restarts) + 1
                self.sums["restarts"] += 1

    async def _cause(self, claim: Claimed, before: GenerationRow | None, recovering: str | None) -> str:
        """Why there was a new claim."""
        if before is None:
            return "start"
        if claim.cause is not None:
            return claim.cause  # within one run: it knows
        if recovering is not None:
            return recovering
        other = await self.session.get(RunRow, before.run)
        if other is not None and other.state == "LOST":
            return "host-lost"
        return "start" if before.ended_at is not None else "crash"

    async def _epoch(self, done: EpochDone) -> None:
        if done.marks is not None:
            before = self.last_at or await recoveries.last_epoch_at(self.session, self.job.id)
            if await recoveries.finished(self.session, self.job.id, done, before):
                self.sums["recoveries"] += 1
        self.last_at = done.at
        epoch, body = done.checkpoint, done.checkpoint.model_dump(mode="json")
        row = self.rows.get(_key(done))
        new = row is None
        if row is None:
            row = self.rows[_key(done)] = EpochRow(
                job=self.job.id,
                lineage=done.lineage,
                query=epoch.query,
                epoch=epoch.epoch,
                completed_at=done.at,
                body=body,
            )
            self.session.add(row)
        else:  # published in parts: what the attempts before published counts too
            row.body = {**body, "records_out": body["records_out"] + row.body["records_out"]}
            row.completed_at = done.at
        figures = {name: done.figures[figure] for figure, name in _SUMMED.items()}
        if not new:
            figures["records_in"] = 0
        self.sums.update(figures)
        self.sums["epochs"] += new
        self.sums["epochs_replayed"] += done.replay
        self.by_generation[done.lineage, epoch.generation] += new
        self.records[done.lineage, epoch.generation] += figures["records_out"]
        query = self._query(epoch.query)
        query["epoch"] = epoch.epoch
        query["epochs"] += new
        for name, figure in figures.items():
            if name in query:
                query[name] += figure

    async def _troubled(self, trouble: Troubled) -> None:
        await exceptions.told(self.session, self.job.id, trouble)
        self.sums["epochs_failed"] += trouble.again
        if trouble.again and trouble.generation and self.run.state != "LOST":
            await recoveries.begin(
                self.session,
                self.job.id,
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
        for (lineage, generation), epochs in self.by_generation.items():
            records = self.records[lineage, generation]
            await generations.counted(session, job.id, lineage, generation, epochs, records)
        truncated_at = self.columns.pop("truncated_at", None)
        await counters.add(session, job.id, self.sums)
        if truncated_at is not None:
            await counters.reach(session, job.id, "truncated_at", int(truncated_at.timestamp()))
        self.metrics |= {"queries": self.queries, "restarts": self.metrics["restarts"] + self.sums["restarts"]}
        if self.last_at is not None:
            self.metrics["at"] = self.last_at.isoformat()
        statement = update(JobRow).where(JobRow.id == job.id).values(metrics=self.metrics, **self.columns)
        await session.execute(statement.execution_options(synchronize_session=False))


def _key(done: EpochDone) -> _Key:
    return done.lineage, done.checkpoint.query, done.checkpoint.epoch


def _chunks(keys: list[_Key], size: int = 200) -> list[list[_Key]]:
    """SQLite takes so many parameters and no more."""
    return [keys[at : at + size] for at in range(0, len(keys), size)]
