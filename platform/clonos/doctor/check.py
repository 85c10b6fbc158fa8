"""What a look at one thing found."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["ok", "warn", "fail"]


class Check(BaseModel):
    """One look.

    Attributes:
        name: What was looked at.
        status: ``warn``: jobs run, but something may surprise; ``fail``: something cannot work.
        what: What was found.
        meaning: What follows from it.
        mend: What to do.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    status: Status
    what: str
    meaning: str = ""
    mend: str = ""


def ok(name: str, what: str) -> Check:
    """All is well."""
    return Check(name=name, status="ok", what=what)


def warn(name: str, what: str, *, meaning: str, mend: str) -> Check:
    """Jobs run, but."""
    return Check(name=name, status="warn", what=what, meaning=meaning, mend=mend)


def fail(name: str, what: str, *, meaning: str, mend: str) -> Check:
    """Something cannot work."""
    return Check(name=name, status="fail", what=what, meaning=meaning, mend=mend)
