"""Applies the event files of drivers to the database: epochs, claims, errors and metrics. Each byte is applied once.

Only this module writes `generation`, `metrics`, `restarts` and `observed_version` of a job, and `events_offset` and
`ingest_state` of a run. It holds the lock of the job's row. Events of two runs of one job may arrive in any order, for
example when a lost host returns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError, NotFound, SpecError
from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.hosts import EventsBatch
from clonos.resources.jobs import KafkaReport, WaitingReport
from clonos.telemetry.driver_events import (
    FIGURES,
    Following,
    Kafka,
    Lag,
    Mode,
    OpenTransactions,
    Rehearsed,
    Retention,
    Truncated,
)
from clonos_api.store import counters, generations, job_exceptions, job_graph, recoveries, series, standbys
from clonos_api.store.columns import JobFigures, OperatorFigures, QueryFigures, Tally, UnreadableValue
from clonos_api.store.db.bulk import insert_all, update_all
from clonos_api.store.ingest import (
    Claimed,
    Ended,
    EpochDone,
    ErrorReported,
    Fact,
    Fenced,
    NoInput,
    Unreadable,
    WaitsFor,
    fold,
    moment,
    read_lines,
)
from clonos_api.store.pushed import Locked, LockedRun
from clonos_api.store.recent_epochs import RATED
from clonos_api.store.series import Place, duration_class, places
from clonos_api.store.tables import EpochRow, GenerationRow, HostRow, JobRow, RunRow

# Maximum number of operators of a query; more indicate a corrupt file.
_OPERATORS: Final = 200
# Maximum number of queries of a job; the same holds for them.
_QUERIES: Final = 200
# Of the duration of slow epochs, with each faster epoch: half of it after 35 epochs.
_SLOW_DECAY: Final = 0.98
# Maximum number of reports of a live query that are stored for its rates.
_SECONDS: Final = 20
_SUMMED: Final = tuple(name for name in FIGURES if name in QueryFigures.__struct_fields__)
_Key = tuple[int, str, int]
_T = TypeVar("_T")


async def ingest_all(session: AsyncSession, locked: Locked, pieces: Sequence[EventsBatch]) -> list[int | ClonosError]:
    """Apply pushed event lines of several runs to the database, at most one batch per run.

    `locked` has the rows of these runs and their jobs. Returns for each batch the byte at which the run's next batch
    must begin, or the error; an invalid batch does not affect the others. Lines that are applied already are skipped. A
    batch after missing bytes is ignored, unless its `gap` says that they are lost.
    """
    ends: list[int | ClonosError] = []
    jobs: dict[str, _Ingestion] = {}
    for piece in pieces:
        await asyncio.sleep(0)  # a push has many runs; heartbeats must not wait for all of them
        run = locked.runs.get(piece.run)
        if run is None:
            ends.append(NotFound(f"There is no run {piece.run}."))
            continue
        job = locked.jobs[run.job]
        try:
            for stored in (run.ingest_state, job.metrics):
                if isinstance(stored, UnreadableValue):
                    raise SpecError(
                        stored.reason, kept="earlier events remain.", hint="repair the row of the database."
                    )
            read, end = read_lines(run.events_offset, piece.offset, piece.lines, gap=piece.gap)
        except SpecError as error:
            ends.append(error)
            continue
        ends.append(end)
        if end == run.events_offset:
            continue
        facts = fold(run.ingest_state, read)
        run.events_offset, run.changed = end, True
        ingestion = jobs.setdefault(
            run.job, _Ingestion(session, job.id, job.generation, job.restarts, job.metrics or JobFigures())
        )
        await ingestion.take(run, facts)
    if jobs:
        await _write(session, list(jobs.values()))
    return ends


@dataclass
class _Ingestion:
    """The changes of one push to one job."""

    session: AsyncSession
    job: str
    generation: int
    restarts: int
    figures: JobFigures
    sums: Counter[str] = field(default_factory=Counter)
    stored: dict[_Key, EpochCheckpoint] = field(default_factory=dict)  # live and replayed epochs that have a row
    epochs: dict[_Key, dict[str, Any]] = field(default_factory=dict)  # rows to write
    finished: Counter[tuple[int, int]] = field(default_factory=Counter)
    published: Counter[tuple[int, int]] = field(default_factory=Counter)
    series: dict[Place, Tally] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    last_at: datetime | None = None
    truncated_at: datetime | None = None

    async def take(self, run: LockedRun, facts: list[Fact]) -> None:
        self.run, self.lost, self.host, self.sizes = run.id, run.state == "LOST", run.host, run.checkpoint_bytes or {}
        await self._load([fact for fact in facts if isinstance(fact, EpochDone) and (fact.replay or fact.live)])
        for fact in facts:
            match fact:
                case EpochDone() | Lag() | Mode() | NoInput() | Retention() if not self._is_known(_query_of(fact)):
                    self.sums["unreadable_events"] += 1
                case Claimed():
                    await self._claimed(fact)
                case EpochDone():
                    await self._epoch(fact)
                case ErrorReported():
                    await self._error_reported(fact)
                case Ended():
                    await generations.close(self.session, self.job, fact.generation, fact.at)
                    self._open(fact.generation, {})
                case Fenced():
                    self.sums["false_takeovers"] += await recoveries.record_alive(
                        self.session, self.job, fact.generation, fact.at
                    )
                case Lag():
                    await self._lag(fact)
                case NoInput():
                    await self._no_input(fact)
                case Mode():
                    if self._is_newest(fact.generation):
                        query = self._query(fact.query)
                        query.mode, query.because = "live" if fact.live else "epochs", fact.because
                case Retention():
                    self._query(fact.query).retention = fact.topics
                case OpenTransactions():
                    self._open(fact.generation, {topic: moment(at) for topic, at in fact.topics.items()})
                case Kafka():
                    if self._is_newest(fact.generation):
                        silent = moment(fact.silent_since) if fact.silent_since is not None else None
                        self.figures.kafka = KafkaReport(
                            brokers=fact.brokers, under_replicated=fact.under_replicated, silent_since=silent
                        )
                case WaitsFor():
                    if self._is_newest(fact.generation):
                        waits = WaitingReport(what=fact.what, since=fact.since) if fact.what else None
                        self.figures.waiting = waits
                case Truncated():
                    self.sums["truncations"] += 1
                    self.truncated_at = moment(fact.at)
                case Following():
                    await standbys.record(self.session, run.id, epochs=fact.epochs)
                case Rehearsed() if fact.epoch_s is not None:
                    await standbys.record(self.session, run.id, epoch_s=fact.epoch_s)
                case Unreadable():
                    self.sums["unreadable_events"] += 1

    async def _load(self, repeated: list[EpochDone]) -> None:
        """Load the epochs that may already exist; only live ones and replays can."""
        position = tuple_(EpochRow.lineage, EpochRow.query, EpochRow.epoch)
        for chunk in _chunks(sorted({_key(done) for done in repeated})):
            query = select(EpochRow.lineage, EpochRow.query, EpochRow.epoch, EpochRow.body)
            rows = await self.session.execute(query.where(EpochRow.job == self.job, position.in_(chunk)))
            self.stored |= {(lineage, query, epoch): body for lineage, query, epoch, body in rows}

    async def _claimed(self, claim: Claimed) -> None:
        session, job = self.session, self.job
        before = await generations.newest(session, job)
        recovery = await recoveries.open_of_job(session, job)
        cause = await self._cause(claim, before, recovery.body.cause if recovery else None)
        if cause in ("restart", "crash") and before is not None:
            await recoveries.begin(
                session,
                job,
                cause=cause,
                failed_generation=before.generation,
                from_host=await self._host_of(before.run),
                at=claim.failed_at or claim.at,
            )
        spec = (await session.execute(select(RunRow.spec).where(RunRow.id == self.run))).scalar_one()
        attempt = spec.earlier_attempts + claim.attempt
        await generations.record_claim(session, job, self.run, claim, host=self.host, attempt=attempt, cause=cause)
        await recoveries.record_claim(session, job, claim.generation, self.host)
        if claim.generation > self.generation:
            self.generation = claim.generation
            self._open(claim.generation, {})  # a claim ends the transactions of older generations
            # A query that reads topics computes its first epoch at once, also without records. By this machine's clock.
            computes = any(query.topics for query in (claim.graph or {}).values())
            figures = self.figures
            figures.kafka, figures.waiting = None, None
            figures.first_epoch_since = datetime.now(UTC) if computes else None
            figures.delivery, figures.sharing_depth = claim.delivery, claim.sharing_depth
            if claim.graph is not None:
                await job_graph.store(session, job, claim.generation, claim.at, claim.graph)
                for name, reads in claim.graph.items():
                    self._query(name).interval_ms = reads.interval_ms
            for name, query in figures.queries.items():
                query.retention = {}
                query.mode, query.because = "epochs", ""  # unless the event ``mode`` follows
                if claim.graph is not None and name not in claim.graph:  # the new version does not have it
                    query.lag, query.partition_lag, query.mode = {}, {}, None
                    query.lag_at, query.at, query.waiting_since = None, None, None
            self.columns |= {"generation": claim.generation, "observed_version": spec.version}
            if cause != "start":
                self.sums["restarts"] += 1
                self.columns["restarts"] = self.restarts + self.sums["restarts"]

    async def _host_of(self, run: str) -> str:
        """Name of the host of a run; this run's host if the run is unknown."""
        query = select(HostRow.name).join(RunRow, RunRow.host == HostRow.id).where(RunRow.id == run)
        return (await self.session.execute(query)).scalar() or self.host

    async def _cause(self, claim: Claimed, before: GenerationRow | None, recovering: str | None) -> str:
        """Return the cause of a new claim."""
        if before is None:
            return "start"
        if claim.cause is not None:
            return claim.cause  # the run itself shows the cause
        other = await self.session.get(RunRow, before.run)
        if other is not None and other.state == "LOST":
            # Even if a recovery is open: the host may have been lost before it reported the recovery's end.
            return "host-lost"
        if recovering is not None:
            return recovering
        return "start" if before.ended_at is not None else "crash"

    async def _epoch(self, done: EpochDone) -> None:
        if done.first or done.marks is not None:
            before = self._last_epoch(done.checkpoint.query)
            waiting = self._have_published(done.waiting)
            row = await recoveries.record_epoch(self.session, self.job, done, before, waiting)
            self.sums["recoveries"] += row is not None
        self.last_at = done.at
        epoch = done.checkpoint
        self.figures.slow_epoch_ms = max(epoch.duration_ms, _SLOW_DECAY * self.figures.slow_epoch_ms)
        key = _key(done)
        known = self.stored.get(key)
        new = epoch.live or known is None
        body = epoch.model_copy(update={"size_bytes": self.sizes.get(epoch.query), "repeated": not new})
        self.stored[key] = _until_now(known, body) if isinstance(known, EpochCheckpoint) and known.live else body
        self.epochs[key] = {
            "job": self.job,
            "lineage": done.lineage,
            "query": epoch.query,
            "epoch": epoch.epoch,
            "completed_at": done.at,
            "body": self.stored[key],
        }
        figures = dict(done.figures)
        if not new:
            # The epoch had finished: its records were published and counted before.
            figures |= {"records_in": 0, "records_out": 0, "published_lanes": 0}
        self._count(
            epoch.query,
            done.at,
            Tally(
                epochs=1,
                replayed=int(done.replay),
                records_in=figures["records_in"],
                records_out=figures["records_out"],
                durations={duration_class(epoch.duration_ms): 1},
                latencies=done.latencies if new else {},
            ),
        )
        self.sums.update(figures)
        self.sums.update(epochs_timed=1, epochs_ms=round(epoch.duration_ms))
        self.sums["epochs"] += new
        self.sums["epochs_replayed"] += done.replay
        self.finished[done.lineage, epoch.generation] += new
        self.published[done.lineage, epoch.generation] += figures["records_out"]
        query = self._query(epoch.query)
        if self._is_newest(epoch.generation):
            self.figures.first_epoch_since = None
            query.at, query.waiting_since = done.at, None
            query.slow_epoch_ms = max(epoch.duration_ms, _SLOW_DECAY * query.slow_epoch_ms)
        query.epoch = epoch.epoch
        query.epochs += new
        for name in _SUMMED:
            setattr(query, name, getattr(query, name) + figures[name])
        if epoch.live:
            recent = [second for second in query.seconds if second.completed_at > done.at - RATED]
            query.seconds = [*recent, epoch.model_copy(update={"offsets": {}})][-_SECONDS:]
        if figures["late_rows"]:
            query.late_at = done.at
        for operator, counts in done.operators.items():
            if operator in query.operators or len(query.operators) < _OPERATORS:
                sums = query.operators.setdefault(operator, OperatorFigures())
                sums.recorded += counts.recorded
                sums.replayed += counts.replayed
                sums.bytes += counts.bytes

    async def _lag(self, lag: Lag) -> None:
        at = moment(lag.at)
        self._count(lag.query, at, Tally(lag=lag.topics))
        if lag.generation < self.generation:
            return  # of a driver that was replaced
        self.figures.first_epoch_since = None
        query = self._query(lag.query)
        # By this machine's clock, which may differ from the driver's host; reports may also arrive late.
        query.waiting_since = (query.waiting_since or datetime.now(UTC)) if any(lag.topics.values()) else None
        query.lag, query.lag_at = lag.topics, at
        query.partition_lag = {
            topic: {str(number): behind for number, behind in each.items()} for topic, each in lag.partitions.items()
        }

    async def _no_input(self, report: NoInput) -> None:
        waiting = self._have_published(report.waiting)
        row = await recoveries.record_no_input(self.session, self.job, report, self._last_epoch(report.query), waiting)
        self.sums["recoveries"] += row is not None and row.body.outcome == "COMPLETED"

    def _last_epoch(self, query: str) -> datetime | None:
        """Return the end of the newest epoch of a query; None: unknown."""
        return self._query(query).at

    async def _error_reported(self, report: ErrorReported) -> None:
        await job_exceptions.add(self.session, self.job, report)
        self.sums["epochs_failed"] += report.again
        if report.again and report.generation and not self.lost:
            await recoveries.begin(
                self.session,
                self.job,
                cause="restart",
                failed_generation=report.generation,
                from_host=self.host,
                at=report.at,
                failure=report.failure,
            )

    def _open(self, generation: int, topics: dict[str, datetime]) -> None:
        """Set the open transactions, unless a newer claim has reported them."""
        if self._is_newest(generation):
            self.figures.open_transactions = topics

    def _is_newest(self, generation: int) -> bool:
        """Whether no driver of a newer generation has reported."""
        return generation >= self.generation

    def _count(self, query: str, at: datetime, figures: Tally) -> None:
        for place in places(self.job, query, at, now=datetime.now(UTC)):
            self.series.setdefault(place, Tally()).add(figures)

    def _is_known(self, query: str) -> bool:
        return query in self.figures.queries or len(self.figures.queries) < _QUERIES

    def _have_published(self, queries: Sequence[str]) -> list[str]:
        """Return the queries among `queries` that have finished an epoch before: a recovery waits for them."""
        return [query for query in queries if self.figures.queries.get(query, QueryFigures()).epochs]

    def _query(self, name: str) -> QueryFigures:
        return self.figures.queries.setdefault(name, QueryFigures())

    def new_figures(self) -> JobFigures:
        """Return the job's new figures."""
        self.figures.restarts += self.sums["restarts"]
        if self.last_at is not None:
            self.figures.at = self.last_at
            # By this machine's clock, which may differ from the driver's host.
            self.figures.received_at = datetime.now(UTC)
        return self.figures


