"""The command that decides about an epoch in doubt: hints of errors contain it, and the dashboard reads it there."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_COMMAND: Final = re.compile(
    r"clonos job resolve \S+ --query (?P<query>[a-z0-9-]+) --epoch (?P<epoch>\d+) --(?P<decision>[a-z-]+)"
)


class NamedEpoch(NamedTuple):
    """The epoch in doubt that a hint names, and the decision that it proposes."""

    query: str
    epoch: int
    decision: str


def resolve_command(job: str, query: str, epoch: int, decision: str) -> str:
    """The command for a job of the control plane, and the option for a job without one.

    Example:
        >>> resolve_command("orders", "output", 12, "keep")
        '`clonos job resolve orders --query output --epoch 12 --keep`, or `clonos run … --resolve output:12=keep`'
    """
    return (
        f"`clonos job resolve {job} --query {query} --epoch {epoch} --{decision}`, "
        f"or `clonos run … --resolve {query}:{epoch}={decision}`"
    )


def named_epoch(hint: str) -> NamedEpoch | None:
    """The epoch of the first such command in a hint; None: the hint has none."""
    match = _COMMAND.search(hint)
    return None if match is None else NamedEpoch(match["query"], int(match["epoch"]), match["decision"])
