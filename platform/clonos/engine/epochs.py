"""One epoch, driver side: plan, publish, end.

For epoch *e* of one query, called by Spark after it wrote ``offsets/e``:

1. The log holds a plan for *e* → this is a replay of that plan: Spark's offset-log entry, ranges, lanes and
   code must be the plan's. Otherwise the epoch is fresh: commit a plan, before any task starts.
2. Publish the scope of the causal services to the tasks.
3. The sink publishes every lane that is not yet published.
4. Commit the end of *e*, before Spark writes ``commits/e``.
5. Show the progress to lag tools.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from clonos.causal.counting import count
from clonos.causal.scope import PROPERTY, EpochScope, encode_scope
from clonos.engine.checkpoint import Checkpoint, epoch_time, progress_of
from clonos.engine.planned import Planned, read_plan
from clonos.engine.repeatable import check_order
from clonos.errors import (
    CheckpointMismatch,
    CheckpointOutdated,
    EpochFailed,
    ForeignRecord,
    ReplayDivergence,
    SourceNotRepeatable,
    Superseded,
)
from clonos.faults import reach
from clonos.formats.poison import drops
from clonos.job import Job, Query
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.records import End, Held, Marker, Plan
from clonos.log.truncation import truncate
from clonos.sinks import LaneReport, SinkEpoch
from clonos.sources import Progress

Emit = Callable[..., None]


class PlanRestored(EpochFailed):
    """Spark was about to run something else than the log's plan; its entry is restored, start again."""

    slug = "plan-restored"


class NotStarted(EpochFailed):
    """The job is stopping."""

    slug = "not-started"


