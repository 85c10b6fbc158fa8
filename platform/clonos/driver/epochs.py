"""One epoch on the driver: plan, publish, commit. This is the commit protocol of docs/protocol.md.

Spark calls the runner for epoch *e* of one query after it has written ``offsets/e``:

1. If the log holds a plan for *e*, this is a replay of that plan: Spark's offset-log entry, ranges, lanes and code
   must be those of the plan. Otherwise the epoch is fresh: commit a plan before any task starts.
2. Publish the scope of the causal services to the tasks.
3. The tasks and the sink's writer publish every lane that is not yet published (`clonos.spark.lane_sink`).
4. Commit the epoch to the log, before Spark writes ``commits/e``.
5. Publish the progress for lag tools, report the epoch, audit the replay.

Plans and determinants are the causal log of Clonos (Silvestre et al., SIGMOD 2021, doi 10.1145/3448016.3457320).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, get_args

import structlog
from pyspark.sql import SparkSession

from clonos.causal.counting import count
from clonos.causal.epoch_scope import PROPERTY, TOPIC_IDS, EpochScope, encode_scope
from clonos.driver.checkpoint import CheckpointDirectory, epoch_time, progress_of, source_ends
from clonos.driver.epoch_bound import EpochBound
from clonos.driver.in_doubt import EpochInDoubt, code_changed
from clonos.driver.planned import Planned, contradictions, read_plan
from clonos.driver.rescaling import RescaleDue
from clonos.driver.resolutions import accepted_decisions
from clonos.driver.static_inputs import StaticInputs
from clonos.driver.topic_ids import TopicIds, check_deleted_topics, check_source_topics, deleted
from clonos.errors import (
    CheckpointMismatch,
    CheckpointOutdated,
    ClonosError,
    EpochFailed,
    EpochTooLarge,
    ForeignRecord,
    KafkaAccessDenied,
    Superseded,
)
from clonos.extend.lanes import at_point, divergence
from clonos.extend.sink import Decision, LaneReport, SinkEpoch, SinkLane
from clonos.extend.source import Progress
from clonos.faults import reach
from clonos.formats.poison import drops
from clonos.jobs.context import Query
from clonos.jobs.definition import Job
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.reading import SINGLE_RECORD_TRANSACTION
from clonos.log.records import EpochCommitted, EpochIdentity, Marker, Plan, Resolution, show_scans
from clonos.log.truncation import truncate
from clonos.resolve_command import new_code_command
from clonos.spark.internals import executed_plan, late_rows, running_query
from clonos.spark.lane_sink import EpochRows, EpochWriter, TaskPlan
from clonos.spark.source_streams import LiveTasks, finished_topics, take_latencies
from clonos.telemetry.driver_events import (
    Epoch,
    NotTruncated,
    OperatorCounts,
    SourceTopicsDeleted,
    Span,
    Truncated,
)
from clonos.telemetry.events import Emit

_Result = TypeVar("_Result")


class PlanRestored(EpochFailed):
    """Spark's offset-log entry differed from the log's plan. The entry is restored; start the query again."""

    slug = "plan-restored"


class NotStarted(EpochFailed):
    """The epoch was not started, because the job is stopping."""

    slug = "not-started"


class Begun(NamedTuple):
    """An epoch with a plan, which its tasks compute now; with the monotonic times of its steps, in seconds."""

    identity: EpochIdentity
    plan: Plan
    sink_epoch: SinkEpoch
    entry: str  # Spark's offset-log entry
    committed: bool  # whether the log already holds the epoch's commit
    started: float
    planned: float


class EpochRunner:
    """Runs the epochs of one query for one owner; a `clonos.spark.lane_sink.Committer`.

    Args:
        spark: The session.
        job: The job.
        query: The query.
        checkpoint: The query's checkpoint.
        ownership: The job's causal log, as claimed.
        writer: Brings the epochs to the sink.
        emit: Receives the events ``epoch``, ``truncated`` and ``source-topics-deleted``.
        on_progress: Called with the query and the end offsets after each epoch.
        pins: Schema Registry request → schema id, for the requests of the job's definition.
        attempt: Number of restarts since the last finished epoch.
        topic_ids: Looks up the ids of the topics of plans.
        by_pattern: Whether a source of the query reads the topics of a pattern.
        source_topics: The topics that the query has read.
        published_topics: The topics that it is known to write, topics of poison records included.
        static_inputs: The files that the query is joined with.
        rescale_after: The epoch after which the query must be rescaled; None: it continues.
    """

    count_tasks: Callable[[], LiveTasks] = LiveTasks  # of an epoch that reads until it is ended
    epoch_s = 0  # duration of an epoch that reads until it is ended, in seconds; 0: each epoch has a planned end

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        query: Query,
        checkpoint: CheckpointDirectory,
        ownership: Ownership,
        writer: EpochWriter,
        emit: Emit,
        on_progress: Callable[[str, Progress], None],
        *,
        pins: dict[str, int] | None = None,
        attempt: int = 0,
        topic_ids: TopicIds | None = None,
        by_pattern: bool = False,
        source_topics: frozenset[str] = frozenset(),
        published_topics: frozenset[str] = frozenset(),
        static_inputs: StaticInputs | None = None,
        rescale_after: int | None = None,
    ) -> None:
        self.failure: BaseException | None = None  # the exception of the last epoch; Spark keeps only its text
        self.finished = 0  # number of epochs that this runner has finished
        self.idle = False  # whether no epoch is in progress and the newest epoch had no input
        # Whether this runner has published an epoch; not a replay of one that was published before.
        self.published = False
        self.reads = ""  # the newest planned epoch and the ranges that it reads, as text; empty before the first
        self.busy = threading.Lock()  # lock that is held while an epoch is in progress
        self.stopping = False  # set this to True to refuse further epochs
        self.last_epoch: int | None = None  # the epoch after which it refuses further ones; None: none
        # Called with the maximum number of records of the next epochs, when it changes.
        self.on_bound: Callable[[int], None] | None = None
        continuous = not query.interval_ms and not job.spec.spec.trigger.available_now
        self._bound = EpochBound(
            query.interval_ms / 1000, ownership.state.speeds.get(query.name) if continuous else None
        )
        self._spark = spark
        self._job = job
        self._query = query
        self._checkpoint = checkpoint
        self._own = ownership
        self._emit = emit
        self._on_progress = on_progress
        self._pins = pins or {}
        self._attempt = attempt
        self._jquery: Any = None
        self._run_id = ""
        self._writer = writer
        self._begun: Begun | None = None
        self._aborted: SinkEpoch | None = None
        self._topic_ids = topic_ids
        self._by_pattern = by_pattern
        self._source_topics = source_topics
        self._published_topics = published_topics
        self._static_inputs = static_inputs
        self._rescale_after = rescale_after
        # Markers read at the claim are valid only for epochs that were in doubt then.
        self._markers = {
            lane: marker
            for (sink, lane), partition in ownership.state.lanes.items()
            if sink == query.name and (marker := self._usable(ownership.markers.get(partition))) is not None
        }

    @property
    def bound(self) -> int:
        """Maximum number of records that each source reads in the next epoch."""
        return self._bound.records

    def _usable(self, marker: Marker | None) -> Marker | None:
        return marker if marker is not None and marker.owner.lineage == self._own.owner.lineage else None

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """Plan an epoch, and what its tasks do with their rows; `commit` or `abort` ends it."""
        self.busy.acquire()
        try:
            with structlog.contextvars.bound_contextvars(query=self._query.name, epoch=epoch):
                begun = self._begin(epoch, partitions)
                plan = self._published(lambda: self._writer.begin(begun.sink_epoch, partitions))
                self._begun = begun
                return plan
        except BaseException as failure:
            self.failure = failure
            self.busy.release()
            raise

    def commit(self, epoch: int, rows: EpochRows) -> None:
        """Publish the rows of the epoch that no task has published, and commit it."""
        begun = self._begun
        if begun is None or begun.identity.epoch != epoch:
            raise AssertionError(f"epoch {epoch} was not begun")
        try:
            with structlog.contextvars.bound_contextvars(query=self._query.name, epoch=epoch):
                reports = self._published(lambda: self._writer.publish(begun.sink_epoch, rows))
                self._finish(begun, reports, rows)
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._end()

    def abort(self, _epoch: int) -> None:
        """End an epoch whose task or commit failed."""
        self._writer.discard()
        self._aborted = self._begun.sink_epoch if self._begun is not None else None
        self._end()

    def cut(self) -> None:
        """End the epoch in progress as soon as possible. An epoch with a planned end ends by itself."""

    def reach(self, point: str, task: int) -> None:
        """Trigger the injected faults of a task that publishes its lane, in tests."""
        if (begun := self._begun) is not None:
            at_point(point, begun.sink_epoch, begun.sink_epoch.lane_of(task))

    def explain(self, error: ClonosError) -> ClonosError:
        """Return the error of a query of which a task failed with `error`: a takeover fences its tasks' producers."""
        if self._aborted is None or not isinstance(error, EpochFailed | EpochTooLarge):
            return error
        try:
            with self._own.lock:
                self._own.control.check_owner()
        except Superseded as superseded:
            return superseded
        except ClonosError:
            pass  # the next claim finds out
        if isinstance(error, EpochTooLarge) and not self._aborted.attempt:
            return EpochFailed(error.what)  # the next attempt has the longest time
        return error

    def _end(self) -> None:
        if self._begun is not None:
            self._begun = None
            self.busy.release()

    def _begin(self, epoch: int, partitions: int) -> Begun:
        """Plan the epoch (step 1), and set the scope of its causal services (step 2)."""
        if self.stopping:
            raise NotStarted(f"Epoch {epoch} of {self._query.name} was not started: the job is stopping.")
        started = time.monotonic()
        name = self._query.name
        self.idle = False
        # Step 1: plan.
        logged_plan = self._own.state.plan(name, epoch)
        # A rescale, and a live epoch that an old checkpoint lacks, are finished before the query starts.
        is_due = logged_plan is not None and (logged_plan.rescaled_to > 0 or logged_plan.live)
        if is_due or (self._rescale_after is not None and epoch > self._rescale_after):
            raise RescaleDue(f"Before epoch {epoch} of {name} the query starts again.")
        replay = logged_plan is not None
        reach("offsets-logged", query=name, epoch=epoch, replay=replay)
        planned, entry = self._inputs(epoch, partitions)
        committed = epoch <= self._own.state.committed.get(name, -1)
        plan_offset = -1
        if logged_plan is not None:
            plan = self._replayed_plan(logged_plan, planned, entry)
        else:
            plan_offset, plan = self._fresh_plan(planned, epoch, entry, committed)
        self.reads = f"{epoch} of {name} reads {show_scans(plan.scans)}"
        resolution = self._resolution(epoch)
        committed = committed and not (resolution is not None and resolution.action == "republish")
        identity = EpochIdentity(
            job=self._own.job, log_topic=self._own.topic, query=name, epoch=epoch, owner=self._own.owner, replay=replay
        )
        sink_epoch = self._sink_epoch(identity, plan, planned.lanes(), committed, plan_offset)
        begun = Begun(identity, plan, sink_epoch, entry, committed, started, time.monotonic())
        reach("plan-committed", query=name, epoch=epoch, replay=replay)
        # Step 2: scope of the causal services.
        self._spark.sparkContext.setLocalProperty(PROPERTY, encode_scope(self._scope(identity, plan)))
        self._spark.sparkContext.setLocalProperty(TOPIC_IDS, self._source_ids(plan))
        return begun

    def _finish(self, begun: Begun, reports: list[LaneReport], rows: EpochRows) -> None:
        """Commit the published epoch (step 4), report and audit it (step 5)."""
        name, epoch, replay = begun.identity.query, begun.identity.epoch, begun.identity.replay
        self._note_tails(begun.plan, reports)
        self._clear_scope()
        published_at = time.monotonic()
        # Step 4: commit.
        records = sum(report.records for report in reports)
        if not begun.committed:
            with self._own.lock:
                duration_ms = round((time.monotonic() - begun.started) * 1000)
                end = EpochCommitted(self._own.owner, name, epoch, records, duration_ms)
                self._own.state.take(self._own.control.append(end), end)
        spans = _spans(
            plan=begun.planned - begun.started,
            publish=published_at - begun.planned,
            commit=time.monotonic() - published_at,
        )
        reach("epoch-committed", query=name, epoch=epoch, replay=replay)
        # Step 5: progress, report, audit.
        progress = progress_of(begun.entry)
        self._on_progress(name, progress)
        read = begun.plan.records_by_topic
        self._report(begun, reports, progress, spans, read=read, records=records)
        self._attempt = 0
        if not begun.sink_epoch.may_differ:
            self._audit(begun.identity, reports, records if begun.committed else None)
        self.idle = read.total() == 0 and not replay  # after a replay there may be input
        if epoch % RETAINED_EPOCHS == RETAINED_EPOCHS - 1 and not replay:
            self._writer.discard()  # the renewed claim fences its producer
            with self._own.lock:
                self._truncate(name)
        if all(report.outcome not in ("skipped", "audited") for report in reports):
            # Otherwise neither the output's size nor the time to publish it is known.
            self._adapt_bound(read.total(), time.monotonic() - begun.started, rows.size)
        self.published |= any(report.outcome == "published" for report in reports)
        reach("epoch-done", query=name, epoch=epoch, replay=replay)
        self.finished += 1
        if self.last_epoch is not None and epoch >= self.last_epoch:
            self.stopping = True

    def _clear_scope(self) -> None:
        """Tasks between epochs (there should be none) do not belong to an epoch."""
        for local in (PROPERTY, TOPIC_IDS):
            self._spark.sparkContext.setLocalProperty(local, None)  # type: ignore[arg-type]

    def _truncate(self, name: str) -> None:
        try:
            self._emit(Truncated(name, len(truncate(self._own, sink=name))))
        except KafkaAccessDenied as error:  # the log grows; the job can run
            self._emit(NotTruncated.of(error, query=name))

    def _adapt_bound(self, read: int, seconds: float, size: int) -> None:
        if self._bound.update(read=read, seconds=seconds, size=size) and self.on_bound is not None:
            self.on_bound(self._bound.records)

    def _report(
        self,
        begun: Begun,
        reports: list[LaneReport],
        progress: Progress,
        spans: list[Span],
        *,
        read: Counter[str],
        records: int,
    ) -> None:
        """Emit the ``epoch`` event."""
        identity = begun.identity
        operators = count.take(identity.query)
        dropped = drops.take(identity.query, identity.epoch, str(identity.owner))
        latencies = take_latencies(self._spark, self._run_id) if read.total() else {}
        done = Epoch(
            query=identity.query,
            epoch=identity.epoch,
            replay=identity.replay,
            records_in=read.total(),
            records_out=records,
            published_lanes=sum(report.outcome != "empty" for report in reports),
            skipped_lanes=sum(report.outcome in ("skipped", "audited") for report in reports),
            diverged_lanes=sum(report.diverged for report in reports),
            recorded_determinants=sum(tally.recorded for tally in operators.values()),
            recorded_bytes=sum(tally.bytes for tally in operators.values()),
            replayed_determinants=sum(tally.replayed for tally in operators.values()),
            dead_letters=sum(report.dead_letters for report in reports),
            # The replay of a committed epoch only audits: its dropped records were reported when it was committed.
            dropped=0 if begun.committed else dropped,
            late_rows=0 if begun.committed else late_rows(self._spark, self._jquery),
            duration_ms=round((time.monotonic() - begun.started) * 1000),
            spans=spans,
            operators={operator: OperatorCounts(*tally) for operator, tally in operators.items()},
            topics_in=dict(read),
            latencies={} if begun.committed else latencies,
            offsets={topic: {str(number): next_ for number, next_ in read.items()} for topic, read in progress.items()},
        )
        self._emit(done)

    def _published(self, publish: Callable[[], _Result]) -> _Result:
        """Let the writer publish every lane (step 3)."""
        try:
            return publish()
        except Superseded as error:
            with self._own.lock:
                self._own.control.check_owner()
            # A driver that takes over claims control before any lane.
            raise ForeignRecord(f"{error.what} But no driver other than {self._own.owner} claimed the job.") from error

    def _audit(self, identity: EpochIdentity, reports: list[LaneReport], replayed: int | None) -> None:
        """Refuse a replay that differs from the published output: state must not continue from it.

        Args:
            identity: The epoch.
            reports: The sink's reports.
            replayed: Number of records of the replay of a committed epoch; None if the epoch was not committed yet.
        """
        wrong = [report.lane for report in reports if report.diverged]
        end = self._own.state.commits.get(identity.query)
        if replayed is not None and end is not None and end.epoch == identity.epoch and end.records != replayed:
            # A lane without rows has no marker to compare with, but the commit record holds the sum of all lanes.
            wrong = wrong or [report.lane for report in reports if report.outcome != "audited"]
        if wrong:
            kept = "the published output stands; the replay published nothing."
            raise divergence(identity, wrong, kept=kept, decisions=self._decisions)

    @property
    def _decisions(self) -> tuple[str, ...]:
        accepted = accepted_decisions(self._query.sink)
        return tuple(name for name in get_args(Decision) if name in accepted)

    def _find_query(self) -> None:
        if self._jquery is None:
            self._jquery = running_query(self._spark)
            self._run_id = str(self._jquery.runId())

    def _inputs(self, epoch: int, partitions: int) -> tuple[Planned, str]:
        """Return what the epoch reads, and Spark's offset-log entry.

        Raises:
            EpochFailed: The checkpoint has no entry.
        """
        self._find_query()
        entry = self._checkpoint.read_offsets(epoch)
        if entry is None:
            raise EpochFailed(
                f"offsets/{epoch} of {self._query.name} is not in the checkpoint {self._checkpoint.location}."
            )
        planned = read_plan(executed_plan(self._spark, self._jquery), partitions)
        return planned._replace(input_slices=self._writer.lanes(planned.input_slices)), entry

    def _resolution(self, epoch: int) -> Resolution | None:
        """Return the user's decision about the epoch, if it was made for the code of this job."""
        resolution = self._own.state.resolutions.get((self._query.name, epoch))
        return resolution if resolution is not None and resolution.code == self._job.code else None

    def _replayed_plan(self, plan: Plan, planned: Planned, entry: str) -> Plan:
        """Return the log's plan, checked against Spark's plan and the job.

        Raises:
            PlanRestored: Spark's offset-log entry differed; the plan's entry has replaced it.
            CheckpointMismatch: Code, schemas, delivery mode, ranges or lanes differ.
        """
        epoch, name = plan.epoch, self._query.name
        if plan.offsets != entry:
            self._checkpoint.write_offsets(epoch, plan.offsets)
            raise PlanRestored(f"restored offsets/{epoch} from the plan")
        accepted = self._resolution(epoch) is not None
        if plan.code != self._job.code and not accepted:
            in_doubt = EpochInDoubt(name, epoch, plan.code, published=True)
            raise code_changed(self._job.spec.name, [in_doubt], self._job.code, self._own.state.codes)
        # The driver defines the job with the plan's pins, but two queries in doubt may have different pins.
        other_pins = [lookup for lookup, answer in plan.pins.items() if self._pins.get(lookup, answer) != answer]
        if other_pins and not accepted:
            raise CheckpointMismatch(
                f"The replay of epoch {epoch} of {name} would use other schemas than its plan: "
                f"{'; '.join(other_pins)}.",
                hint="name versions instead of the latest one, and accept that for all epochs in doubt: "
                f"{new_code_command(self._job.spec.name)}.",
            )
        now = self._static_fingerprints()
        changed_inputs = [input_ for input_, before in plan.static_inputs.items() if now.get(input_) != before]
        if changed_inputs and not accepted:
            raise CheckpointMismatch(
                f"The static input {changed_inputs[0]} changed while epoch {epoch} of {name} was in doubt.",
                hint="restore its files until the epoch is finished, or accept the change for all epochs in doubt: "
                f"{new_code_command(self._job.spec.name)}.",
            )
        if plan.delivery != self._query.sink.delivery:
            raise CheckpointMismatch(
                f"Epoch {epoch} of {name} was planned for {plan.delivery} delivery, the sink is now "
                f"{self._query.sink.delivery}.",
                hint=f"go back to delivery={plan.delivery!r} until the epoch is finished, then change it.",
            )
        if plan.scans != planned.scans or plan.input_slices != planned.input_slices:
            raise CheckpointMismatch(
                f"The replay of epoch {epoch} of {name} would read {show_scans(planned.scans)} into "
                f"{len(planned.input_slices)} partitions; its plan reads {show_scans(plan.scans)} into "
                f"{len(plan.input_slices)}.",
                hint="do not change topics, source options or spark.sql.shuffle.partitions while an epoch is in doubt.",
            )
        return plan

    def _fresh_plan(self, planned: Planned, epoch: int, entry: str, committed: bool) -> tuple[int, Plan]:
        """Commit a plan; returns its offset in the control partition, and the plan."""
        name = self._query.name
        if committed:
            raise CheckpointOutdated(
                f"Epoch {epoch} of {name} was already published; the log no longer holds its plan."
            )
        ends = source_ends(entry)
        if wrong := contradictions(planned.scans, ends):
            # A plan with both could never be replayed.
            raise EpochFailed(
                f"offsets/{epoch} of {name} changed after Spark planned the epoch: {wrong[0]} in the plan only."
            )
        left = self._deleted_topics(frozenset[str]().union(*ends))
        with self._own.lock:
            partitions = self._own.ensure_lanes(name, len(planned.input_slices))
            plan = Plan(
                self._own.owner,
                name,
                epoch,
                input_slices=planned.input_slices,
                scans=planned.scans,
                log_partitions=partitions,
                # A live epoch is never replayed: it needs no record of an earlier owner.
                start_offsets={} if planned.live else {part: self._own.tail_offsets[part] for part in partitions},
                seed=secrets.randbits(63),
                code=self._job.code,
                offsets=entry,
                timestamp_ms=epoch_time(entry),
                pins=self._pins,
                delivery=self._query.sink.delivery,
                topic_ids=self._new_topic_ids(planned) | left,
                static_inputs=self._static_fingerprints(),
                finished_topics=self._finished_topics(planned),
                live=planned.live,
            )
            offset = self._own.control.append(plan)
            self._own.state.take(offset, plan)
        return offset, plan

    def _static_fingerprints(self) -> dict[str, str]:
        return self._static_inputs.fingerprints() if self._static_inputs is not None else {}

    def _new_topic_ids(self, planned: Planned) -> dict[str, str]:
        """Topic → id, for the topics of the epoch that the log does not know, or knows with another id."""
        topics = {part.topic for scan in planned.scans for part in scan}
        ids = self._ids(topics | self._published_topics)
        known = self._own.state.topic_ids
        if self._by_pattern:  # a topic may have appeared again since the job's start
            read = {name: ids[name] for name in topics & ids.keys()}
            check_source_topics(known, read, job=self._own.job)
            check_deleted_topics(known, read)
        return {name: id_ for name, id_ in ids.items() if known.get(name) != id_}

    def _ids(self, topics: Iterable[str]) -> dict[str, str]:
        return self._topic_ids.of(topics) if self._topic_ids is not None else {}

    def _source_ids(self, plan: Plan) -> str:
        """Return the ids of the plan's source topics, as `clonos.TopicIds` reads them in tasks."""
        known = self._own.state.topic_ids
        topics = sorted({part.topic for scan in plan.scans for part in scan} & known.keys())
        return ",".join(f"{topic}={known[topic]}" for topic in topics)

    def _finished_topics(self, planned: Planned) -> frozenset[str]:
        """Return the epoch's topics that a pattern selects and the epoch reads to the end."""
        if not self._by_pattern:
            return frozenset()
        finished = finished_topics(self._spark, self._run_id)
        return finished & {part.topic for scan in planned.scans for part in scan}

    def _deleted_topics(self, topics: frozenset[str]) -> dict[str, str]:
        """Return the topics of the epoch before that are not in this one, as the plan holds them: they were read to
        their end and deleted.

        Args:
            topics: The topics in the offset-log entry of the epoch.
        """
        names = sorted(self._source_topics - topics)
        if names and self._topic_ids is not None:
            self._topic_ids.forget(names)
        self._source_topics = topics
        if names:
            self._emit(SourceTopicsDeleted(self._query.name, names))
        known = self._own.state.topic_ids
        return {name: deleted(known.get(name, "")) for name in names}

    def _scope(self, identity: EpochIdentity, plan: Plan) -> EpochScope:
        return EpochScope(
            identity,
            plan.timestamp_ms,
            plan.seed,
            depth=self._job.spec.spec.sharing_depth,
            log_partitions=plan.log_partitions,
            start_offsets=plan.start_offsets,
            claim_offsets={partition: self._own.claimed[partition] for partition in plan.log_partitions},
            params=dict(self._job.spec.spec.params),
        )

    def _sink_epoch(
        self, identity: EpochIdentity, plan: Plan, numbers: tuple[int, ...], committed: bool, plan_offset: int
    ) -> SinkEpoch:
        lanes = [
            SinkLane(
                number,
                task,
                plan.input_slices[task],
                plan.log_partitions[number],
                tail_offset=-1 if identity.replay else self._own.tail_offsets[plan.log_partitions[number]],
                log_end=self._own.tail_offsets[plan.log_partitions[number]] + SINGLE_RECORD_TRANSACTION,
                marker=self._markers.get(number) if identity.replay else None,
            )
            for task, number in enumerate(numbers)
        ]
        lanes.sort(key=lambda lane: lane.number)
        return SinkEpoch(
            identity,
            self._own.kafka,
            tuple(lanes),
            committed,
            self._attempt,
            plan_offset,
            self._resolution(identity.epoch) if identity.replay else None,
            self._decisions,
            # Not the log's ids: a sink topic may have been created again since the epoch was planned.
            self._ids(self._published_topics | {self._own.topic}),
        )

    def _note_tails(self, plan: Plan, reports: list[LaneReport]) -> None:
        for report in reports:
            if report.marker_offset >= 0:
                partition = plan.log_partitions[report.lane]
                self._own.tail_offsets[partition] = max(report.marker_offset, self._own.tail_offsets[partition])


def _spans(**seconds: float) -> list[Span]:
    """Return the phases of an epoch, as its event holds them."""
    return [Span(name, round(duration * 1000, 1)) for name, duration in seconds.items()]
