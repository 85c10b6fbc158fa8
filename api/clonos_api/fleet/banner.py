"""The state of all jobs in a few sentences, for the overview's banner and for ``clonos status``."""

from __future__ import annotations

from dataclasses import dataclass

from clonos_api.fleet.lines import DISCONNECTED, SILENT, Board, Health, Line


@dataclass(frozen=True)
class Banner:
    """The state of all jobs.

    Attributes:
        health: The worst health of a job, a host or a dependency that needs attention.
        stalled: The jobs that should publish and do not; readers of their output wait.
        headline: What else is wrong, or that nothing is. Empty if there is nothing to add to `stalled`.
        detail: What is guaranteed for the output in spite of that.
    """

    health: Health
    stalled: tuple[Line, ...]
    headline: str
    detail: str


def banner_of(board: Board) -> Banner:
    """The banner of a board."""
    counts, total = board.counts(), len(board.lines)
    stalled = tuple(sorted((line for line in board.lines if line.stall is not None), key=_since))
    if not total:
        return Banner("idle", (), "There are no jobs.", "")
    trouble = _trouble(board, counts["bad"] - len(stalled))
    silent = _silent(board)
    if trouble or stalled:
        return Banner("bad", stalled, " ".join([*trouble, *silent]), _promise(board))
    if silent:
        return Banner("weak", (), " ".join(silent), _promise(board))
    if counts["busy"]:
        return Banner("busy", (), f"{_jobs(counts['busy'], total)} changing state.", _promise(board))
    if counts["weak"]:
        states = f"All jobs are in their desired state; {counts['weak']} of {total} {_be(counts['weak'])} degraded."
        return Banner("weak", (), states, _promise(board))
    if counts["idle"] == total:
        return Banner("idle", (), "No job is set to run.", "")
    good = "All running jobs publish, deliver exactly once, and all their standbys are ready."
    return Banner("good", (), good, _alone(board))


def _since(line: Line) -> str:
    return line.stall.since.isoformat() if line.stall is not None else ""


def _trouble(board: Board, failing: int) -> list[str]:
    """Sentences about what needs attention, besides jobs without output."""
    sentences = []
    if not board.led:
        sentences.append("No control plane replica leads: nothing takes over, starts or stops.")
    if failing > 0:
        sentences.append(f"{_jobs(failing, len(board.lines))} failing.")
    unreachable = sum(head.state in ("LOST", DISCONNECTED) for head in board.hosts)
    if unreachable:
        sentences.append(f"{unreachable} of {len(board.hosts)} hosts {_be(unreachable)} disconnected.")
    return sentences


def _silent(board: Board) -> list[str]:
    names = [head.name for head in board.hosts if head.state == SILENT]
    if not names:
        return []
    return [f"{names[0]} sends no heartbeats." if len(names) == 1 else f"{len(names)} hosts send no heartbeats."]


def _promise(board: Board) -> str:
    """Whether all output is delivered exactly once, and the first reason for a degraded job."""
    doubtful = [line for line in board.lines if not line.exact]
    if doubtful:
        verb = "guarantees" if len(doubtful) == 1 else "guarantee"
        sentences = [f"{len(doubtful)} of {len(board.lines)} jobs {verb} less than exactly once."]
    else:
        sentences = ["All output is delivered exactly once."]
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
    return f"{alone} of them {verb} no standby, as specified: a failure there leads to a cold restart."


def _jobs(count: int, total: int) -> str:
    return f"{count} of {total} jobs {_be(count)}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
