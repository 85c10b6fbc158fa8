"""Epochs in doubt that other versions of a job planned: each version finishes its own, then the job continues.

A driver refuses such epochs (``checkpoint-mismatch``) before any of its queries begins. Then the job gets, one after
the other:

1. a run of each version that planned some of them, which finishes these and ends. A version whose code failed in its
   newest run gets none: it would fail in the same epoch again;
2. a run of its own version again. If epochs are still left, it may compute those without any published output. Of
   those with published output, a version without a run in step 1 gets one now: it has computed them before.

Only epochs that have published output, and that their version cannot finish, need a decision of the user.
"""

from __future__ import annotations

from clonos.errors import CheckpointMismatch
from clonos.resources.hosts import NextRun
from clonos.resources.jobs import Failure, JobState
from clonos_api.reconcile.decisions import Decision, RunChange, enter, stay
from clonos_api.reconcile.facts import JobFacts, RunFacts


def decide(job: JobFacts, run: RunFacts) -> Decision | None:
    """Decides after the end of a run which run follows because of epochs in doubt; None: these are not the cause."""
    if run.finish_for:
        # However it ended: the driver of the job's version reports the epochs that are still in doubt.
        return _continue(job, NextRun(version=run.finish_for, finished=sorted(run.tried)), run.failure)
    if not _refused(run.failure):
        return None
    excluded = run.tried if run.accepts_unpublished else run.tried | run.unable
    planners = [version for version in run.planned_by if version is not None and version != run.version]
    able = next((version for version in planners if version not in excluded), None)
    if able is not None:
        next_run = NextRun(version=able, finish_for=run.version, finished=sorted({*run.tried, able}))
        return _continue(job, next_run, run.failure)
    if not run.accepts_unpublished:
        next_run = NextRun(version=run.version, finished=sorted(run.tried), accept_unpublished=True)
        return _continue(job, next_run, run.failure)
    return None


def explained(job: JobFacts, run: RunFacts, failure: Failure) -> Failure:
    """Return the failure of a job, with the commands that decide about epochs in doubt; others are unchanged."""
    if not _refused(failure):
        return failure
    planners = [version for version in run.planned_by if version not in (None, run.version)]
    back = "".join(f", or go back: `clonos job rollback {job.name} {version}`" for version in planners[:1])
    hint = (
        f"they have published output, and the code that planned them did not finish them. Let version {run.version} "
        f"compute them, whose output must be equal then: `clonos job resolve {job.name} --new-code`{back}."
    )
    return failure.model_copy(update={"hint": hint})


def _refused(failure: Failure | None) -> bool:
    return failure is not None and failure.error == CheckpointMismatch.slug and bool(failure.codes)


def _continue(job: JobFacts, next_run: NextRun, failure: Failure | None) -> Decision:
    recovers = job.state is JobState.RUNNING
    return Decision(
        run=RunChange(next=next_run), job=enter(JobState.RECOVERING, failure=failure) if recovers else stay(None)
    )
