"""The error of an epoch of which a task failed: what the task could not know."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.driver.epochs import EpochRunner
from clonos.errors import BrokerUnavailable, ClonosError, EpochFailed, EpochTooLarge, JobCodeError, Superseded
from clonos.jobs.definition import Job
from clonos.jobs.spec import JobSpec, Metadata
from clonos.log.control import ControlState


def explained(error: ClonosError, *, owner: ClonosError | None = None, attempt: int = 0) -> ClonosError:
    """The error of a query whose task failed with `error`; `owner` is what the check of the owner raises."""

    def check_owner() -> None:
        if owner is not None:
            raise owner

    discarded: list[bool] = []
    control = SimpleNamespace(check_owner=check_owner)
    own: Any = SimpleNamespace(state=ControlState(), markers={}, lock=threading.Lock(), control=control)
    writer: Any = SimpleNamespace(discard=lambda: discarded.append(True))
    nothing: Any = SimpleNamespace(name="out", interval_ms=0)
    job = Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j")))
    runner = EpochRunner(nothing, job, nothing, nothing, own, writer, nothing, nothing)
    runner.busy.acquire()
    runner._begun = SimpleNamespace(sink_epoch=SimpleNamespace(attempt=attempt))  # type: ignore[assignment]
    runner.abort(0)
    assert discarded
    assert not runner.busy.locked()
    return runner.explain(error)


@pytest.mark.parametrize("error", [EpochFailed("fenced"), EpochTooLarge("slow")])
def test_a_takeover_fences_the_producers_of_tasks(error: ClonosError) -> None:
    assert type(explained(error, owner=Superseded("generation 2 owns the job"))) is Superseded


def test_a_lane_that_did_not_fit_is_tried_with_more_time() -> None:
    assert type(explained(EpochTooLarge("slow"))) is EpochFailed
    assert type(explained(EpochTooLarge("slow"), attempt=1)) is EpochTooLarge


def test_other_errors_stay_as_they_are() -> None:
    lost, code = EpochFailed("lost"), JobCodeError("no")
    assert explained(lost, owner=BrokerUnavailable("away")) is lost, "the next claim finds the owner"
    assert explained(code, owner=Superseded("generation 2 owns the job")) is code
