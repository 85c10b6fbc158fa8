"""The state of all jobs in a few sentences, for the overview's banner and for ``clonos status``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clonos_api.fleet.lead import clause
from clonos_api.fleet.lines import DISCONNECTED, SILENT, Board, Health, Line


@dataclass(frozen=True)
class Banner:
    """The state of all jobs."""

    health: Health  # the worst health of a job, a host or a dependency that needs attention
    stalled: tuple[Line, ...]  # the jobs that should publish and do not; readers of their output wait
    failing: tuple[Line, ...]  # the other jobs that are failing; `trouble_of` has the sentence of each
    headline: str  # what else is wrong, or that nothing is. Empty if there is nothing to add to the jobs.
    detail: str  # the jobs that guarantee less than others, and why

    @property
    def brief(self) -> bool:
        """Whether the sentences about jobs are short, because there are several."""
        return len(self.stalled) + len(self.failing) > 1


# Jobs that the banner names; it counts the others.
NAMED: Final = 2


def banner_of(board: Board) -> Banner:
    """Return the banner of a board."""
    counts, total = board.counts(), len(board.lines)
    stalled = tuple(sorted((line for line in board.lines if line.stall is not None), key=_since))
    if not total:
        return Banner("idle", (), (), "There are no jobs.", "")
    failing = tuple(line for line in board.lines if line.health == "bad" and line.stall is None)
    trouble = _trouble(board)
    silent = [*_silent(board), *_rivals(board), *_expiring(board)]
    if trouble or stalled or failing:
        return Banner("bad", stalled, failing, " ".join([*trouble, *silent]), _doubts(board))
    if silent:
        return Banner("weak", (), (), " ".join(silent), _doubts(board))
    if counts["busy"]:
        return Banner("busy", (), (), _changing(board), _doubts(board))
    if counts["weak"]:
        states = f"No job is failing; {counts['weak']} of {total} {_be(counts['weak'])} degraded."
        return Banner("weak", (), (), states, _doubts(board))
    if counts["idle"] == total:
        return Banner("idle", (), (), "No job is set to run.", "")
    good = "No running job is failing, behind or without a requested standby. All are configured for exactly once."
    if unmeasured := sum(line.unmeasured for line in board.lines):
        good = (
            "No running job is failing or without a requested standby. All are configured for exactly once. "
            f"{unmeasured} of {total} {'has' if unmeasured == 1 else 'have'} unread records, and it is not measured "
            "yet how fast they are read."
        )
    return Banner("good", (), (), good, _alone(board))


def trouble_of(line: Line, *, brief: bool = False) -> str:
    """Return what is wrong with a failing job and what to do next, in sentences without its name.

    `brief` is for one of several jobs: the command that shows the job's error with its hint.
    """
    why = f": {line.failure.strip().rstrip('.')}" if line.failure else ""
    hint = "" if brief else line.hint.strip().rstrip(".")
    hint = hint or f"`clonos job inspect {line.name}` shows more"
    return f"{clause(line)}{why}. What to do: {hint}."


def _changing(board: Board) -> str:
    busy = [line for line in board.lines if line.health == "busy"]
    more = f" {len(busy) - NAMED} more jobs are changing." if len(busy) > NAMED else ""
    return " ".join(f"{line.name}: {clause(line)}." for line in busy[:NAMED]) + more


def _since(line: Line) -> str:
    return line.stall.since.isoformat() if line.stall is not None else ""


def _trouble(board: Board) -> list[str]:
    """Sentences about what needs attention, besides jobs."""
    sentences = []
    if not board.led:
        sentences.append("No control plane replica leads: nothing takes over, starts or stops.")
    unreachable = sum(head.state in ("LOST", DISCONNECTED) for head in board.hosts)
    if unreachable:
        sentences.append(f"{unreachable} of {len(board.hosts)} hosts {_be(unreachable)} disconnected.")
    return sentences


def _silent(board: Board) -> list[str]:
    names = [head.name for head in board.hosts if head.state == SILENT]
    if not names:
        return []
    return [f"{names[0]} sends no heartbeats." if len(names) == 1 else f"{len(names)} hosts send no heartbeats."]


def _rivals(board: Board) -> list[str]:
    return [f"{head.name} has had two agents." for head in board.hosts if head.rival_at is not None]


def _expiring(board: Board) -> list[str]:
    more = f" {board.tokens.count - 1} more tokens expire soon." if board.tokens.count > 1 else ""
    return [board.tokens.first[0].sentence + more] if board.tokens.first else []


def _doubts(board: Board) -> str:
    """Return the number of jobs that guarantee less than exactly once, and the first reason for a degraded job.

    It promises nothing for the others: only a verification observes what readers get.
    """
    sentences = []
    doubtful = [line for line in board.lines if not line.exact]
    if doubtful:
        verb = "guarantees" if len(doubtful) == 1 else "guarantee"
        sentences.append(f"{len(doubtful)} of {len(board.lines)} jobs {verb} less than exactly once.")
    degraded = [line for line in board.lines if line.weak]
    for line in [*doubtful, *degraded][:1]:
        sentences.append(f"{line.name}: {line.weak[0]}.")
    if len(degraded) > 1:
        sentences.append(f"{len(degraded) - 1} more below.")
    return " ".join(filter(None, [*sentences, _alone(board)]))


def _alone(board: Board) -> str:
    alone = sum(line.alone for line in board.lines)
    if not alone:
        return ""
    verb = "has" if alone == 1 else "have"
    return f"{alone} of {len(board.lines)} {verb} no standby, as specified: a failure there leads to a cold restart."


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