class EpochRunner:
    """Runs the epochs of one query for one owner; the callback of ``foreachBatch``.

    Attributes:
        failure: What the last epoch raised, since Spark only keeps its text.
        finished: Epochs finished by this owner.
        idle: Whether nothing runs, and the newest of them found no input.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        query: Query,
        checkpoint: Checkpoint,
        ownership: Ownership,
        lock: threading.RLock,
        emit: Emit,
        on_progress: Callable[[str, Progress], None],
        *,
        pins: dict[str, int] | None = None,
        attempt: int = 0,
    ) -> None:
        self.failure: BaseException | None = None
        self.finished = 0
        self.idle = False
        self.busy = threading.Lock()
        self.stopping = False
        self._spark = spark
        self._job = job
        self._query = query
        self._checkpoint = checkpoint
        self._own = ownership
        self._lock = lock  # the log's control writer is shared by the job's queries
        self._emit = emit
        self._on_progress = on_progress
        self._pins = pins or {}
        self._attempt = attempt
        self._jquery: Any = None
        # Markers found at claiming only speak for epochs that were in doubt then.
        self._markers = {
            lane: marker
            for (sink, lane), partition in ownership.state.lanes.items()
            if sink == query.name and (marker := self._usable(ownership.markers.get(partition))) is not None
        }

    def _usable(self, marker: Marker | None) -> Marker | None:
        return marker if marker is not None and marker.owner.lineage == self._own.owner.lineage else None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """Run one epoch."""
        with self.busy, structlog.contextvars.bound_contextvars(query=self._query.name, epoch=epoch):
            try:
                if self.stopping:
                    raise NotStarted(f"Epoch {epoch} of {self._query.name} was not started: the job is stopping.")
                self._run(frame, epoch)
                self.finished += 1
            except BaseException as failure:
                self.failure = failure
                raise

    def _run(self, frame: DataFrame, epoch: int) -> None:
        began = time.monotonic()
        name = self._query.name
        self.idle = False
        known = self._own.state.plan(name, epoch)
        replay = known is not None
        reach("offsets-logged", query=name, epoch=epoch, replay=replay)
        entry = self._checkpoint.read_offsets(epoch)
        if entry is None:
            raise EpochFailed(f"offsets/{epoch} of {name} is not in the checkpoint {self._checkpoint.location}.")
        planned = self._planned(frame)
        ended = epoch <= self._own.state.ended.get(name, -1)
        plan = self._replayed(known, planned, entry) if known else self._fresh(planned, epoch, entry, ended)
        planned_at = time.monotonic()
        reach("plan-committed", query=name, epoch=epoch, replay=replay)
        self._spark.sparkContext.setLocalProperty(PROPERTY, encode_scope(self._scope(plan, replay)))
        reports = self._write(frame, self._sink_epoch(plan, planned.lanes(), replay, ended))
        self._noted(plan, reports)
        # What tasks run between epochs (none should) is not part of this one.
        self._spark.sparkContext.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
        published_at = time.monotonic()
        records = sum(report.records for report in reports)
        if not ended:
            with self._lock:
                end = End(self._own.owner, name, epoch, records)
                self._own.state.take(self._own.control.append(end), end)
        ended_at = time.monotonic()
        reach("end-committed", query=name, epoch=epoch, replay=replay)
        progress = progress_of(entry)
        self._on_progress(name, progress)
        operators = count.take(name)
        dropped = drops.take(name, epoch, str(self._own.owner))
        read = sum(held.until - held.start for scan in plan.scans for held in scan)
        self._emit(
            "epoch",
            query=name,
            epoch=epoch,
            replay=replay,
            read=read,
            records=records,
            published_lanes=sum(report.outcome != "empty" for report in reports),
            skipped_lanes=sum(report.outcome in ("skipped", "audited") for report in reports),
            diverged_lanes=sum(report.diverged for report in reports),
            recorded=sum(tally.recorded for tally in operators.values()),
            recorded_bytes=sum(tally.bytes for tally in operators.values()),
            replayed=sum(tally.replayed for tally in operators.values()),
            dead_letters=sum(report.dead_letters for report in reports),
            # An ended epoch is only looked at again: what it dropped was told when it ended.
            dropped=0 if ended else dropped,
            duration_ms=round((time.monotonic() - began) * 1000),
            spans=_spans(plan=planned_at - began, publish=published_at - planned_at, commit=ended_at - published_at),
            operators={operator: tally._asdict() for operator, tally in operators.items()},
            offsets=progress,
        )
        self._attempt = 0
        self._audited(epoch, reports, records if ended else None)
        self.idle = read == 0 and not replay  # after a replay there may be input
        if epoch % RETAINED_EPOCHS == RETAINED_EPOCHS - 1 and not replay:
            with self._lock:
                self._emit("truncated", query=name, partitions=len(truncate(self._own, sink=name)))
        reach("epoch-done", query=name, epoch=epoch, replay=replay)

    def _write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        try:
            return self._query.sink.write(frame, epoch)
        except Superseded as error:
            with self._lock:
                self._own.control.check_owner()
            # Whoever takes over claims control before any lane.
            raise ForeignRecord(f"{error.what} Nobody but {self._own.owner} claimed the job, though.") from error

    def _audited(self, epoch: int, reports: list[LaneReport], replayed: int | None) -> None:
        """A replay that differs from what is fully published cannot be undone, but state must not go on from it."""
        name = self._query.name
        wrong = [report.lane for report in reports if report.diverged]
        end = self._own.state.ends.get(name)
        if replayed is not None and end is not None and end.epoch == epoch and end.records != replayed:
            # A lane that was empty has no marker to compare with; the end knows the sum.
            wrong = wrong or [report.lane for report in reports if report.outcome != "audited"]
        if wrong:
            raise ReplayDivergence(
                f"Epoch {epoch} of {name}: its replay differs from what lanes {wrong} published.",
                kept="the published output stands; the replay published nothing.",
            )

    def _planned(self, frame: DataFrame) -> Planned:
        if self._jquery is None:
            query_id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
            # The root session: the frame's own is a clone that knows of no streams.
            self._jquery = self._spark._jsparkSession.streams().get(query_id).streamingQuery()
        # The batch is an RDD that is there already; its physical plan would cost 10 ms to learn the same.
        partitions = frame._jdf.queryExecution().logical().rdd().getNumPartitions()
        planned = read_plan(self._jquery.lastExecution(), partitions)
        return planned._replace(held=self._query.sink.lanes(planned.held))

    def _replayed(self, plan: Plan, planned: Planned, entry: str) -> Plan:
        epoch, name = plan.epoch, self._query.name
        if plan.offsets != entry:
            self._checkpoint.write_offsets(epoch, plan.offsets)
            raise PlanRestored(f"offsets/{epoch} of {name} was not the log's plan.")
        resolution = self._own.state.resolutions.get((name, epoch))
        accepted = resolution is not None and resolution.code == self._job.code
        if plan.code != self._job.code and not accepted:
            raise CheckpointMismatch(
                f"The job's code changed while epoch {epoch} of {name} was in doubt.",
                hint="run the old code once to finish the epoch, or accept the new code for it with --accept-new-code.",
            )
        # The driver defines a job with the plan's pins; two queries in doubt could still disagree.
        other = [asked for asked, answer in plan.pins.items() if self._pins.get(asked, answer) != answer]
        if other and not accepted:
            raise CheckpointMismatch(
                f"The replay of epoch {epoch} of {name} would use other schemas than its plan: {'; '.join(other)}.",
                hint="name versions in place of the latest one, and accept that for the epoch with --accept-new-code.",
            )
        if plan.delivery != self._query.sink.delivery:
            raise CheckpointMismatch(
                f"Epoch {epoch} of {name} was planned for {plan.delivery} delivery, the sink is now "
                f"{self._query.sink.delivery}.",
                hint=f"go back to delivery={plan.delivery!r} until the epoch is finished, then change it.",
            )
        if plan.scans != planned.scans or plan.held != planned.held:
            raise CheckpointMismatch(
                f"The replay of epoch {epoch} of {name} would read {_show(planned.scans)} into "
                f"{len(planned.held)} partitions; its plan says {_show(plan.scans)} into {len(plan.held)}.",
                hint="do not change topics, source options or spark.sql.shuffle.partitions while an epoch is in doubt.",
            )
        return plan

    def _fresh(self, planned: Planned, epoch: int, entry: str, ended: bool) -> Plan:
        name = self._query.name
        if ended:
            raise CheckpointOutdated(
                f"Epoch {epoch} of {name} was already published; the log no longer holds its plan."
            )
        try:
            check_order(name, epoch, entry)
        except SourceNotRepeatable:
            # Nothing is planned or published: with its sources mended the query shall plan this epoch anew.
            self._checkpoint.drop_offsets(epoch)
            raise
        with self._lock:
            partitions = self._own.ensure_lanes(name, len(planned.held))
            plan = Plan(
                self._own.owner,
                name,
                epoch,
                held=planned.held,
                scans=planned.scans,
                partitions=partitions,
                since={partition: self._own.known[partition] for partition in partitions},
                seed=secrets.randbits(63),
                code=self._job.code,
                offsets=entry,
                at=epoch_time(entry),
                pins=self._pins,
                delivery=self._query.sink.delivery,
            )
            self._own.state.take(self._own.control.append(plan), plan)
        return plan

    def _scope(self, plan: Plan, replay: bool) -> EpochScope:
        own = self._own
        return EpochScope(
            job=own.job,
            topic=own.topic,
            query=plan.query,
            epoch=plan.epoch,
            at=plan.at,
            seed=plan.seed,
            owner=own.owner,
            replay=replay,
            depth=self._job.spec.spec.sharing_depth,
            partitions=plan.partitions,
            since=plan.since,
            until={partition: own.claimed[partition] for partition in plan.partitions},
            params=dict(self._job.spec.spec.params),
        )

    def _sink_epoch(self, plan: Plan, lanes: tuple[int, ...], replay: bool, ended: bool) -> SinkEpoch:
        held: list[Held] = list(plan.held)
        for index, lane in enumerate(lanes):
            held[lane] = plan.held[index]
        return SinkEpoch(
            kafka=self._own.kafka,
            job=self._own.job,
            topic=self._own.topic,
            owner=self._own.owner,
            query=plan.query,
            epoch=plan.epoch,
            held=tuple(held),
            lanes=lanes,
            partitions=plan.partitions,
            replay=replay,
            ended=ended,
            markers=self._markers if replay else {},
            known=() if replay else tuple(self._own.known[partition] for partition in plan.partitions),
            attempt=self._attempt,
        )

    def _noted(self, plan: Plan, reports: list[LaneReport]) -> None:
        for report in reports:
            if report.offset >= 0:
                partition = plan.partitions[report.lane]
                self._own.known[partition] = max(report.offset, self._own.known[partition])


def _spans(**seconds: float) -> list[dict[str, Any]]:
    """Parts of an epoch, as its event tells them."""
    return [{"name": name, "duration_ms": round(one * 1000, 1)} for name, one in seconds.items()]


def _show(scans: tuple[tuple[Held, ...], ...]) -> str:
    return " and ".join("[" + ", ".join(str(held) for held in scan) + "]" for scan in scans) or "nothing"
