"""The alerts of a board: what needs a person, by the same conditions as the overview and ``clonos status``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from clonos.resources.recovery_descriptions import PLANNED
from clonos_api.fleet.lines import DISCONNECTED, Board, Head, Last, Line

Severity = Literal["warning", "critical"]
AlertName = Literal[
    "JobRecovering",
    "JobWithoutOutput",
    "JobFailed",
    "JobNotRunning",
    "OutputContradicted",
    "KafkaUnavailable",
    "DeadLetters",
    "JobWithoutStandby",
    "LateRowsDropped",
    "HostLost",
    "AgentReplaced",
    "TokenExpires",
    "DiskNearlyFull",
]
# A standby needs this time to become READY again; earlier, its absence is no news.
STANDBY_HOLD_S: Final = 60.0
# While this much is free, the alert itself can still be stored.
_LITTLE_FREE_BYTES: Final = 500_000_000
# What each alert means, by its name. The documentation has a page for each.
MEANINGS: Final[dict[AlertName, str]] = {
    "JobRecovering": "A recovery is in progress.",
    "JobWithoutOutput": "The job publishes nothing although input waits.",
    "JobFailed": "The job has failed and is not restarted.",
    "JobNotRunning": "The job should run, and has no driver or does not leave a transient state.",
    "OutputContradicted": "The output contradicts the causal log.",
    "KafkaUnavailable": "Kafka does not answer the drivers of jobs.",
    "DeadLetters": "The job publishes records to its dead-letter topics.",
    "JobWithoutStandby": "No standby of the job is READY on another host.",
    "LateRowsDropped": "The job dropped rows because their watermark had passed.",
    "HostLost": "The host sends no heartbeats.",
    "AgentReplaced": "Two processes are the agent of one host: its token may be stolen.",
    "TokenExpires": "A token in use expires within a week, and was not replaced.",
    "DiskNearlyFull": "The disk with the control plane's SQLite database has little free space.",
}


@dataclass(frozen=True)
class Alert:
    """One thing that is wrong.

    Attributes:
        key: Identifies it while it lasts.
        name: Its kind, such as ``JobRecovering``.
        severity: ``critical`` if readers of a job's output wait, or may wait until a person acts, or if a token may be
            stolen.
        labels: ``job_name``, ``host``, ``token`` or nothing.
        since: Its beginning.
        summary: What is wrong.
        description: What to do next.
        hold_s: Seconds for which it has to last before it is reported.
    """

    key: str
    name: AlertName
    severity: Severity
    labels: dict[str, str]
    since: datetime
    summary: str
    description: str
    hold_s: float = 0.0


def alerts_of(board: Board) -> dict[str, Alert]:
    """The alerts of a board, by their keys.

    Each job whose health is ``bad`` has a critical one. A job whose driver gets no answer of Kafka has the one of Kafka
    besides its own.
    """
    of_jobs_and_hosts = (*_of_jobs(board), *_of_hosts(board))
    return {alert.key: alert for alert in (*of_jobs_and_hosts, *_of_kafka(board), *_of_tokens(board), *_of_disk(board))}


def recovery_alert(line: Line, last: Last) -> Alert | None:
    """The alert of a job's newest recovery, also of one that has ended; None if it was planned."""
    if last.cause in PLANNED:
        return None
    return Alert(
        f"JobRecovering/{line.id}/{last.id}",
        "JobRecovering",
        "critical",
        {"job_name": line.name, "cause": last.cause},
        last.at,
        f"{line.name} recovers, and publishes nothing until then.",
        f"`clonos recovery explain {line.name}` shows its phases.",
    )


