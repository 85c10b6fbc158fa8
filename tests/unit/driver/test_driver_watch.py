"""How a driver detects the end of its queries; the integration tests use real queries."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.driver import driver as driver_module
from clonos.driver import running as running_module
from clonos.driver.driver import Driver
from clonos.driver.epochs import NotStarted
from clonos.driver.in_doubt import epochs_in_doubt
from clonos.driver.lag import LagMeter
from clonos.driver.options import RunOptions
from clonos.driver.start_order import StartOrder
from clonos.driver.states import DriverState
from clonos.errors import (
    BrokerUnavailable,
    CausalLogDamaged,
    CheckpointForeign,
    CheckpointMismatch,
    CheckpointUnwritable,
    ClonosError,
    EpochFailed,
    RestartsExhausted,
    Superseded,
)
from clonos.jobs.context import JobContext
from clonos.jobs.definition import Job
from clonos.jobs.spec import JobSpec, Metadata, RestartPolicy, Spec
from clonos.log.claiming import Claimant
from clonos.log.control import ControlState
from clonos.log.records import Claim, InputSlice, Marker, Owner, Plan
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import GraphQuery
from clonos.telemetry.events import Events
from support.event_fields import into


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module.Running, "_stop_waiting", lambda *_arguments: None)


class Query:
    """A query that fails with `failure` just after the driver checked it for a failure."""

    def __init__(self, failure: EpochFailed | None) -> None:
        self.query = SimpleNamespace(name="out")
        self.runner = SimpleNamespace(finished=0)
        self.done = False
        self.is_ready = False
        self._failure = failure

    def becomes_ready(self) -> bool:
        before, self.is_ready = self.is_ready, True
        return not before

    def raise_failure(self) -> None:
        if self.done and self._failure is not None:
            raise self._failure
        self.done = True


def created(**more: Any) -> Driver:
    spark: Any = None
    job = Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j")))
    return Driver(job, spark, KafkaSettings(), Events("j", None), RunOptions(), **more)


def watch(query: Query) -> DriverState:
    driver = created()
    for state in (DriverState.CLAIMING, DriverState.RECONCILING, DriverState.RUNNING):
        driver._to(state)
    running: Any = [query]
    driver._watch(running, StartOrder([], {}))
    return driver.state


def test_the_lag_of_a_query_is_measured_from_its_own_start() -> None:
    """A query that waits for another one has not returned, although it has no unread record."""
    noted: list[str] = []
    queries: list[Any] = [
        SimpleNamespace(
            query=SimpleNamespace(name=name, interval_ms=0),
            runner=SimpleNamespace(published=False, busy=threading.Lock(), epoch_s=0),
            begin_offsets={"t": {0: 1}},
            start=lambda *_: None,
        )
        for name in ("words", "totals")
    ]
    graph = {"words": GraphQuery(topics=["lines"], outputs=["words"]), "totals": GraphQuery(topics=["words"])}
    driver, order = created(on_start=lambda query, *_: noted.append(query)), StartOrder(queries, graph)
    driver._start_due(order)
    assert noted == ["words"]
    queries[0].runner.published = True
    driver._start_due(order)
    assert noted == ["words", "totals"]


def test_where_an_earlier_attempt_was_is_forgotten_at_a_claim() -> None:
    """Otherwise the lag of a query that has not started again would count as its return."""
    meter = LagMeter(OffsetClient(KafkaSettings()), lambda *_arguments, **_fields: None)
    meter.note_start("totals", {"t": {0: 1}})
    driver = created(on_start=meter.note_start)
    driver._context = cast("Any", SimpleNamespace(queries=[SimpleNamespace(name="totals", interval_ms=0)]))
    driver._forget_positions()
    assert meter._progress == {"totals": {}}


def test_job_finishes_with_its_query() -> None:
    assert watch(Query(None)) is DriverState.FINISHED


def test_query_that_fails_between_two_polls_is_not_finished() -> None:
    with pytest.raises(EpochFailed, match="log update"):
        watch(Query(EpochFailed("Concurrent update to the log update")))


class Stream:
    """A Spark query that runs until it is stopped; its epoch in progress then fails with `ending`."""

    def __init__(self, runner: Any, ending: BaseException | None) -> None:
        self.isActive = True
        self.status = {"isTriggerActive": False}
        self._runner = runner
        self._ending = ending

    def stop(self) -> None:
        self.isActive = False
        self._runner.failure = self._ending

    def exception(self) -> None:
        return None


def idle_query(monkeypatch: pytest.MonkeyPatch, ending: BaseException | None) -> running_module.Running:
    monkeypatch.setattr(running_module, "runs_without_input", lambda _frame: True)
    runner: Any = SimpleNamespace(
        idle=True, failure=None, finished=1, stopping=False, busy=threading.Lock(), cut=lambda: None
    )
    query: Any = SimpleNamespace(name="out", frame=None)
    writer: Any = SimpleNamespace(close=lambda: None)
    running = running_module.Running(query, "", runner, {}, writer)
    running.stream = cast("Any", Stream(runner, ending))
    return running


@pytest.mark.parametrize("ending", [None, NotStarted("the job is stopping")])
def test_a_query_that_only_waits_for_timers_is_finished(
    monkeypatch: pytest.MonkeyPatch, ending: BaseException | None
) -> None:
    running = idle_query(monkeypatch, ending)
    running.finish_if_idle()
    assert running.done
    running.raise_failure()


def test_epoch_that_fails_during_the_stop_of_an_idle_query_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    running = idle_query(monkeypatch, Superseded("generation 2 owns the job"))
    running.finish_if_idle()
    with pytest.raises(Superseded):
        running.raise_failure()


def test_failed_idle_query_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    running = idle_query(monkeypatch, None)
    running.runner.failure = EpochFailed("no")
    running.finish_if_idle()
    assert not running.done
    with pytest.raises(EpochFailed):
        running.raise_failure()


class Restarted:
    """A driver whose source topic was created again; `calls` are the steps of the start of a new lineage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sink: Any, marker: Marker | None) -> None:
        owner, scan = Owner(1, 1, "a"), (InputSlice("range", "in", 0, 0, 5),)
        plan = Plan(owner, "out", 1, scan, (scan,), (1,), {}, 0, "code", "", 0, delivery="exactly-once")
        state = ControlState(Claim(owner, 0), plans={("out", 1): (1, plan)}, committed={"out": 0})
        state.topic_ids["in"] = "old"
        self.calls: list[str] = []
        self.driver = created()
        own: Any = SimpleNamespace(
            state=state, owner=owner, markers={1: marker}, control=SimpleNamespace(dispose=lambda: None)
        )
        directory = SimpleNamespace(commits=lambda: [0], offsets=lambda: [0, 1], location="checkpoint")
        self.driver._context = cast(
            "Any", SimpleNamespace(queries=[SimpleNamespace(name="out", sink=sink)], sources=[])
        )
        self.owner_check: ClonosError | None = None
        self.driver.__dict__["_checkpoint_owner"] = SimpleNamespace(check=self._check_owner, platform=None)
        monkeypatch.setattr(self.driver, "_directory", lambda _query: directory)
        monkeypatch.setattr(Driver, "_positions", SimpleNamespace(topics=lambda: {"in"}))
        monkeypatch.setattr(driver_module, "known_control", lambda *_: state)
        monkeypatch.setattr(driver_module, "topic_ids", lambda *_: {"in": "new"})

        def claim(*_of: object, **_options: object) -> Any:
            self.calls.append("claim")
            return own

        monkeypatch.setattr(Claimant, "claim", claim)
        monkeypatch.setattr(driver_module, "restart_topics", lambda *_: self.calls.append("changed"))

    def _check_owner(self) -> None:
        self.calls.append("owner")
        if self.owner_check is not None:
            raise self.owner_check


