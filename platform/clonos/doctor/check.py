"""The result of one check of ``clonos doctor``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["ok", "warn", "fail"]


class Check(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(frozen=True)

    name: str  # name of the check
    status: Status  # ``ok``, ``warn`` (jobs run, but the finding may surprise) or ``fail`` (jobs cannot run correctly)
    what: str  # the finding
    meaning: str = ""  # the consequence
    fix: str = ""  # advice how to fix the problem


def ok(name: str, what: str) -> Check:
    """Return the result of a check that found no problem: `what` describes the state."""
    return Check(name=name, status="ok", what=what)


def warn(name: str, what: str, *, meaning: str, fix: str) -> Check:
    """Return the result of a check whose problem does not stop jobs: finding, consequence and advice."""
    return Check(name=name, status="warn", what=what, meaning=meaning, fix=fix)


def fail(name: str, what: str, *, meaning: str, fix: str) -> Check:
    """Return the result of a check whose problem prevents correct jobs: finding, consequence and advice."""
    return Check(name=name, status="fail", what=what, meaning=meaning, fix=fix)
