"""The base class of all errors."""

from __future__ import annotations

from typing import ClassVar


class ClonosError(Exception):
    """An unexpected error. `clonos demo` and `clonos lint` also exit with code 1 when they have findings.

    Args:
        what: What happened, one sentence.
        kept: What was kept safe.
        hint: What to do next.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    outage: ClassVar[bool] = False
    kept_default: ClassVar[str] = ""
    hint_default: ClassVar[str] = ""

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
