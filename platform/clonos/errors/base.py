"""The base class of all errors."""

from __future__ import annotations

import re
from typing import ClassVar


class ClonosError(Exception):
    """An unexpected error. `clonos demo` and `clonos lint` also exit with code 1 when they have findings.

    Args:
        what: What happened, one sentence.
        kept: What was kept safe.
        hint: What to do next.

    A subclass with an `exit_code` is an error of its own: its `slug` is its name in kebab case unless one is given. A
    subclass without remains an error of its base.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    outage: ClassVar[bool] = False
    kept_default: ClassVar[str] = ""
    hint_default: ClassVar[str] = ""

    def __init_subclass__(
        cls, *, exit_code: int | None = None, slug: str = "", retry: bool | None = None, outage: bool | None = None
    ) -> None:
        super().__init_subclass__()
        if exit_code is not None:
            cls.exit_code = exit_code
            cls.slug = slug or re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        if retry is not None:
            cls.retry = retry
        if outage is not None:
            cls.outage = outage

    def __init__(self, what: str, *, kept: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept or self.kept_default
        self.hint = hint or self.hint_default

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all three parts (errors cross from Python workers to the driver)."""
        return (_rebuild, (type(self), self.what, self.kept, self.hint))

    def __str__(self) -> str:
        """Return the three parts, one per line, as a terminal shows them."""
        parts = [self.what]
        if self.kept:
            parts.append(f"Kept safe: {self.kept}")
        if self.hint:
            parts.append(f"What to do: {self.hint}")
        return "\n".join(parts)


def _rebuild(cls: type[ClonosError], what: str, kept: str, hint: str) -> ClonosError:
    return cls(what, kept=kept, hint=hint)
