"""What is told of a job that does not go on, where no driver told it."""

from __future__ import annotations

from typing import Final

from clonos.errors import NotMoved, UpgradeFailed
from clonos.resources.jobs import Failure
from clonos_api.reconcile.facts import Host, Run
from clonos_api.reconcile.placement import Nowhere

NO_HOST: Final = "no-host"
SUPERSEDED: Final = "superseded"
_KEPT: Final = "what is published stands; an epoch in doubt is replayed at the next start."


def no_host(nowhere: Nowhere) -> Failure:
    """No host takes it, for now."""
    return Failure(
        error=NO_HOST, what=nowhere.why, kept=_KEPT, hint=nowhere.hint, domain="environment", retry=not nowhere.lasting
    )


def host_lost(host: Host | None) -> Failure:
    """Its host is not heard of."""
    return Failure(
        error="host-lost",
        what=f"Host {host.name if host else '(removed)'} is not heard of any more.",
        kept=_KEPT,
        hint="if it comes back, its agent ends the driver; whatever that one still does is fenced or exactly once.",
        domain="environment",
        retry=True,
    )


def ended(run: Run) -> Failure:
    """Its driver ended, and no attempt follows."""
    code = "an unknown exit code" if run.exit_code is None else f"exit code {run.exit_code}"
    return run.failure or Failure(
        error="driver-ended",
        what=f"The driver ended with {code}.",
        kept=_KEPT,
        hint="see its log.",
        domain="run",
    )


def too_late(what: str, run: Run) -> Failure:
    """It took longer than is allowed."""
    cause = f" Before: {run.failure.what}" if run.failure else ""
    return Failure(
        error="deadline-passed", what=what + cause, kept=_KEPT, hint="see its log.", domain="run", retry=True
    )


def start_lost(why: str) -> Failure:
    """The older point that it is to start at cannot be had."""
    return Failure(
        error="start-point-gone",
        what=why,
        kept="nothing was started.",
        hint="start it from another savepoint, or where it ended.",
        domain="user",
    )


def not_moved(why: str, cause: Failure | None = None) -> Failure:
    """A planned move that came to nothing; the job goes on as before."""
    return Failure(
        error=NotMoved.slug,
        what=f"{why}: {cause.what}" if cause else f"{why}.",
        kept=NotMoved.kept_default,
        hint=cause.hint if cause and cause.hint else NotMoved.hint_default,
        domain=cause.domain if cause else "environment",
        retry=cause.retry if cause else True,
    )


def not_upgraded(version: int, previous: int, newest: int, cause: Failure) -> Failure:
    """A new version that was tried and failed."""
    return Failure(
        error=UpgradeFailed.slug,
        what=f"Version {version} did not finish its first epoch: {cause.what}",
        kept=f"version {previous} is the job's again, as version {newest}; what is published stands.",
        hint=UpgradeFailed.hint_default,
        domain=cause.domain,
    )


def untaken() -> Failure:
    """A savepoint that nobody took, or deleted, while somebody waited for it."""
    return Failure(
        error="savepoint-given-up",
        what="No agent took (or deleted) the savepoint while somebody waited for it.",
        kept="the job's own checkpoint.",
        hint="see that the job's host is READY, and ask again; a savepoint that FAILED can be deleted.",
        domain="environment",
        retry=True,
    )
