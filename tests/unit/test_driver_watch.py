"""How a driver learns that its queries ended; real queries are left to the integration tests."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.engine.epochs import NotStarted
from clonos.errors import (
    BrokerUnavailable,
    CheckpointUnwritable,
    ClonosError,
    EpochFailed,
    RestartsExhausted,
    Superseded,
)
from clonos.job import Job, JobContext
from clonos.runner import driver as driver_module
from clonos.runner import running as running_module
from clonos.runner.driver import Driver
from clonos.runner.events import Events
from clonos.runner.states import DriverState
from clonos.settings import KafkaSettings
from clonos.spec import JobSpec, Metadata, RestartPolicy, Spec


class Query:
    """A query that ends with `failure` just after the driver looked whether it has failed."""

    def __init__(self, failure: EpochFailed | None) -> None:
        self.query = SimpleNamespace(name="out")
        self.runner = SimpleNamespace(finished=0)
        self.done = False
        self._failure = failure

    def raise_failure(self) -> None:
        if self.done and self._failure is not None:
            raise self._failure
        self.done = True


def watch(query: Query) -> DriverState:
    spark: Any = None
    driver = Driver(
        Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j"))), spark, KafkaSettings(), "", Events("j", None)
    )
    for state in (DriverState.CLAIMING, DriverState.RECONCILING, DriverState.RUNNING):
        driver._to(state)
    running: Any = [query]
    driver._watch(running)
    return driver.state


def test_a_query_that_ends_is_finished() -> None:
    assert watch(Query(None)) is DriverState.FINISHED


def test_a_query_that_fails_between_two_looks_is_not_finished() -> None:
    with pytest.raises(EpochFailed, match="log update"):
        watch(Query(EpochFailed("Concurrent update to the log update")))


class Stream:
    """A query of Spark's that runs until it is stopped; stopping it lets the epoch under way end as it will."""

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
    monkeypatch.setattr(running_module, "never_rests", lambda _frame: True)
    runner: Any = SimpleNamespace(idle=True, failure=None, finished=1, stopping=False, busy=threading.Lock())
    query: Any = SimpleNamespace(name="out", frame=None)
    running = running_module.Running(query, "", runner, {})
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


def test_an_epoch_that_fails_while_its_idle_query_is_ended_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    running = idle_query(monkeypatch, Superseded("generation 2 owns the job"))
    running.finish_if_idle()
    with pytest.raises(Superseded):
        running.raise_failure()


def test_a_query_that_failed_is_not_finished_for_being_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    running = idle_query(monkeypatch, None)
    running.runner.failure = EpochFailed("no")
    running.finish_if_idle()
    assert not running.done
    with pytest.raises(EpochFailed):
        running.raise_failure()


def test_a_job_that_could_not_be_defined_again_keeps_none_of_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt would run those that were there, or none, and be finished."""

    def half(context: JobContext) -> None:
        context.queries.append(cast("Any", SimpleNamespace(name="one", frame=None)))
        raise BrokerUnavailable("Kafka did not answer.")

    monkeypatch.setattr(driver_module.count, "attach", lambda _context: None)
    monkeypatch.setattr(driver_module.drops, "attach", lambda _context: None)
    spark: Any = SimpleNamespace(sparkContext=None)
    driver = Driver(Job(half, JobSpec(metadata=Metadata(name="j"))), spark, KafkaSettings(), "", Events("j", None))
    with pytest.raises(BrokerUnavailable):
        driver.define()
    assert driver._context.queries == []


@pytest.mark.parametrize(
    ("found", "ends_with"),
    [(BrokerUnavailable("no answer"), RestartsExhausted), (CheckpointUnwritable("disk full"), CheckpointUnwritable)],
)
def test_a_failure_is_tried_again_unless_the_check_after_it_finds_what_no_replay_mends(
    monkeypatch: pytest.MonkeyPatch, found: ClonosError, ends_with: type[ClonosError]
) -> None:
    """A broker that restarts fails the attempt and then the check; that is one failure, not the end."""
    spec = Spec(restart_policy=RestartPolicy(attempts=2, backoff_ms=0))
    job = Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j"), spec=spec))
    spark: Any = None
    driver = Driver(job, spark, KafkaSettings(), "", Events("j", None))
    attempts: list[int] = []

    def attempt(_prepared: object) -> ClonosError:
        attempts.append(1)
        driver._to(DriverState.CLAIMING)
        return EpochFailed("the broker is gone")

    def check() -> None:
        if attempts:
            raise found

    monkeypatch.setattr(driver, "define", lambda: None)
    monkeypatch.setattr(driver, "check", check)
    monkeypatch.setattr(driver, "_attempt", attempt)
    monkeypatch.setattr(driver_module, "alive", lambda _spark: True)
    with pytest.raises(ends_with):
        driver.run()
    assert len(attempts) == (3 if found.retry else 1)
