"""The driver: runs one job until it is stopped, superseded or finished, or fails for good.

A failed query is restarted in the same warm session, always under a new claim. The claim voids late writes of old
tasks and aborts their transactions. All queries of a job share one claim, so all of them are restarted.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clonos.causal.counting import count
from clonos.causal.derived import set_driver_params
from clonos.deadline import Deadline
from clonos.driver.checkpoint import CheckpointDirectory, check_restart, next_plan, restart_topics
from clonos.driver.checkpoint_owner import CheckpointOwner, JobOwner
from clonos.driver.code_identity import code_parts
from clonos.driver.continuity import check_sinks
from clonos.driver.epochs import PlanRestored
from clonos.driver.finished_topics import without
from clonos.driver.in_doubt import code_changed, epochs_in_doubt, last_own, may_be_visible, of_other_code
from clonos.driver.job_graph import job_graph, published_topics
from clonos.driver.live_epochs import end_live_epochs, epochs_because
from clonos.driver.options import RunOptions
from clonos.driver.parked import Parking
from clonos.driver.positions import Positions, sink_topics
from clonos.driver.preparation import Preparation
from clonos.driver.repeatable import check_sources
from clonos.driver.rescaling import RescaleDue
from clonos.driver.restart_budget import RestartBudget
from clonos.driver.running import Running
from clonos.driver.start_order import StartOrder
from clonos.driver.states import DriverState, StateMachine
from clonos.driver.topic_ids import TopicIds, check_source_topics, created_again, topic_ids
from clonos.driver.watches import KafkaWatch, wait_for_kafka
from clonos.errors import (
    BrokerUnavailable,
    CheckpointUnavailable,
    ClonosError,
    JvmExited,
    ServiceUnavailable,
    SourceOffsetsExpired,
    StopTimedOut,
    Superseded,
    TargetUnavailable,
)
from clonos.extend.source import Progress
from clonos.formats.poison import drops
from clonos.formats.registry import Pins
from clonos.jobs.code_files import code_hash
from clonos.jobs.context import JobContext, Query
from clonos.jobs.definition import Job
from clonos.jobs.spec import SharingDepth
from clonos.kafka import await_brokers, explained
from clonos.log.claiming import Claimant, Ownership
from clonos.log.control import ControlState, known_control
from clonos.log.prepared import Prepared
from clonos.log.records import Claim, Resolution
from clonos.log.topic import log_deleted, log_topic
from clonos.settings import KafkaSettings
from clonos.spark.session import alive
from clonos.spark.source_streams import forget_consumers, long_polls
from clonos.spark.storage import leave_checksums_to_hadoop
from clonos.telemetry import driver_events as report
from clonos.telemetry.driver_events import Graph
from clonos.telemetry.events import Events

_POLL_S = 0.1
_READY_POLL_S = 0.02  # until all queries are ready: a part of the time that a recovery reports
_BROKERS_TIMEOUT_S = 10.0
_ANSWER_S = 3.0
_WAIT_S = 1.0
_LONGEST_WAIT_S = 15.0
# A request that Kafka did not answer may fail this much later: longer than the timeouts of Kafka's clients.
_OUTAGE_FOLLOWS_S = 90.0
# Without a finished epoch in between, no more failures than these count as late effects of an outage.
_ASSUMED_OUTAGES = 5


class Driver:
    """Runs one job on a session.

    Args:
        job: The job.
        spark: A session that `clonos.spark.session` built, or that `clonos.spark.user_session` has checked.
        kafka: The Kafka cluster.
        events: Receives the job's events.
        options: The options of this run; `RunOptions.checkpoint` must be set.
        on_start: Called with a query, its source offsets and its interval in seconds, before it starts; after a claim,
            without offsets.
        on_progress: Called with a query and its source offsets after each epoch.
        on_defined: Called with the topics that the job reads, and those that it writes.
    """

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        kafka: KafkaSettings,
        events: Events,
        options: RunOptions,
        *,
        on_start: Callable[[str, Progress, float], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
        on_defined: Callable[[frozenset[str], frozenset[str]], None] | None = None,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._checkpoint = options.checkpoint.rstrip("/")
        self._events = events
        self._options = options
        self._on_start = on_start
        self._on_progress = on_progress
        self._on_defined = on_defined
        self._machine = StateMachine()
        self._asked_to_stop = False
        self._wake = threading.Event()
        self._budget = RestartBudget(job.spec.spec.restart_policy)
        self._context = JobContext(spark, job.spec, kafka)
        self._graph: Graph = {}
        parts = code_parts(job, options.conf, options.cluster.spec.spark_conf if options.cluster is not None else None)
        self._job = replace(job, code=code_hash(parts))
        self._claimant = Claimant(
            kafka, job.spec.name, code=self._job.code, code_parts=parts, platform=options.platform, adopt=options.adopt
        )
        self._topic_ids = TopicIds(kafka)
        self._service_waits = 0  # for services, since the last finished epoch
        self._kafka_watch = KafkaWatch(kafka, events.emit, log=log_topic(job.spec.name))
        self._failing: str | None = None
        self._assumed_outages = 0  # failures since the last finished epoch that an outage of Kafka may have caused
        self._running: list[Running] = []
        self._own: Ownership | None = None  # the newest claim
        self._directories: dict[str, CheckpointDirectory] = {}
        self.parking = Parking(job.spec.name, kafka, events.emit)

    @property
    def state(self) -> DriverState:
        """The driver's state, for example ``RUNNING`` or ``RESTARTING``."""
        return self._machine.state

    @property
    def streams(self) -> list[StreamingQuery]:
        """Spark's query objects that the newest start or restart has created."""
        return [running.stream for running in self._running if running.stream is not None]

    def busy(self) -> set[str]:
        """Return the queries that have an epoch in progress which has input; a live epoch lasts without input too."""
        return {
            running.query.name
            for running in self._running
            if running.runner.busy.locked() and not running.runner.epoch_s
        }

    def run_id(self, query: str) -> str | None:
        """Spark's id of a query's newest run; None before its start."""
        runs = (
            str(running.stream.runId) for running in self._running if running.stream and running.query.name == query
        )
        return next(runs, None)

    @property
    def queries(self) -> list[Query]:
        """The job's queries; empty before `define`."""
        return self._context.queries

    def live_queries(self) -> list[Query]:
        """Return the job's queries that run live, after `define`."""
        trigger, queries = self._job.spec.spec.trigger, self.queries
        if trigger.mode == "epochs":
            return []
        return [query for query in queries if not epochs_because(query, trigger, self._kafka, len(queries))]

    @property
    def sharing_depth(self) -> SharingDepth:
        """The number of replicas that acknowledge a determinant; ``0``: none is recorded."""
        return self._job.spec.spec.sharing_depth

    @property
    def asked_to_stop(self) -> bool:
        """Whether a graceful stop of this driver was requested."""
        return self._asked_to_stop

    def stop(self) -> None:
        """Request a graceful stop: the epoch in progress is finished first.

        This only sets a flag, because a signal handler may interrupt code that holds a lock.
        """
        self._asked_to_stop = True

    def accept_new_code(self) -> None:
        """Allow the replay of epochs in doubt with the current code, although other code planned them."""
        self._options = replace(self._options, accept_new_code=True)

    def define(self, pins: Pins | None = None) -> None:
        """Build the queries, with `pins` as the Schema Registry's answers, and refuse an invalid job before the
        claim.
        """
        # Assigned only when complete: after an error half way, the job would run with some of its queries.
        self._context = self._build_context(pins, rehearsal=False)
        self._graph = job_graph(self._context.queries, self._context.dead_letter_topics)
        if self._on_defined is not None:
            self._on_defined(self._positions.source_topics(), frozenset(sink_topics(self._context.queries)))

    @functools.cached_property
    def _checkpoint_owner(self) -> CheckpointOwner:
        options = self._options
        owner = JobOwner(self._job.spec.name, options.owners, options.platform, adopt=options.adopt)
        return CheckpointOwner(self._spark, self._checkpoint, owner)

    def rehearsed(self) -> list[Query]:
        """Define the job with sources that filter out all rows, for `clonos.standby.rehearsal`, and return its
        queries.

        Call `define` afterwards, before `run`.
        """
        return self._build_context(None, rehearsal=True).queries

    def _build_context(self, pins: Pins | None, *, rehearsal: bool) -> JobContext:
        set_driver_params(dict(self._job.spec.spec.params))
        count.attach(self._spark.sparkContext)
        drops.attach(self._spark.sparkContext)
        leave_checksums_to_hadoop(self._spark, self._checkpoint)
        context = JobContext(self._spark, self._job.spec, self._kafka, rehearsal=rehearsal)
        context.pins = pins or context.pins
        with long_polls(self._spark):
            self._job.define(context)
        for query in context.queries:
            check_sources(query.frame)
        return context

    def checkpoints(self) -> dict[str, CheckpointDirectory]:
        """Return the checkpoint of each query, by name."""
        return {query.name: self._directory(query) for query in self.queries}

    @property
    def _positions(self) -> Positions:
        return Positions(self._context, self._directory)

    def _directory(self, query: Query) -> CheckpointDirectory:
        """Return the checkpoint of a query; the object is kept, because its creation asks the JVM a dozen times."""
        location = query.location(self._checkpoint)
        if location not in self._directories:
            self._directories[location] = CheckpointDirectory(self._spark, location)
        return self._directories[location]

    def check(self) -> None:
        """Refuse unusable checkpoints, and sources that no longer hold records which the next epoch needs.

        This claims nothing.

        Raises:
            ClonosError: A checkpoint is another job's, damaged or not writable, or a source lacks records or does not
                select its topics any more.
        """
        self._checkpoint_owner.check()
        for query in self._context.queries:
            self._directory(query).check()
            start = self._positions.next_start(query)
            self._positions.check_selected(query, start)
            # Whether a deleted topic of a pattern was read to its end is in the log.
            try:
                self._positions.check_retained(without(start, self._positions.deleted_topics(start)))
            except SourceOffsetsExpired as error:
                if self._job.spec.spec.trigger.mode != "epochs":
                    continue  # a live epoch may have read more: that is in the log too, which this does not read
                self._check_topics(error)
                raise

    def run(self, prepared: Prepared | None = None) -> None:
        """Run the job until it is stopped, finished or superseded, or fails.

        Args:
            prepared: Connections for the first claim. The caller has called `check` already, so that the claim is
                not delayed.

        Raises:
            Superseded: Another driver claimed the job.
            JobForeign: Another platform has claimed the job.
            StopTimedOut: An epoch did not finish in time after a stop request.
            ClonosError: A restart cannot fix the error, or the attempts of the restart policy are used up.
        """
        self._kafka_watch.start()
        try:
            if not self._start(prepared):
                return
            while True:
                error = self._attempt(prepared)
                prepared = None
                if error is None:
                    return
                if not alive(self._spark):
                    raise error  # converted below
                if isinstance(error, RescaleDue):
                    self._to(DriverState.RESTARTING)
                    continue
                error = self._error_behind(error)
                if error.outage:
                    if not self._wait_out(error):
                        return
                    continue
                pause = self._budget.pause(error)
                self._to(DriverState.RESTARTING)
                self._events.emit(report.Restart.of(error, attempt=self._budget.attempts, pause_s=pause))
                if self._stopped_within(pause):
                    self._to(DriverState.STOPPED)
                    return
        except Superseded as error:
            if (foreign := self._claimant.taken_over()) is not None:
                self._to(DriverState.FAILED)
                self._events.emit(report.Failed.of(foreign))
                raise foreign from error
            self._to(DriverState.SUPERSEDED)
            self._events.emit(report.Superseded.of(error))
            raise
        except Exception as failure:
            cause = self._cause_of(failure)
            self._to(DriverState.FAILED)
            self._events.emit(report.Failed.of(cause))
            if cause is failure:
                raise
            raise cause from failure
        finally:
            self.parking.close()
            self._kafka_watch.stop()

    def _cause_of(self, failure: Exception) -> Exception:
        """Return the failure, or `JvmExited` if it is one of the many symptoms of a JVM that exited."""
        if (isinstance(failure, ClonosError) and not failure.retry) or alive(self._spark):
            return failure
        return jvm_exited(failure)

    def _start(self, prepared: Prepared | None) -> bool:
        """Define and check the job before the first claim; returns False if it was stopped before."""
        while True:
            try:
                if self._options.wait_for_kafka and prepared is None:  # a promoted standby is connected
                    await_brokers(self._kafka, timeout_s=_ANSWER_S)
                if not self._context.queries:
                    self.define()
                if self._options.new_lineage:
                    self._restart_topics()
                if prepared is None:
                    self.check()
                return True
            except ClonosError as error:
                cause = explained(self._kafka, error)
                if not (error.outage and self._options.wait_for_kafka):
                    if cause is error:
                        raise
                    raise cause from error
                if not self._wait_out(cause):
                    return False
                self._to(DriverState.STARTING)

    def _error_behind(self, error: ClonosError) -> ClonosError:
        """Return the error behind a failure: an outage or a full disk, for example, have many symptoms.

        Raises:
            Superseded: A takeover caused the failure.
            ClonosError: The checkpoint or a source is unusable.
        """
        try:
            await_brokers(self._kafka, timeout_s=_ANSWER_S)
            self._claimant.check_rival(error, self._stopped_within)
            if self._own is not None:
                self._check_topics(error)
            self.check()
        except Superseded:
            raise
        except ClonosError as cause:
            if cause.outage:
                return cause
            if not (cause.retry and error.retry):
                raise
        silent = self._kafka_watch.was_silent_within(_OUTAGE_FOLLOWS_S)
        if error.retry and silent and self._assumed_outages < _ASSUMED_OUTAGES:
            self._assumed_outages += 1
            outage = BrokerUnavailable(
                f"Kafka did not answer at some time in the last {_OUTAGE_FOLLOWS_S:.0f} s. "
                f"This may follow from it: {error.what}"
            )
            outage.__cause__ = error
            return outage
        return error

    def _wait_out(self, error: ClonosError) -> bool:
        """Wait until a dependency that is away answers again, without a limit; returns False if the job was stopped."""
        if self.state is not DriverState.WAITING:
            self._to(DriverState.WAITING)
        self._events.emit(report.Waiting.of(error))
        pause = _WAIT_S
        if isinstance(error, ServiceUnavailable):  # each attempt claims the log and asks the service
            pause = min(_WAIT_S * 2.0**self._service_waits, _LONGEST_WAIT_S)
            self._service_waits += 1
        # Kafka may answer although a coordinator or a registry does not: then the next attempt shows it.
        ready = not self._stopped_within(pause) and wait_for_kafka(self._kafka, stopped=lambda: self._asked_to_stop)
        while ready and isinstance(error, CheckpointUnavailable | TargetUnavailable) and self._is_still(error):
            ready = not self._stopped_within(_WAIT_S)
        if not ready:
            self._to(DriverState.STOPPED)
        return ready

    def _is_still(self, outage: ClonosError) -> bool:
        """Whether the checkpoint's file system, or the database of a sink, is still away."""
        try:
            if isinstance(outage, TargetUnavailable):
                for query in self._context.queries:
                    query.sink.check(self._kafka)
            else:
                self.check()
        except ClonosError as error:
            return isinstance(error, type(outage))  # the next attempt reports any other error
        return False

    def _stopped_within(self, seconds: float) -> bool:
        deadline = Deadline(seconds)
        while not self._asked_to_stop and not deadline.passed():
            time.sleep(min(_POLL_S, seconds))
        return self._asked_to_stop

    def _to(self, state: DriverState) -> None:
        self._machine.to(state)
        self._events.emit(report.State(state))

    def _attempt(self, prepared: Prepared | None) -> ClonosError | None:
        """Claim the log and run the queries; returns the error if a restart may fix it."""
        self._to(DriverState.CLAIMING)
        restart = bool(self._claimant.claim_ids)
        try:
            if restart:
                # An unavailable or refusing broker would otherwise show up later, as a timeout without a reason.
                await_brokers(self._kafka, timeout_s=_BROKERS_TIMEOUT_S)
            # A new lineage builds on the commits of the checkpoint. The claim itself holds them, so that a crash right
            # after the claim leaves no partial lineage.
            if self._options.new_lineage and not restart:
                self._end_live_before_lineage()
            lineage = self._positions.committed() if self._options.new_lineage and not restart else None
            # A claim after a claim, or on connections to the log, needs no request to the checkpoint's file system.
            knows = restart or self._options.new_lineage or (prepared is not None and bool(prepared.topic))
            had = not knows and bool(self._positions.committed())
            self._topic_ids = TopicIds(self._kafka)
            published = (published_topics(self._graph, query) for query in self._context.queries)
            self._topic_ids.prefetch(self._positions.topics().union(*published, [log_topic(self._job.spec.name)]))
            self._claimant.platform = self._checkpoint_owner.platform
            if self._options.adopt and not restart and lineage is None:
                self._check_adoption()
            own = self._claimant.claim(
                new_lineage=lineage,
                request_key=self._options.request_key,
                prepared=prepared,
                sinks=[query.name for query in self._context.queries],
                dropped=self._job.spec.spec.dropped_sinks,
                # A restore to an older point publishes again on purpose.
                carry=self._positions.interrupted() if lineage is not None and not self._options.request_key else (),
                had=had,
            )
        except ClonosError as error:
            if not error.retry:
                raise
            return error
        self._own = own
        self.parking.open()
        self._events.generation = own.owner.generation
        self._forget_positions()
        claimed = report.Claimed(
            lineage=own.owner.lineage,
            lanes=len(own.state.lanes),
            claim_id=own.owner.claim_id,
            code=self._job.code,
            # Of the sinks: the code may set another mode than the specification.
            delivery={query.name: query.sink.delivery for query in self._context.queries},
            sharing_depth=str(self._job.spec.spec.sharing_depth),
            reports_ready=True,  # older versions emit no event ``ready``
            queries=self._graph,
        )
        self._events.emit(claimed)
        self._kafka_watch.note_claim()  # the control plane forgets reports of older generations
        running: list[Running] = []
        try:
            self._to(DriverState.RECONCILING)
            self._checkpoint_owner.write(own.owner.lineage)
            self._end_live(own)
            self._check_continuity(own)
            committed = self._positions.committed()
            self._pin(own, committed)
            running = self._preparation().prepare(own, self._divide_in_doubt(own, committed))
            order = StartOrder(running, self._graph, cold=prepared is None and not restart)
            self._running = running
            self._start_due(order)
            self._to(DriverState.RUNNING)
            self._watch(running, order)
            return None
        except ClonosError as error:
            if not error.retry:
                raise
            return error
        finally:
            for started in running:
                started.stop()
            own.control.dispose()

    def _end_live(self, own: Ownership) -> None:
        """End the live epochs that a driver began and did not end."""
        for query in self._context.queries:
            for epoch in end_live_epochs(own, query.name, self._directory(query)):
                ended = f"ended the live epoch {epoch} at its newest step"
                self._events.emit(report.Reconciled(query.name, ended))

    def _end_live_before_lineage(self) -> None:
        """End live epochs with a claim of the old lineage: a new one forgets what their steps have published."""
        state, key = self._known_log(), self._options.request_key
        if state is None or state.claim is None or (key and state.claim.request_key == key):
            return
        if not any(
            plan.live and epoch > state.committed.get(query, -1) for (query, epoch), (_, plan) in state.plans.items()
        ):
            return
        own = self._claim_again(state.claim)
        try:
            self._end_live(own)
        finally:
            own.control.dispose()

    def _claim_again(self, before: Claim) -> Ownership:
        """Claim the log in the lineage of the claim `before`, and with its code."""
        return Claimant(
            self._kafka,
            self._job.spec.name,
            code=before.code,
            code_parts=before.code_parts,
            platform=self._checkpoint_owner.platform,
            adopt=self._options.adopt,
        ).claim(had=True)

    def _check_adoption(self) -> None:
        """Refuse a job whose newest epochs neither this checkpoint nor the log has, before its driver is fenced.

        Raises:
            CheckpointOutdated: Neither the checkpoint nor the log has the newest epochs.
        """
        committed = self._positions.committed()  # before the log, which is never behind it
        state = known_control(self._kafka, self._job.spec.name)
        if state is not None:
            for query in self._context.queries:
                next_plan(query.name, committed.get(query.name, -1), state)

    def _check_continuity(self, own: Ownership) -> None:
        """Refuse a job whose sinks or source topics are not those that the log knows."""
        sinks = [query.name for query in self._context.queries]
        if not self._options.finish_in_doubt:  # another version may have other sinks: it continues the job
            for name in check_sinks(own, sinks, self._options.resolutions, self._job.code):
                self._events.emit(report.SinkAdded(name))
        now = self._topic_ids.of(self._positions.topics())
        check_source_topics(own.state.topic_ids, now, job=self._job.spec.name)

    def _divide_in_doubt(self, own: Ownership, committed: dict[str, int]) -> dict[str, int] | None:
        """Refuse epochs in doubt that other code planned, before any query begins an epoch that is in doubt then.

        Returns:
            For a run that only finishes epochs in doubt: query → the last of its epochs; None: all queries run.

        Raises:
            CheckpointMismatch: Other code has to finish epochs in doubt.
        """
        code, name = self._job.code, self._job.spec.name
        in_doubt = epochs_in_doubt(own, committed, [query.sink for query in self.queries])
        if self._options.finish_in_doubt:
            return last_own(in_doubt, code)
        if self._options.accept_new_code:
            return None
        requested = {(request.query, request.epoch) for request in self._options.resolutions}
        refused = of_other_code(own, in_doubt, code, requested)
        if self._options.accept_unpublished:
            for epoch in refused:
                if not epoch.published:
                    record = Resolution(own.owner, epoch.query, epoch.epoch, "new-code", code)
                    own.state.take(own.control.append(record), record)
                    self._events.emit(report.Resolved(epoch.query, epoch.epoch, record.action))
            refused = [epoch for epoch in refused if epoch.published]
        if refused:
            raise code_changed(name, refused, code, own.state.codes)
        return None

    def _preparation(self) -> Preparation:
        return Preparation(
            job=self._job,
            context=self._context,
            options=self._options,
            graph=self._graph,
            positions=self._positions,
            directory=self._directory,
            topic_ids=self._topic_ids,
            emit=self._events.emit,
            on_progress=self._publish_progress,
            attempt=self._budget.attempts + self._assumed_outages,
            parking=self.parking,
        )

    def _known_log(self) -> ControlState | None:
        return self._own.state if self._own is not None else known_control(self._kafka, self._job.spec.name)

    def _restart_topics(self) -> None:
        """Let the queries read source topics from their beginning that were deleted and created again.

        A claim of the old lineage comes first: it stops a driver that runs, and shows which lanes are published. After
        a crash before the claim of the new lineage, the old one still refuses the topics.

        Raises:
            CheckpointForeign: The checkpoint belongs to another job.
            CheckpointMismatch: Readers may have a part of an epoch that cannot be replayed. Nothing was changed.
        """
        state, key = self._known_log(), self._options.request_key
        if state is None or state.claim is None or (key and state.claim.request_key == key):
            return
        changed = created_again(state.topic_ids, topic_ids(self._kafka, self._positions.topics()))
        if not changed:
            return
        self._checkpoint_owner.check()
        own = self._claim_again(state.claim)
        try:
            self._end_live(own)  # at offsets of the topic that was deleted
            for query in self._context.queries:
                directory = self._directory(query)
                plan = own.state.plan(query.name, max(directory.commits(), default=-1) + 1)
                # At least once: a replay may publish an epoch again in any case.
                partial = (
                    plan is not None and plan.delivery != "at-least-once" and may_be_visible(own, plan, query.sink)
                )
                check_restart(directory, query.name, own.state, changed, partial=partial)
            for query in self._context.queries:
                restart_topics(self._directory(query), changed)
        finally:
            own.control.dispose()

    def _check_topics(self, error: ClonosError) -> None:
        """Report source topics that were created again as the cause of `error`, once all epochs in progress have ended.

        Raises:
            SourceOffsetsExpired: A topic was created again.
        """
        state, first = self._known_log(), ""
        if state is None:
            return
        with contextlib.suppress(BrokerUnavailable, StopTimedOut):
            now = topic_ids(self._kafka, self._positions.topics())
            changed = set(created_again(state.topic_ids, now))
            if changed and self._own is not None:
                forget_consumers(self._spark)
                # An epoch in doubt would be published again in the new lineage that the hint names.
                self._stop(self._running)
                readers = (query.name for query in self._context.queries if changed & self._positions.read_by(query))
                first = next((f"epoch {state.committed.get(name, -1) + 1} of {name}" for name in readers), "")
            try:
                check_source_topics(state.topic_ids, now, job=self._job.spec.name, first=first)
            except SourceOffsetsExpired as cause:
                raise cause from error

    def _pin(self, own: Ownership, committed: dict[str, int]) -> None:
        """Define the job again if an epoch in doubt was planned with other answers of a Schema Registry.

        The "latest version" may have changed since another process, or an earlier start of this one, read it.
        """
        pins, pinned = self._context.pins, dict[str, int]()
        if not pins.answers:
            return
        for query in self._context.queries:
            # Also an epoch that is committed in the log, but not in Spark's checkpoint: it is replayed too.
            plan = own.state.plan(query.name, committed.get(query.name, -1) + 1)
            pinned |= plan.pins if plan is not None else {}
        if any(pins.answers.get(lookup, answer) != answer for lookup, answer in pinned.items()):
            self.define(Pins(pins.registry, pins.answers | pinned))
            self._events.emit(report.Pinned(pinned))

    def _publish_progress(self, query: str, progress: Progress) -> None:
        """Commit to one consumer group for each query: two queries may be at different offsets of one topic."""
        for source in self._context.sources:
            source.publish_progress(self._kafka, f"clonos.{self._job.spec.name}.{query}", progress)
        if self._on_progress is not None:
            self._on_progress(query, self._positions.of_sources(progress))

    def _report_outage(self) -> None:
        """Stay WAITING while Kafka is away; the queries continue if it returns before Spark gives up."""
        away = self._kafka_watch.is_away
        if away and self.state is DriverState.RUNNING:
            self._to(DriverState.WAITING)
            error = BrokerUnavailable(f"Kafka at {self._kafka.bootstrap_servers} does not answer.")
            self._events.emit(report.Waiting.of(error))
        elif not away and self.state is DriverState.WAITING:
            self._to(DriverState.RUNNING)

    def _stop(self, queries: list[Running]) -> None:
        """Stop all queries, each after its epoch in progress.

        Raises:
            StopTimedOut: An epoch did not finish in time.
        """
        timeout_s = self._options.stop_timeout_s
        deadline = Deadline(timeout_s or 0.0)
        interrupted = [
            running.query.name
            for running in queries
            if not running.stop_gracefully(None if timeout_s is None else max(deadline.left_s(), _POLL_S))
        ]
        if interrupted:
            raise StopTimedOut(f"The epoch of {', '.join(interrupted)} did not finish within {timeout_s:g} s.")

    def _forget_positions(self) -> None:
        """Discard the source offsets of an earlier attempt: a query without a lag counts as back."""
        if self._on_start is not None:
            for query in self._context.queries:
                self._on_start(query.name, {}, query.interval_ms / 1000)

    def _start_due(self, order: StartOrder) -> None:
        for running in order.due():
            if self._on_start is not None:
                self._on_start(running.query.name, running.begin_offsets, running.query.interval_ms / 1000)
            running.start(self._job, self._wake)

    def _replay_plan(self, queries: list[Running], running: Running, restored: PlanRestored) -> None:
        """Start a query again that met a plan which its checkpoint lacks. No task has run, so the claim still holds: an
        old checkpoint is replayed within one claim.
        """
        assert self._own is not None
        running.stop()
        self._events.emit(report.Reconciled(running.query.name, restored.what))
        again = self._preparation().prepare_query(running.query, self._own)
        again.runner.finished = running.runner.finished
        again.runner.last_epoch = running.runner.last_epoch
        queries[queries.index(running)] = again
        again.start(self._job, self._wake)

    def _watch(self, queries: list[Running], order: StartOrder) -> None:
        """Start the queries that are not due yet; wait until one fails, all are finished, or a stop is requested."""
        finished = 0
        while True:
            self._wake.wait(_POLL_S if all(running.is_ready for running in queries) else _READY_POLL_S)
            self._wake.clear()  # before the checks: what happens in the meantime is checked in the next round
            self._report_outage()
            if self._kafka_watch.is_log_deleted:
                raise log_deleted(log_topic(self._job.spec.name))
            if self._asked_to_stop:
                self._to(DriverState.STOPPING)
                self._stop(queries)
                self._to(DriverState.STOPPED)
                self._events.emit(report.Stopped())
                return
            # After a failure only an epoch of the query that failed resets the restart budget.
            total = sum(running.runner.finished for running in queries if self._failing in (None, running.query.name))
            if total > finished:
                finished = total
                self._failing = None
                self._assumed_outages = 0
                self._service_waits = 0
                self._budget.progressed()
            for running in queries:
                if running.becomes_ready():
                    self._events.emit(report.Ready(running.query.name))
            if self._job.spec.spec.trigger.available_now:
                for running in queries:
                    running.finish_if_idle()
            if self._options.finish_in_doubt:
                for running in queries:
                    running.finish_after_last()
            # Checked before the failures: a query that fails in between is handled in the next round.
            done = all(running.done for running in queries)
            for running in list(queries):
                try:
                    running.raise_failure()
                except PlanRestored as restored:
                    done = False
                    self._replay_plan(queries, running, restored)
                except ClonosError as error:
                    self._failing = running.query.name
                    if isinstance(error, SourceOffsetsExpired):
                        self._check_topics(error)
                    raise
            if done:
                self._to(DriverState.FINISHED)
                self._events.emit(report.Finished())
                return
            self._start_due(order)


def jvm_exited(failure: Exception) -> JvmExited:
    """Return the error of a driver whose JVM exited, with `failure` as its first symptom."""
    symptom = failure.what if isinstance(failure, ClonosError) else f"{type(failure).__name__}: {failure}"
    lines = symptom.splitlines() or [""]
    return JvmExited(f"The driver's JVM exited, or its Spark context ended; first symptom: {lines[0][:200]}")


def default_checkpoint(home: Path, job: str) -> str:
    """Location of a job's checkpoints, below `home`, if neither the run nor the specification names one."""
    return f"file://{(home / 'jobs' / job / 'checkpoint').resolve()}"
