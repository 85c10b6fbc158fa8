"""Prepares a job's queries for their start, after the claim: decisions, repaired checkpoints, rescales, lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from clonos.driver.checkpoint import CheckpointDirectory, reconcile
from clonos.driver.continuity import check_sink_topic
from clonos.driver.epochs import EpochRunner
from clonos.driver.finished_topics import finished_topics, with_replay, without
from clonos.driver.job_graph import published_topics
from clonos.driver.live_epochs import LiveRunner, epochs_because
from clonos.driver.options import RunOptions
from clonos.driver.parked import Parked, Parking
from clonos.driver.positions import Positions
from clonos.driver.repeatable import streaming_scans
from clonos.driver.rescaling import rescale_to
from clonos.driver.resolutions import record_resolutions
from clonos.driver.running import Running, partitions_of
from clonos.driver.sink_writers import writer_of
from clonos.driver.static_inputs import StaticInputs
from clonos.driver.topic_ids import TopicIds
from clonos.errors import SpecError
from clonos.extend.source import Progress
from clonos.jobs.context import JobContext, Query
from clonos.jobs.definition import Job
from clonos.jobs.spec import SHUFFLE_PARTITIONS
from clonos.log.claiming import Ownership
from clonos.log.records import Resolution
from clonos.spark.lane_sink import EpochWriter
from clonos.spark.live import LiveSink, LiveWriter, tasks_of_epochs
from clonos.telemetry.driver_events import Graph, Mode, Reconciled, Resolved, StaticInputUnpinned, TopicCreatedAgain
from clonos.telemetry.events import Emit


@dataclass(frozen=True)
class Preparation:
    """What the preparation of a job's queries needs."""

    job: Job
    context: JobContext
    options: RunOptions
    graph: Graph
    positions: Positions  # where its queries are
    directory: Callable[[Query], CheckpointDirectory]  # returns the checkpoint of a query
    topic_ids: TopicIds  # looks up the ids of topics
    emit: Emit  # receives the events of the preparation and of the epochs
    on_progress: Callable[[str, Progress], None]  # called with a query and its source offsets after each epoch
    attempt: int  # number of restarts since the last finished epoch
    parking: Parking  # has the queries that were started before the claim

    def prepare(self, own: Ownership, only: Mapping[str, int] | None = None) -> list[Running]:
        """Prepare the queries, in the order of their definition. None starts if one cannot be prepared.

        They are prepared in parallel, because each waits for Kafka and file systems. Decisions and a rescale change the
        log and the checkpoint: these queries are prepared one after the other.

        Args:
            own: The job's causal log, as claimed.
            only: Query → its last epoch: the other queries are not prepared; None: all are, without an end.

        Raises:
            ClonosError: A query cannot continue.
        """
        rescales = self.job.spec.spec.shuffle_partitions is not None
        rescales = rescales or any(plan.rescaled_to for _, plan in own.state.plans.values())
        decides = self.options.accept_new_code or bool(self.options.resolutions)
        queries = [query for query in self.context.queries if only is None or query.name in only]
        if len(queries) <= 1 or rescales or decides:
            prepared = [self.prepare_query(query, own) for query in queries]
        else:
            with ThreadPoolExecutor(len(queries), "clonos-query") as pool:
                prepared = list(pool.map(lambda query: self.prepare_query(query, own), queries))
        for running in prepared:
            running.runner.last_epoch = only[running.query.name] if only is not None else None
        return prepared

    def prepare_query(self, query: Query, own: Ownership) -> Running:
        """Prepare one query, which must not run."""
        checkpoint, spark = self.directory(query), self.context.spark
        if self.options.accept_new_code:
            self._resolve_with_new_code(query, own)
        committed = self._committed(query)
        for decision in record_resolutions(own, query.sink, committed, self.options.resolutions, self.job.code):
            self.emit(Resolved(query.name, decision.epoch, decision.action))
        published = self.topic_ids.of(published_topics(self.graph, query))
        for topic in check_sink_topic(own, query.name, committed + 1, published):
            self.emit(TopicCreatedAgain(query.name, topic))
        for repair in reconcile(checkpoint, query.name, own.state, self.positions.check_retained):
            self.emit(Reconciled(query.name, repair))
        rescale_after = rescale_to(
            self.job.spec.spec.shuffle_partitions,
            spark,
            checkpoint,
            query.name,
            own,
            self.emit,
            code=self.job.code,
            delivery=query.sink.delivery,
        )
        committed, start = self._committed(query), self.positions.next_start(query)
        finished = finished_topics(own.state, query.name, committed, self.positions.deleted_topics(start))
        replayed = with_replay(start, own.state.plan(query.name, committed + 1))
        self.positions.check_retained(without(replayed, finished))
        in_doubt = own.state.plans_beyond(query.name, committed)
        parked = self._parked(query, start, in_doubt=bool(in_doubt))
        live = parked is not None or self._is_live(query)
        if live and in_doubt:
            live, rescale_after = False, in_doubt[-1]  # epochs in doubt are replayed first
        writer: EpochWriter
        if parked is not None:
            writer = parked.writer
        else:
            writer = self._live_writer(query) if live else self._writer(query, own, checkpoint)
        static_inputs = StaticInputs(query.frame)
        for static_input in static_inputs.unpinned:
            self.emit(StaticInputUnpinned(query.name, static_input))
        runner = (LiveRunner if live else EpochRunner)(
            spark,
            self.job,
            query,
            checkpoint,
            own,
            writer,
            self.emit,
            self.on_progress,
            pins=self.context.pins.answers,
            attempt=self.attempt,
            topic_ids=self.topic_ids,
            by_pattern=any("subscribepattern" in scan.options for scan in streaming_scans(query.frame)),
            static_inputs=static_inputs,
            source_topics=frozenset(start),
            published_topics=frozenset(published),
            rescale_after=rescale_after,
        )
        runner.count_tasks = partial(tasks_of_epochs, spark, len(self.context.queries))
        begin_offsets, settings = self.positions.of_sources(start), self._settings(checkpoint)
        running = Running(query, checkpoint.location, runner, settings, writer, finished, begin_offsets)
        if parked is not None and isinstance(runner, LiveRunner):
            runner.resumes_at = start
            running.hand_over = partial(parked.hand_over, committed + 1)
        return running

    def _parked(self, query: Query, start: Progress, *, in_doubt: bool) -> Parked | None:
        """Return the query that waits for its first epoch, if that can begin at `start`; otherwise it is ended."""
        parked = self.parking.parked(query.name)
        if parked is None:
            return None
        if in_doubt or parked.query is not query or partitions_of(parked.offsets) != partitions_of(start):
            parked.close()
            return None
        self.emit(Mode(query.name, live=True, because=""))
        return parked

    def _is_live(self, query: Query) -> bool:
        """Return whether the query runs live.

        Raises:
            SpecError: The job must run live, and the query cannot.
        """
        trigger = self.job.spec.spec.trigger
        if trigger.mode == "epochs":
            return False
        because = epochs_because(query, trigger, self.context.kafka, len(self.context.queries))
        if because and trigger.mode == "live":
            raise SpecError(
                f"The query {query.name} cannot run live: {because}.",
                kept="nothing was published.",
                hint="set trigger.mode to auto: such a query then runs in epochs, and the others live.",
            )
        self.emit(Mode(query.name, live=not because, because=because))
        return not because

    def _live_writer(self, query: Query) -> LiveWriter:
        assert isinstance(query.sink, LiveSink)
        return query.sink.live_writer(self.context.spark, self.context.kafka)

    def _committed(self, query: Query) -> int:
        """Return the newest epoch that a query's checkpoint has committed; -1: none."""
        return max(self.directory(query).commits(), default=-1)

    def _settings(self, checkpoint: CheckpointDirectory) -> dict[str, str]:
        partitions = self.job.spec.spec.shuffle_partitions
        settings = checkpoint.settings()
        if not settings and partitions is not None:
            return {SHUFFLE_PARTITIONS: str(partitions)}
        return settings

    def _writer(self, query: Query, own: Ownership, checkpoint: CheckpointDirectory) -> EpochWriter:
        """Create the writer of the query's sink.

        An epoch in doubt keeps its lanes: the job may have moved from a cluster to a local master, or back. They then
        serve until the query starts again.
        """
        committed = checkpoint.commits()
        plan = own.state.plan(query.name, committed[-1] + 1 if committed else 0)
        in_doubt = plan.input_slices if plan is not None else ()
        return writer_of(query.sink, self.context.spark, self.context.kafka, in_doubt, own)

    def _resolve_with_new_code(self, query: Query, own: Ownership) -> None:
        """Record the user's decision that epochs which Spark has not committed may be replayed with new code."""
        for epoch in own.state.plans_beyond(query.name, self._committed(query)):
            decided = own.state.resolutions.get((query.name, epoch))
            if decided is not None and decided.code == self.job.code:
                continue  # a decision about this epoch and this code stands
            record = Resolution(own.owner, query.name, epoch, "new-code", self.job.code)
            own.state.take(own.control.append(record), record)
