"""What a driver's end means: whether another attempt can help, and what to tell of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Final

from clonos.agent.told import Told
from clonos.errors import ClonosError, DriverDied
from clonos.resources.failures import BY_SLUG, CLASSES, failure_of
from clonos.resources.jobs import Failure
from clonos.runner.states import DriverState

_BY_CODE: Final = {one.exit_code: one for one in CLASSES}


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended.

    Attributes:
        exit_code: Negative: a signal; None: unknown.
        failure: None if it ended as it should.
        again: Whether another attempt can help.
    """

    exit_code: int | None
    failure: Failure | None
    again: bool

    def at(self, told: Failure | None) -> Verdict:
        """The same, at the time of what was told first."""
        if self.failure is None or told is None:
            return self
        return replace(self, failure=self.failure.model_copy(update={"at": told.at}))


def judge(exit_code: int | None, told: Told) -> Verdict:
    """Judge an attempt by its exit code and by what it told.

    Args:
        exit_code: None if the process was not this agent's child, so that nobody can know: what it told decides then.
        told: Its events, read to the end.
    """
    if exit_code is None:
        exit_code = _told_code(told)
    if exit_code == 0:
        ended = told.summary.get("state") if told.summary else told.state
        # It ended in good order although nobody here asked it to: what is ordered is that it runs.
        return Verdict(0, None, again=ended != DriverState.FINISHED)
    if exit_code is None or exit_code < 0:
        return Verdict(exit_code, failure_of(DriverDied(_died(exit_code))), again=True)
    kind = _BY_CODE.get(exit_code, ClonosError)
    trouble = told.trouble or {}
    text = {name: str(trouble.get(name) or "") for name in ("what", "kept", "hint")}
    what = text["what"] or f"The driver ended with exit code {exit_code} and did not say why; see its log."
    error = kind(what, kept=text["kept"], hint=text["hint"])
    # A subclass, or an unexpected error, has a slug of its own.
    return Verdict(exit_code, failure_of(error, slug=trouble.get("error")), again=kind.retry)


def _told_code(told: Told) -> int | None:
    if told.trouble is not None:
        return BY_SLUG.get(str(told.trouble.get("error")), ClonosError).exit_code
    if told.summary is not None and told.summary.get("state") in {DriverState.STOPPED, DriverState.FINISHED}:
        return 0
    return None


def _died(exit_code: int | None) -> str:
    if exit_code is None:
        return "The driver ended without a word while its agent was away."
    try:
        return f"The driver was ended by {signal.Signals(-exit_code).name}."
    except ValueError:
        return f"The driver was ended by signal {-exit_code}."
