"""Builds the failures that the reconciler itself reports, where no driver reported one."""

from __future__ import annotations

from clonos.errors import (
    DeadlinePassed,
    DriverEnded,
    HostLost,
    MoveFailed,
    NoHost,
    NotFound,
    Overtaken,
    SavepointGivenUp,
    StartPointMissing,
    UpgradeFailed,
)
from clonos.resources.failures import new_failure
from clonos.resources.jobs import Failure
from clonos_api.reconcile.facts import HostFacts, RunFacts
from clonos_api.reconcile.placement import NoPlacement


def no_host(reason: NoPlacement) -> Failure:
    """Return the failure of a job that no host accepts at the moment."""
    return new_failure(NoHost, reason.why, hint=reason.hint, retry=not reason.permanent)


def host_lost(host: HostFacts | None) -> Failure:
    """Return the failure of a run whose host sends no heartbeats."""
    return new_failure(HostLost, f"Host {host.name if host else '(removed)'} is unreachable.")


def driver_ended(run: RunFacts) -> Failure:
    """Return the failure of a run whose driver exited and is not restarted."""
    code = "an unknown exit code" if run.exit_code is None else f"exit code {run.exit_code}"
    return run.failure or new_failure(DriverEnded, f"The driver ended with {code}.")


def deadline_passed(what: str, run: RunFacts) -> Failure:
    """Return the failure of a job that stayed in a state beyond its deadline; `what` is the text for users."""
    cause = f" Previous failure: {run.failure.what}" if run.failure else ""
    return new_failure(DeadlinePassed, what + cause)


def start_point_missing(why: str) -> Failure:
    """Return the failure of a start from an older point that is not available."""
    return new_failure(StartPointMissing, why)


def version_missing(job: str) -> Failure:
    """Return the failure of a job whose next run has a version that is not stored any more."""
    return new_failure(
        NotFound,
        f"The version of job {job} that was to continue with its epochs in doubt is not stored any more.",
        kept="the checkpoint and the causal log are unchanged.",
        hint=f"start the job with its present version: `clonos job start {job}`.",
    )


def not_moved(why: str, cause: Failure | None = None) -> Failure:
    """Return the failure of a planned move for the reason `why`; the job continues as before."""
    return new_failure(
        MoveFailed,
        f"{why}: {cause.what}" if cause else f"{why}.",
        hint=cause.hint if cause and cause.hint else MoveFailed.hint_default,
        domain=cause.domain if cause else "environment",
        retry=cause.retry if cause else True,
    )


def not_upgraded(job: str, version: int, previous: int, cause: Failure) -> Failure:
    """Return the failure of an upgrade: `version` failed before all its queries had returned.

    The version `previous` runs again.
    """
    return new_failure(
        UpgradeFailed,
        f"Version {version} failed before all its queries had returned: {cause.what}",
        kept=f"version {previous} is restored, and is what the next start runs; published output stands.",
        hint=f"fix the code, and repeat `clonos apply PATH`. To see what changed: `clonos job versions {job} --diff "
        f"{previous} {version}`.",
        domain=cause.domain,
    )


def not_reverted(job: str, version: int, previous: int, cause: Failure) -> Failure:
    """Return the failure of an upgrade to `version`: the version `previous`, to go back to, is not stored."""
    return cause.model_copy(
        update={
            "error": UpgradeFailed.slug,
            "what": f"{cause.what.rstrip('.')}. Version {previous}, which ran before, is not stored any more.",
            "kept": f"no version was restored: the next start runs version {version}; published output stands.",
            "hint": f"fix the code, and repeat `clonos apply PATH`, or go back to a version of `clonos job versions "
            f"{job}`: `clonos job rollback {job} VERSION`.",
        }
    )


def move_overtaken(why: str) -> Failure:
    """Return the failure of a planned move that a newer request replaced."""
    return new_failure(Overtaken, f"The move was given up: {why}.")


def savepoint_given_up() -> Failure:
    """Return the failure of a savepoint that no agent took or deleted in time."""
    return new_failure(SavepointGivenUp, "No agent took (or deleted) the savepoint before the request ended.")
