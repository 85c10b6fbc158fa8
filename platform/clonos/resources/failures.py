"""Converts typed errors to the failures of the REST API: who must fix them, and whether another attempt can succeed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from clonos.errors import BY_SLUG, ClonosError, SpecError
from clonos.resources.jobs import Failure
from clonos.resources.service import FieldProblem
from clonos.telemetry.driver_events import Report
from clonos.telemetry.redaction import redact_text

_STACK: Final = 10_000  # characters
Domain = Literal["user", "environment", "consistency", "run", "internal"]
# The exit code names the family of an error (`clonos.errors`).
_DOMAINS: Final[tuple[tuple[range, Domain], ...]] = (
    (range(10, 30), "user"),
    (range(30, 50), "environment"),
    (range(50, 70), "consistency"),
    (range(70, 80), "run"),
    (range(80, 100), "user"),
    (range(100, 115), "environment"),
    (range(115, 120), "run"),
    (range(120, 125), "user"),
)


class SpecRefused(SpecError):
    """Fields of a request are invalid, at least one; the response names each."""

    def __init__(self, problems: Sequence[FieldProblem], *, kept: str = "") -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        place = problems[0].field or "The request"
        super().__init__(f"{place} is invalid: {problems[0].what}{more}.", kept=kept, hint=problems[0].hint)
        self.problems = tuple(problems)


def domain_of(kind: type[ClonosError] | ClonosError) -> Domain:
    """Who must fix errors of this class: the user, the operator of the environment, and so on (`Failure.domain`)."""
    return next((name for codes, name in _DOMAINS if kind.exit_code in codes), "internal")


def kind_of(slug: str) -> tuple[Domain, bool]:
    """Return the domain of the error with this slug, and whether another attempt can succeed."""
    kind = BY_SLUG.get(slug, ClonosError)
    return domain_of(kind), kind.retry


def new_failure(kind: type[ClonosError], what: str, **parts: Any) -> Failure:
    """Return the REST failure of an error that the control plane reports and no process raised.

    `parts` are fields of `Failure` that differ from the class's, for example ``hint``.
    """
    fields = {
        "kept": kind.kept_default,
        "hint": kind.hint_default,
        "domain": domain_of(kind),
        "retry": kind.retry,
        **parts,
    }
    return Failure(error=kind.slug, what=what, **fields)


def failure_of(error: ClonosError, *, slug: Any = None) -> Failure:
    """Return the REST failure of an error, with the current time.

    `slug` replaces the error's own, for a subclass that this version does not define.
    """
    return Failure(
        error=slug if isinstance(slug, str) and slug else error.slug,
        what=error.what,
        kept=error.kept,
        hint=error.hint,
        domain=domain_of(error),
        retry=error.retry,
        at=datetime.now(UTC),
    )


def reported_failure(report: Report) -> Failure:
    """Return the REST failure that an event of a driver reports, with the time of the event.

    A job's code chooses the words of an error, so secrets in them are replaced.
    """
    domain, retry = kind_of(report.error)
    return Failure(
        error=report.error,
        what=redact_text(report.what),
        kept=report.kept,
        hint=report.hint,
        domain=domain,
        retry=retry,
        at=datetime.fromtimestamp(report.at, UTC),
        stack=redact_text(report.stack)[:_STACK],
        codes=report.codes,
    )
