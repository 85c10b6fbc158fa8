"""The command that decides about an epoch in doubt: hints of errors contain it, and the dashboard reads it there."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_COMMAND: Final = re.compile(
    r"clonos job resolve \S+ --query (?P<query>[a-z0-9-]+) --epoch (?P<epoch>\d+) --(?P<decision>[a-z-]+)"
)
_NEW_CODE: Final = re.compile(r"clonos job resolve \S+ --new-code")


class NamedEpoch(NamedTuple):
    """The epoch in doubt that a hint names, and the decision that it proposes."""

    query: str
    epoch: int
    decision: str


def resolve_command(job: str, query: str, epoch: int, decision: str) -> str:
    """Return the command for a job of the control plane, and the option for a job without one.

    Example:
        >>> resolve_command("orders", "output", 12, "keep")
        '`clonos job resolve orders --query output --epoch 12 --keep`, or `clonos run … --resolve output:12=keep`'
    """
    return (
        f"`clonos job resolve {job} --query {query} --epoch {epoch} --{decision}`, "
        f"or `clonos run … --resolve {query}:{epoch}={decision}`"
    )


def new_code_command(job: str) -> str:
    """Return the command that accepts a job's new code for all its epochs in doubt, and the option for a job without
    one.

    Example:
        >>> new_code_command("orders")
        '`clonos job resolve orders --new-code`, or `clonos run … --accept-new-code`'
    """
    return f"`clonos job resolve {job} --new-code`, or `clonos run … --accept-new-code`"


def proposes_new_code(hint: str) -> bool:
    """Whether a hint contains the command of `new_code_command`."""
    return _NEW_CODE.search(hint) is not None


def named_epoch(hint: str) -> NamedEpoch | None:
    """Return the epoch of the first such command in a hint; None: the hint has none."""
    match = _COMMAND.search(hint)
    return None if match is None else NamedEpoch(match["query"], int(match["epoch"]), match["decision"])
