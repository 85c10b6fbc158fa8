"""The driver: runs one job until it is stopped, superseded, finished or beyond help.

A failed query is restarted in the same warm session, always as a new owner: late writes of old Python
workers become void and dangling transactions are aborted. All queries of a job share one claim, so all
of them are restarted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clonos.causal.counting import count
from clonos.causal.derived import set_driver_params
from clonos.engine.attached import alive
from clonos.engine.checkpoint import Checkpoint, progress_of, reconcile
from clonos.engine.epochs import EpochRunner
from clonos.engine.repeatable import check_sources
from clonos.errors import ClonosError, Superseded
from clonos.formats.poison import drops
from clonos.formats.registry import Pins
from clonos.job import Job, JobContext, Query
from clonos.kafka import await_brokers
from clonos.log.claiming import Ownership, claim
from clonos.log.prepared import Prepared
from clonos.log.records import Resolution
from clonos.runner.events import Events, trouble
from clonos.runner.recovery import RestartBudget
from clonos.runner.running import Running
from clonos.runner.states import DriverState, StateMachine
from clonos.settings import KafkaSettings
from clonos.sources import Progress

_POLL_S = 0.1
_BROKERS_S = 10.0


class Driver:
    """Runs one job on a session.

    Args:
        job: The job.
        spark: A session made by `clonos.engine.session`, or one that `clonos.engine.attached` has checked.
        kafka: The cluster.
        checkpoint: Location of the job's checkpoints; one folder for each query.
        events: Where to tell what happens.
        new_lineage: Start a new lineage: the user's explicit word that older output does not count.
        wish: Key of that word; a start that repeats it goes on in the lineage that it made.
        accept_new_code: Replay epochs in doubt with the code as it is now.
        on_progress: Told how far each query has read: at its start, and after each epoch.
        on_defined: Told which topics it reads, and which it writes.
    """

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        kafka: KafkaSettings,
        checkpoint: str,
        events: Events,
        *,
        new_lineage: bool = False,
        wish: str = "",
        accept_new_code: bool = False,
        on_progress: Callable[[str, Progress], None] | None = None,
        on_defined: Callable[[frozenset[str], frozenset[str]], None] | None = None,
    ) -> None:
        self._job = job
        self._spark = spark
        self._kafka = kafka
        self._checkpoint = checkpoint.rstrip("/")
        self._events = events
        self._new_lineage = new_lineage
        self._wish = wish
        self._accept_new_code = accept_new_code
        self._on_progress = on_progress
        self._on_defined = on_defined
        self._machine = StateMachine()
        self._asked_to_stop = False
        self._wake = threading.Event()
        self._budget = RestartBudget(job.spec.spec.restart_policy)
        self._context = JobContext(spark, job.spec, kafka)
        self._mine: set[str] = set()
        self._failing: str | None = None
        self._log_lock = threading.RLock()
        self._running: list[Running] = []

    @property
    def state(self) -> DriverState:
        """What the driver is doing."""
        return self._machine.state

    @property
    def streams(self) -> list[StreamingQuery]:
        """Spark's own queries, as they were started last."""
        return [one.stream for one in self._running if one.stream is not None]

    def busy(self) -> set[str]:
        """The queries that have an epoch under way."""
        return {one.query.name for one in self._running if one.runner.busy.locked()}

    @property
    def queries(self) -> list[Query]:
        """The job's queries, once they are defined."""
        return self._context.queries

    @property
    def asked_to_stop(self) -> bool:
        """Whether somebody asked for a graceful stop."""
        return self._asked_to_stop

    def stop(self) -> None:
        """Ask for a graceful stop: the epoch that runs is finished first.

        It only sets a flag, because a signal handler may interrupt whoever holds a lock.
        """
        self._asked_to_stop = True

    def accept_new_code(self) -> None:
        """Replay epochs in doubt with the code as it is now."""
        self._accept_new_code = True

    def define(self, pins: Pins | None = None) -> None:
        """Build the queries and refuse what can be refused before anything is claimed.

        Args:
            pins: Answers of Schema Registries to define the job with.

        Raises:
            ClonosError: What is wrong with the job, its sources or its sinks.
        """
        # Kept only when it is whole: what raised half way would run with some of its queries.
        self._context = self._defined(pins, rehearsal=False)
        if self._on_defined is not None:
            read = frozenset[str]().union(*(source.topics() for source in self._context.sources))
            # What sinks write to is their own affair; those that write one topic say which.
            topics = {getattr(query.sink, "topic", None) for query in self._context.queries}
            self._on_defined(read, frozenset(topic for topic in topics if isinstance(topic, str)))

    def rehearsed(self) -> list[Query]:
        """The job's queries with sources whose rows do not get past them (`clonos.standby.rehearsal`).

        Raises:
            ClonosError: As `define`, which is to be called afterwards.
        """
        return self._defined(None, rehearsal=True).queries

    def _defined(self, pins: Pins | None, *, rehearsal: bool) -> JobContext:
        set_driver_params(dict(self._job.spec.spec.params))
        count.attach(self._spark.sparkContext)
        drops.attach(self._spark.sparkContext)
        context = JobContext(self._spark, self._job.spec, self._kafka, rehearsal=rehearsal)
        context.pins = pins or context.pins
        self._job.define(context)
        for query in context.queries:
            check_sources(query.frame)
        return context

    def local_checkpoints(self) -> dict[str, Path]:
        """Query → its checkpoint, where that is a path of this machine."""
        found = {one.name: Checkpoint(self._spark, one.location(self._checkpoint)).local for one in self.queries}
        return {name: folder for name, folder in found.items() if folder is not None}

    def check(self) -> None:
        """Refuse checkpoints that cannot be used, and sources that do not hold what they need; nothing is claimed yet.

        Raises:
            ClonosError: What is wrong with them.
        """
        for query in self._context.queries:
            checkpoint = Checkpoint(self._spark, query.location(self._checkpoint))
            checkpoint.check()
            for source in self._context.sources:
                source.check_retained(self._kafka, _resume_from(checkpoint))

    def run(self, prepared: Prepared | None = None) -> None:
        """Run until the end.

        Args:
            prepared: What the first claim finds ready. `check` was called then, for somebody waits for the claim.

        Raises:
            ClonosError: Why the job cannot go on.
        """
        try:
            if not self._context.queries:
                self.define()
            if prepared is None:
                self.check()
            while True:
                error = self._attempt(prepared)
                prepared = None
                if error is None:
                    return
                if not alive(self._spark):
                    raise error
                self._check_after(error)
                pause = self._budget.pause(error)
                self._to(DriverState.RESTARTING)
                self._events.emit("restart", **trouble(error), attempt=self._budget.attempts, pause_s=pause)
                if self._stopped_within(pause):
                    self._to(DriverState.STOPPED)
                    return
        except Superseded as error:
            self._to(DriverState.SUPERSEDED)
            self._events.emit("superseded", **trouble(error))
            raise
        except ClonosError as error:
            self._to(DriverState.FAILED)
            self._events.emit("failed", **trouble(error))
            raise
        except Exception as error:
            self._to(DriverState.FAILED)
            self._events.emit("failed", error="unexpected", what=f"{type(error).__name__}: {error}")
            raise

    def _check_after(self, error: ClonosError) -> None:
        """See whether a failure was about the checkpoint or the sources: a full disk shows in many ways.

        Raises:
            ClonosError: It was, and no replay can help.
        """
        try:
            self.check()
        except ClonosError as found:
            if not (found.retry and error.retry):
                raise

    def _stopped_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._asked_to_stop and time.monotonic() < deadline:
            time.sleep(min(_POLL_S, seconds))
        return self._asked_to_stop

    def _to(self, state: DriverState) -> None:
        self._machine.to(state)
        self._events.emit("state", state=state)

    def _attempt(self, prepared: Prepared | None) -> ClonosError | None:
        """Claim and run until something ends it; the error if that is one a restart may mend."""
        self._to(DriverState.CLAIMING)
        try:
            if self._mine:
                # A restart: a broker that is gone, or refuses us now, would only be met as a timeout further on.
                await_brokers(self._kafka, timeout_s=_BROKERS_S)
            # A new lineage stands on what the checkpoint has committed: said in the claim itself, so that a
            # crash right after it leaves nothing half said.
            lineage = self._committed() if self._new_lineage and not self._mine else None
            own = claim(
                self._kafka,
                self._job.spec.name,
                mine=self._mine,
                new_lineage=lineage,
                wish=self._wish,
                prepared=prepared,
            )
        except ClonosError as error:
            if not error.retry:
                raise
            return error
        self._events.generation = own.owner.generation
        self._events.emit(
            "claimed",
            lineage=own.owner.lineage,
            lanes=len(own.state.lanes),
            driver=own.owner.driver,
            # What the code says counts, also where the specification does not.
            delivery={query.name: query.sink.delivery for query in self._context.queries},
            sharing_depth=str(self._job.spec.spec.sharing_depth),
        )
        running: list[Running] = []
        try:
            self._to(DriverState.RECONCILING)
            self._pin(own)
            running = [self._prepare(query, own) for query in self._context.queries]
            for one in running:
                one.start(self._job, self._wake)
            self._running = running
            self._to(DriverState.RUNNING)
            self._watch(running)
            return None
        except ClonosError as error:
            if not error.retry:
                raise
            return error
        finally:
            for one in running:
                one.end()
            own.control.dispose()

    def _committed(self) -> dict[str, int]:
        """Query → newest epoch that its checkpoint has committed."""
        found = {}
        for query in self._context.queries:
            commits = Checkpoint(self._spark, query.location(self._checkpoint)).commits()
            if commits:
                found[query.name] = commits[-1]
        return found

    def _prepare(self, query: Query, own: Ownership) -> Running:
        location = query.location(self._checkpoint)
        checkpoint = Checkpoint(self._spark, location)
        if self._accept_new_code:
            self._accept(query, own)
        for done in reconcile(checkpoint, query.name, own.state):
            self._events.emit("reconciled", query=query.name, done=done)
        start = _resume_from(checkpoint)
        for source in self._context.sources:
            source.check_retained(self._kafka, start)
        self._note_progress(query.name, start)
        runner = EpochRunner(
            self._spark,
            self._job,
            query,
            checkpoint,
            own,
            self._log_lock,
            self._events.emit,
            self._publish_progress,
            pins=self._context.pins.answers,
            attempt=self._budget.attempts,
        )
        return Running(query, location, runner, checkpoint.settings())

    def _pin(self, own: Ownership) -> None:
        """Define the job again where an epoch in doubt was planned with other answers of a Schema Registry.

        Another process, or an earlier start of this one, may have got another "latest version" than this one.
        """
        pins, pinned = self._context.pins, dict[str, int]()
        if not pins.answers:
            return
        committed = self._committed()
        for query in self._context.queries:
            # Also one that ended, if Spark has not committed it: it is replayed too.
            plan = own.state.plan(query.name, committed.get(query.name, -1) + 1)
            pinned |= plan.pins if plan is not None else {}
        if any(pins.answers.get(asked, answer) != answer for asked, answer in pinned.items()):
            self.define(Pins(pins.registry, pins.answers | pinned))
            self._events.emit("pinned", schemas=pinned)

    def _accept(self, query: Query, own: Ownership) -> None:
        """Record the user's word that what Spark has not committed may be replayed with new code."""
        committed = self._committed().get(query.name, -1)
        for epoch in own.state.plans_beyond(query.name, committed):
            record = Resolution(own.owner, query.name, epoch, "new-code", self._job.code)
            own.state.take(own.control.append(record), record)

    def _publish_progress(self, query: str, progress: Progress) -> None:
        """One consumer group for each query: two queries may stand at different offsets of one topic."""
        for source in self._context.sources:
            source.publish_progress(self._kafka, f"clonos.{self._job.spec.name}.{query}", progress)
        self._note_progress(query, progress)

    def _note_progress(self, query: str, progress: Progress) -> None:
        if self._on_progress is not None:
            known = frozenset[str]().union(*(source.topics() for source in self._context.sources))
            self._on_progress(query, {topic: read for topic, read in progress.items() if topic in known})

    def _watch(self, running: list[Running]) -> None:
        """Wait until a query fails, all are finished, or somebody asks to stop."""
        finished = 0
        while True:
            self._wake.wait(_POLL_S)
            if self._asked_to_stop:
                self._to(DriverState.STOPPING)
                for one in running:
                    one.end(gracefully=True)
                self._to(DriverState.STOPPED)
                self._events.emit("stopped")
                return
            # Only the query that failed last can show that its failure is over.
            total = sum(one.runner.finished for one in running if self._failing in (None, one.query.name))
            if total > finished:
                finished = total
                self._failing = None
                self._budget.progressed()
            if self._job.spec.spec.trigger.available_now:
                for one in running:
                    one.finish_if_idle()
            # Looked at before the failures: a query that fails in between is seen in the next round.
            done = all(one.done for one in running)
            for one in running:
                try:
                    one.raise_failure()
                except ClonosError:
                    self._failing = one.query.name
                    raise
            if done:
                self._to(DriverState.FINISHED)
                self._events.emit("finished")
                return
            self._wake.clear()


def _resume_from(checkpoint: Checkpoint) -> Progress:
    """The offsets from which the next epoch reads: those of the newest commit."""
    commits = checkpoint.commits()
    entry = checkpoint.read_offsets(commits[-1]) if commits else None
    return progress_of(entry) if entry else {}


def stop_on_signals(stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT ask for a graceful stop."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def default_checkpoint(home: Path, job: str) -> str:
    """Where a job's checkpoints are unless its specification says otherwise."""
    return f"file://{(home / 'jobs' / job / 'checkpoint').resolve()}"
