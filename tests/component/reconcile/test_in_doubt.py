"""Which runs follow each other if epochs in doubt are of several versions of a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from clonos.resources.hosts import HostState, NextRun
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.decisions import NOTHING
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(state: JobState) -> JobFacts:
    return JobFacts(id="j", name="words", state=state, desired=DesiredState.RUNNING, since=NOW)


def run(**more: Any) -> RunFacts:
    return RunFacts(**{"id": "r", "host": "a", "created_at": NOW, **more})


def fleet() -> Fleet:
    return Fleet([HostFacts(id="a", name="a", state=HostState.READY, used=1)])


MISMATCH = Failure(error="checkpoint-mismatch", what="The code changed.", domain="consistency", codes=["one", "two"])


def refused(**more: Any) -> RunFacts:
    """The run of version 3, whose driver refused epochs in doubt of versions 1 and 2."""
    ended: dict[str, Any] = {"state": "EXITED", "driver_state": "FAILED", "exit_code": 51, "ended": True}
    return run(**{"version": 3, "planned_by": (1, 2), "failure": MISMATCH, **ended, **more})


def followed(refusing: RunFacts, state: JobState = JobState.STARTING) -> NextRun | None:
    """The run that follows; None: the job fails."""
    writes = decide(job(state), refusing, fleet(), NOW)
    assert writes.job.state is not None
    assert (writes.run.next is None) == (writes.job.state.to is JobState.FAILED), writes
    return writes.run.next


def test_each_version_finishes_its_own_epochs_in_doubt_and_then_the_job_continues() -> None:
    first = followed(refused())
    assert first == NextRun(version=1, finish_for=3, finished=[1])
    finishing = run(version=1, finish_for=3, tried=frozenset({1}), state="RUNNING", driver_state="RUNNING")
    writes = decide(job(JobState.STARTING), finishing, fleet(), NOW)
    assert writes == NOTHING, "the job does not run yet"
    done = replace(finishing, state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert followed(done) == NextRun(version=3, finished=[1]), "no input of the job is finished"
    second = followed(refused(planned_by=(2,), tried=frozenset({1})))
    assert second == NextRun(version=2, finish_for=3, finished=[1, 2])
    failed = replace(done, driver_state="FAILED", exit_code=14, failure=MISMATCH)
    assert followed(failed) == NextRun(version=3, finished=[1]), "version 3 reports what is left"


def test_an_epoch_that_its_version_cannot_finish_is_computed_if_nothing_of_it_is_published() -> None:
    permitted = NextRun(version=3, accept_unpublished=True)
    assert followed(refused(planned_by=(2,), unable=frozenset({2}))) == permitted
    assert followed(refused(planned_by=(None,))) == permitted, "its version is not stored"
    published = refused(planned_by=(2,), unable=frozenset({2}), accepts_unpublished=True)
    assert followed(published) == NextRun(version=2, finish_for=3, finished=[2])


def test_what_is_left_needs_a_decision_and_the_message_names_the_commands() -> None:
    left = refused(planned_by=(2,), tried=frozenset({2}), accepts_unpublished=True)
    fails = decide(job(JobState.STARTING), left, fleet(), NOW).job.state
    assert fails is not None
    assert fails.to is JobState.FAILED
    assert fails.failure is not None
    assert "Let version 3 compute them" in fails.failure.hint
    assert "`clonos job resolve words --new-code`, or go back: `clonos job rollback words 2`" in fails.failure.hint