async def _write(session: AsyncSession, jobs: list[_Ingestion]) -> None:
    """Write the changes of all jobs, table by table."""
    await session.flush()
    await _write_epochs(session, jobs)
    finished = {
        (ingestion.job, lineage, generation): (epochs, ingestion.published[lineage, generation])
        for ingestion in jobs
        for (lineage, generation), epochs in ingestion.finished.items()
    }
    await generations.count_epochs(session, finished)
    await series.add(session, {place: tally for ingestion in jobs for place, tally in ingestion.series.items()})
    await counters.add(session, {ingestion.job: ingestion.sums for ingestion in jobs})
    for ingestion in jobs:
        if ingestion.truncated_at is not None:
            await counters.reach(session, ingestion.job, "truncated_at", int(ingestion.truncated_at.timestamp()))
        if ingestion.columns:
            claimed = update(JobRow).where(JobRow.id == ingestion.job).values(**ingestion.columns)
            await session.execute(claimed.execution_options(synchronize_session=False))
    await update_all(
        session, JobRow, [{"id": ingestion.job, "metrics": ingestion.new_figures()} for ingestion in jobs], keys=("id",)
    )


async def _write_epochs(session: AsyncSession, jobs: list[_Ingestion]) -> None:
    rows = [row for ingestion in jobs for _, row in sorted(ingestion.epochs.items(), key=lambda item: item[0])]
    keys = ("job", "lineage", "query", "epoch")
    await insert_all(session, EpochRow, rows, keys=keys, replace=("completed_at", "body"))


def _query_of(fact: EpochDone | Lag | Mode | NoInput | Retention) -> str:
    return fact.checkpoint.query if isinstance(fact, EpochDone) else fact.query


def _until_now(before: EpochCheckpoint, second: EpochCheckpoint) -> EpochCheckpoint:
    """Return a live epoch after another second, with its figures from its beginning."""
    sums: dict[str, Any] = {
        name: (getattr(before, name) or 0) + (getattr(second, name) or 0)
        for name in ("records_in", "records_out", "published_lanes", "dead_letters", "steps")
    }
    return second.model_copy(update={**sums, "topics_in": dict(Counter(before.topics_in) + Counter(second.topics_in))})


def _key(done: EpochDone) -> _Key:
    return done.lineage, done.checkpoint.query, done.checkpoint.epoch


def _chunks(items: list[_T], size: int = 100) -> list[list[_T]]:
    """Chunks of a list, because SQLite limits the number of parameters."""
    return [items[at : at + size] for at in range(0, len(items), size)]
