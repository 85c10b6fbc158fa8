"""Errors as the API has them: whose they are to mend, and whether another attempt can help."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

from clonos import errors
from clonos.errors import ClonosError
from clonos.resources.jobs import Failure

Domain = Literal["user", "environment", "consistency", "run", "internal"]
# By exit code, which is how `clonos.errors` has its families.
_DOMAINS: Final[tuple[tuple[range, Domain], ...]] = (
    (range(10, 30), "user"),
    (range(30, 50), "environment"),
    (range(50, 70), "consistency"),
    (range(70, 80), "run"),
)
CLASSES: Final = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ClonosError)]
BY_SLUG: Final = {one.slug: one for one in CLASSES}


def domain_of(kind: type[ClonosError] | ClonosError) -> Domain:
    """Whose an error is to mend."""
    return next((name for codes, name in _DOMAINS if kind.exit_code in codes), "internal")


def kind_of(slug: str) -> tuple[Domain, bool]:
    """The same of an error that is known by its slug, and whether another attempt can help."""
    kind = BY_SLUG.get(slug, ClonosError)
    return domain_of(kind), kind.retry


def failure_of(error: ClonosError, *, slug: Any = None) -> Failure:
    """An error, of just now.

    Args:
        error: The error.
        slug: Of a subclass that it was told as.
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