BY_MARKERS = SimpleNamespace(name="out", proved_by_markers=True)


def marker_of(epoch: int, lineage: int = 1) -> Marker:
    return Marker(Owner(lineage, 1, "a"), "out", epoch, 0, InputSlice("range", "in", 0, 0, 5), 1, b"")


def test_a_checkpoint_is_changed_for_a_new_lineage_only_by_its_owner_and_after_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = Restarted(monkeypatch, BY_MARKERS, marker_of(0))
    start.driver._restart_topics()
    assert start.calls == ["owner", "claim", "changed"]
    start.calls.clear()
    start.owner_check = CheckpointForeign("another job's")
    with pytest.raises(CheckpointForeign):
        start.driver._restart_topics()
    assert start.calls == ["owner"]


@pytest.mark.parametrize(
    ("sink", "marker", "refused"),
    [
        (BY_MARKERS, marker_of(1), True),
        (BY_MARKERS, marker_of(1, lineage=0), False),
        (BY_MARKERS, None, False),
        (SimpleNamespace(name="out"), None, True),  # as of the files sink: names of files are its proof
    ],
)
def test_a_new_lineage_does_not_publish_a_part_of_an_epoch_again(
    monkeypatch: pytest.MonkeyPatch, sink: Any, marker: Marker | None, refused: bool
) -> None:
    start = Restarted(monkeypatch, sink, marker)
    if refused:
        with pytest.raises(CheckpointMismatch, match="readers may have a part of it"):
            start.driver._restart_topics()
    else:
        start.driver._restart_topics()
    assert start.calls == ["owner", "claim", *([] if refused else ["changed"])]


