"""Builds the failures that the reconciler itself reports, where no driver reported one."""

from __future__ import annotations

from typing import Final

from clonos.errors import MoveFailed, UpgradeFailed
from clonos.resources.jobs import Failure
from clonos_api.reconcile.facts import HostFacts, RunFacts
from clonos_api.reconcile.placement import NoPlacement

NO_HOST: Final = "no-host"
SUPERSEDED: Final = "superseded"
_PUBLISHED: Final = "published output stands; an epoch in doubt is replayed at the next start."


def no_host(reason: NoPlacement) -> Failure:
    """Returns the failure of a job that no host accepts at the moment."""
    return Failure(
        error=NO_HOST,
        what=reason.why,
        kept=_PUBLISHED,
        hint=reason.hint,
        domain="environment",
        retry=not reason.permanent,
    )


def host_lost(host: HostFacts | None) -> Failure:
    """Returns the failure of a run whose host sends no heartbeats."""
    return Failure(
        error="host-lost",
        what=f"Host {host.name if host else '(removed)'} is unreachable.",
        kept=_PUBLISHED,
        hint="if it returns, its agent kills the driver; output of that driver is fenced or exactly once.",
        domain="environment",
        retry=True,
    )


def driver_ended(run: RunFacts) -> Failure:
    """Returns the failure of a run whose driver exited and is not restarted."""
    code = "an unknown exit code" if run.exit_code is None else f"exit code {run.exit_code}"
    return run.failure or Failure(
        error="driver-ended",
        what=f"The driver ended with {code}.",
        kept=_PUBLISHED,
        hint="see its log.",
        domain="run",
    )


def deadline_passed(what: str, run: RunFacts) -> Failure:
    """Returns the failure of a job that stayed in a state beyond its deadline; `what` is the text for users."""
    cause = f" Previous failure: {run.failure.what}" if run.failure else ""
    return Failure(
        error="deadline-passed", what=what + cause, kept=_PUBLISHED, hint="see its log.", domain="run", retry=True
    )


def start_point_missing(why: str) -> Failure:
    """Returns the failure of a start from an older point that is not available."""
    return Failure(
        error="start-point-missing",
        what=why,
        kept="nothing was started.",
        hint="start the job from another savepoint, or from its current checkpoint.",
        domain="user",
    )


def not_moved(why: str, cause: Failure | None = None) -> Failure:
    """Returns the failure of a planned move for the reason `why`; the job continues as before."""
    return Failure(
        error=MoveFailed.slug,
        what=f"{why}: {cause.what}" if cause else f"{why}.",
        kept=MoveFailed.kept_default,
        hint=cause.hint if cause and cause.hint else MoveFailed.hint_default,
        domain=cause.domain if cause else "environment",
        retry=cause.retry if cause else True,
    )


def not_upgraded(version: int, previous: int, newest: int, cause: Failure) -> Failure:
    """Returns the failure of an upgrade: `version` failed before all its queries had returned.

    The older version `previous` is restored under the new number `newest`.
    """
    return Failure(
        error=UpgradeFailed.slug,
        what=f"Version {version} failed before all its queries had returned: {cause.what}",
        kept=f"version {previous} is restored as version {newest}; published output stands.",
        hint=UpgradeFailed.hint_default,
        domain=cause.domain,
    )


def move_overtaken(why: str) -> Failure:
    """Returns the failure of a planned move that a newer request replaced."""
    what = f"The move was given up: {why}."
    return Failure(error="overtaken", what=what, kept="the newest request counts.", domain="user")


def savepoint_given_up() -> Failure:
    """Returns the failure of a savepoint that no agent took or deleted in time."""
    return Failure(
        error="savepoint-given-up",
        what="No agent took (or deleted) the savepoint before the request ended.",
        kept="the job's own checkpoint.",
        hint="make sure that the job's host is READY, and retry; a savepoint that FAILED can be deleted.",
        domain="environment",
        retry=True,
    )