def _of_jobs(board: Board) -> Iterator[Alert]:
    for line in board.lines:
        if line.health == "bad":
            yield _bad(line)
        if line.proof is not None and line.proof.contradicted:
            yield Alert(
                f"OutputContradicted/{line.id}",
                "OutputContradicted",
                "critical",
                {"job_name": line.name},
                line.proof.at,
                f"The output of {line.name} contradicts its causal log.",
                f"`clonos verify {line.name}` shows which epochs and records.",
            )
        if line.dead_letters:
            yield Alert(
                f"DeadLetters/{line.id}",
                "DeadLetters",
                "warning",
                {"job_name": line.name},
                board.at,
                f"{line.name} has published dead letters in the last five minutes.",
                f"`clonos job inspect {line.name}` shows their number and the causal log's figures.",
            )
        if line.forecast is not None and not line.forecast.warm and not line.alone:
            yield Alert(
                f"JobWithoutStandby/{line.id}",
                "JobWithoutStandby",
                "warning",
                {"job_name": line.name},
                board.at,
                f"No standby of {line.name} is READY on another host: a failure leads to a cold restart.",
                f"`clonos standby ls --job {line.name}` shows its standbys.",
                STANDBY_HOLD_S,
            )
        if line.late is not None:
            yield Alert(
                f"LateRowsDropped/{line.id}",
                "LateRowsDropped",
                "warning",
                {"job_name": line.name},
                line.late.since,
                f"{line.name} dropped rows behind its watermark, {line.late.rows} so far: its output lacks them.",
                f"`clonos job inspect {line.name}` shows which query.",
            )


def _bad(line: Line) -> Alert:
    labels, inspect = {"job_name": line.name}, f"`clonos job inspect {line.name}` shows the reason."
    if line.stall is not None and line.last is not None and line.last.open:
        recovery = recovery_alert(line, line.last)
        if recovery is not None:
            return recovery
    if line.stall is not None:
        summary = f"{line.name} publishes nothing: {line.stall.why}."
        return Alert(
            f"JobWithoutOutput/{line.id}", "JobWithoutOutput", "critical", labels, line.stall.since, summary, inspect
        )
    if line.state == "FAILED":
        summary = f"{line.name} has failed and is not restarted."
        return Alert(f"JobFailed/{line.id}", "JobFailed", "critical", labels, line.since, summary, inspect)
    summary = f"{line.name} should run, and has no driver or does not leave the state {line.state}."
    return Alert(f"JobNotRunning/{line.id}", "JobNotRunning", "critical", labels, line.since, summary, inspect)


def _of_hosts(board: Board) -> Iterator[Alert]:
    for head in board.hosts:
        if head.state in ("LOST", DISCONNECTED):
            yield _lost(head, board.at)
        if head.rival_at is not None:
            yield Alert(
                f"AgentReplaced/{head.name}",
                "AgentReplaced",
                "critical",
                {"host": head.name},
                head.rival_at,
                f"A process was refused as the agent of {head.name}, because another one has taken its place.",
                "If nobody started a second agent, its token is stolen: revoke it (`clonos token ls`).",
            )


def _lost(head: Head, at: datetime) -> Alert:
    return Alert(
        f"HostLost/{head.name}",
        "HostLost",
        "warning",
        {"host": head.name},
        at,
        f"The host {head.name} sends no heartbeats.",
        "`clonos host ls` shows it. Remove it with `clonos host rm` if it does not return.",
    )


def _of_kafka(board: Board) -> Iterator[Alert]:
    if board.dependencies.silent:
        yield Alert(
            "KafkaUnavailable",
            "KafkaUnavailable",
            "critical",
            {},
            board.at,
            f"Kafka does not answer the drivers of {len(board.dependencies.silent)} jobs.",
            "Jobs continue by themselves when it answers. `clonos status` shows which ones wait.",
        )


def _of_tokens(board: Board) -> Iterator[Alert]:
    for token in board.tokens.first:
        yield Alert(
            f"TokenExpires/{token.id}",
            "TokenExpires",
            "warning",
            {"host": token.host} if token.host else {"token": token.name},
            board.at,
            token.sentence,
            "The log of its agent has the reason." if token.host else "Replace it with `clonos token rotate`.",
        )


def _of_disk(board: Board) -> Iterator[Alert]:
    if board.free_bytes is not None and board.free_bytes < _LITTLE_FREE_BYTES:
        yield Alert(
            "DiskNearlyFull",
            "DiskNearlyFull",
            "critical",
            {},
            board.at,
            f"The disk with the control plane's database has {board.free_bytes // 1_000_000} MB of free space.",
            "Free some: without space no job can be started, changed or recovered.",
        )