@pytest.mark.parametrize(("sink", "published"), [(BY_MARKERS, False), (SimpleNamespace(name="out"), True)])
def test_output_that_markers_do_not_prove_counts_as_published(
    monkeypatch: pytest.MonkeyPatch, sink: Any, published: bool
) -> None:
    start = Restarted(monkeypatch, sink, None)
    own = Claimant(KafkaSettings(), "j").claim()
    (epoch,) = epochs_in_doubt(own, {"out": 0}, [sink])
    assert epoch.published is published
    assert start.calls == ["claim"]


@pytest.mark.parametrize(("prepared", "before"), [(None, ["read"]), (SimpleNamespace(topic="clonos.j.log"), [])])
def test_a_takeover_reads_the_commits_of_the_queries_once(
    monkeypatch: pytest.MonkeyPatch, prepared: Any, before: list[str]
) -> None:
    """On an object store each read is two requests for each query."""
    start = Restarted(monkeypatch, BY_MARKERS, None)
    driver, calls = start.driver, start.calls

    def read() -> dict[str, int]:
        calls.append("read")
        return {"out": 0}

    positions = SimpleNamespace(committed=read, topics=lambda: {"in"})
    monkeypatch.setattr(Driver, "_positions", positions)
    monkeypatch.setattr(driver_module, "published_topics", lambda *_: set())
    monkeypatch.setattr(driver, "_check_continuity", lambda _own: None)
    monkeypatch.setattr(driver, "_job", replace(driver._job, code="code"))
    driver.__dict__["_checkpoint_owner"] = SimpleNamespace(write=lambda _lineage: None, platform=None)
    driver._context.pins = cast("Any", SimpleNamespace(answers={}))
    driver._context.queries[0].sink = cast("Any", SimpleNamespace(**vars(BY_MARKERS), delivery="exactly-once"))

    def prepare(*_: object) -> Any:
        raise EpochFailed("enough")

    monkeypatch.setattr(driver, "_preparation", lambda: SimpleNamespace(prepare=prepare))
    assert isinstance(driver._attempt(prepared), EpochFailed)
    assert calls == [*before, "claim", "read"]


def test_failed_definition_leaves_no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next attempt would run only some of the queries, or finish without any."""

    def half(context: JobContext) -> None:
        context.queries.append(cast("Any", SimpleNamespace(name="one", frame=None)))
        raise BrokerUnavailable("Kafka did not answer.")

    monkeypatch.setattr(driver_module.count, "attach", lambda _context: None)
    monkeypatch.setattr(driver_module.drops, "attach", lambda _context: None)
    monkeypatch.setattr(driver_module, "leave_checksums_to_hadoop", lambda *_: None)
    monkeypatch.setattr(driver_module, "long_polls", lambda *_arguments, **_options: nullcontext())
    spark: Any = SimpleNamespace(sparkContext=None)
    job = Job(half, JobSpec(metadata=Metadata(name="j")))
    driver = Driver(job, spark, KafkaSettings(), Events("j", None), RunOptions())
    with pytest.raises(BrokerUnavailable):
        driver.define()
    assert driver._context.queries == []


class Attempts:
    """A driver whose attempts fail, and whose Kafka answers or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: int, error: ClonosError | None = None) -> None:
        spec = Spec(restart_policy=RestartPolicy(attempts=2, initial_backoff_ms=0))
        job = Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j"), spec=spec))
        spark: Any = None
        self.events: list[dict[str, Any]] = []
        events = Events("j", None, [into(self.events)])
        self.driver = Driver(job, spark, KafkaSettings(), events, RunOptions())
        self.count = 0
        self.away = False
        self.check_error: ClonosError | None = None
        self._failing, self._error = failing, error or EpochFailed("a worker is lost")
        monkeypatch.setattr(self.driver, "define", lambda: None)
        monkeypatch.setattr(self.driver, "check", self._check)
        monkeypatch.setattr(self.driver, "_attempt", self._attempt)
        monkeypatch.setattr(driver_module, "_WAIT_S", 0.0)
        monkeypatch.setattr(driver_module, "alive", lambda _spark: True)
        monkeypatch.setattr(driver_module, "await_brokers", self._await_brokers)
        monkeypatch.setattr(driver_module, "wait_for_kafka", lambda _kafka, stopped: not stopped())
        monkeypatch.setattr(driver_module.KafkaWatch, "start", lambda _watch: None)

    def _attempt(self, _prepared: object) -> ClonosError | None:
        self.count += 1
        self.driver._to(DriverState.CLAIMING)
        return self._error if self.count <= self._failing else None

    def _check(self) -> None:
        if self.count and self.check_error is not None:
            raise self.check_error

    def _await_brokers(self, *_of: object, **_options: object) -> None:
        if self.away:
            raise BrokerUnavailable("no answer")


def test_a_log_topic_that_kafka_lacks_ends_the_job_although_it_is_idle() -> None:
    driver = created()
    for state in (DriverState.CLAIMING, DriverState.RECONCILING, DriverState.RUNNING):
        driver._to(state)
    driver._kafka_watch.note_claim()
    driver._kafka_watch._log_missing = 3
    idle: Any = SimpleNamespace(is_ready=True)
    with pytest.raises(CausalLogDamaged, match=r"clonos\.j\.log"):
        driver._watch([idle], StartOrder([], {}))


@pytest.mark.parametrize("check_error", [None, CheckpointUnwritable("disk full")])
def test_failure_is_retried_unless_the_check_after_it_fails_permanently(
    monkeypatch: pytest.MonkeyPatch, check_error: ClonosError | None
) -> None:
    attempts = Attempts(monkeypatch, failing=9)
    attempts.check_error = check_error
    with pytest.raises(CheckpointUnwritable if check_error else RestartsExhausted):
        attempts.driver.run()
    assert attempts.count == (1 if check_error else 3)


@pytest.mark.parametrize("sign", ["no broker answers", "the check", "the error", "a request before"])
def test_an_outage_does_not_count_against_the_restart_policy(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    failing = 5 if sign == "a request before" else 20  # the most that count as late effects
    attempts = Attempts(monkeypatch, failing=failing, error=BrokerUnavailable("gone") if sign == "the error" else None)
    attempts.away = sign == "no broker answers"
    attempts.check_error = BrokerUnavailable("gone") if sign == "the check" else None
    if sign == "a request before":
        attempts.driver._kafka_watch._outage_at = time.monotonic()
    attempts.driver.run()
    assert attempts.count == failing + 1
    assert [event for event in attempts.events if event["event"] == "restart"] == []
    waiting = [event["error"] for event in attempts.events if event["event"] == "waiting"]
    assert waiting == ["broker-unavailable"] * failing


def test_a_job_that_waits_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, failing=1, error=BrokerUnavailable("gone"))
    attempts.driver.stop()
    attempts.driver.run()
    assert attempts.driver.state is DriverState.STOPPED


@pytest.mark.parametrize("waits", [True, False])
def test_a_start_in_an_outage_waits_if_requested(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    attempts = Attempts(monkeypatch, failing=0)
    attempts.driver._options = RunOptions(wait_for_kafka=waits)
    errors: list[ClonosError] = [BrokerUnavailable("gone"), BrokerUnavailable("gone")]

    def define() -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(attempts.driver, "define", define)
    if waits:
        attempts.driver.run()
        states = [event["state"] for event in attempts.events if event["event"] == "state"]
        assert states == ["WAITING", "STARTING", "WAITING", "STARTING", "CLAIMING"]
    else:
        with pytest.raises(BrokerUnavailable):
            attempts.driver.run()
