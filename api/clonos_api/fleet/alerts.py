"""The catalogue of alerts, and the alerts of a board: what needs a person, by the conditions of the overview.

`docker/compose/alerts.yml` has a rule for Prometheus for each kind, by what the control plane exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal

from clonos.resources.recovery_descriptions import PLANNED
from clonos_api.fleet.lines import DISCONNECTED, Board, Head, Last, Line

Severity = Literal["warning", "critical"]
# A standby needs this time to become READY again; a missing standby counts only after that.
STANDBY_HOLD_S: Final = 60.0
# While this much is free, the alert itself can still be stored.
_LITTLE_FREE_BYTES: Final = 500_000_000


class Kind(Enum):
    """All kinds of alerts, by their names. The documentation has a page for each."""

    JobFailed = "critical", "The job has failed and is not restarted."
    JobRecovering = "critical", "A recovery is in progress."
    JobWithoutOutput = "critical", "The job publishes nothing although input waits."
    JobNotRunning = "critical", "The job should run, and has no driver or does not leave a transient state."
    JobWithoutStandby = "warning", "No standby of the job is READY on another host."
    ReplayDiverged = "critical", "A replay computed other records than the published ones.", False
    OutputContradicted = "critical", "The output contradicts the causal log."
    KafkaUnavailable = "critical", "Kafka does not answer the drivers of jobs."
    DeadLetters = "warning", "The job publishes records to its dead-letter topics."
    LateRowsDropped = "warning", "The job dropped rows because their watermark had passed."
    SourceLagGrows = "warning", "The job falls behind a source topic.", False
    RetentionIsClose = "critical", "A source topic may soon delete records that the job has not read.", False
    TransactionStaysOpen = "critical", "Readers of a topic have waited for a transaction for minutes.", False
    HostLost = "warning", "The host sends no heartbeats."
    AgentReplaced = "critical", "Two processes are the agent of one host: its token may be stolen."
    TokenExpires = "warning", "A token in use expires within a week, and was not replaced."
    DiskNearlyFull = "critical", "The disk with the control plane's SQLite database has little free space."
    WebhookFails = "warning", "A webhook accepts no alerts.", False
    NoLeader = "critical", "The control plane has no leader.", False
    ReplicaUnavailable = "warning", "A replica of the control plane is unreachable.", False

    def __init__(self, severity: Severity, meaning: str, webhook: bool = True) -> None:
        # ``critical`` if readers of a job's output wait, or may wait until a person acts, or if a token may be stolen.
        self.severity = severity
        self.meaning = meaning  # what is wrong
        self.webhook = webhook  # webhooks receive it, too. The others follow from figures that only Prometheus keeps.


@dataclass(frozen=True)
class Alert:
    """One thing that is wrong."""

    kind: Kind
    labels: dict[str, str]  # ``job_name``, ``host``, ``token`` or nothing
    since: datetime  # its beginning
    summary: str  # what is wrong
    description: str  # what to do next
    of: tuple[str, ...] = ()  # ids of what it is about, which identify it while it lasts
    hold_s: float = 0.0  # seconds for which it has to last before it is reported

    @property
    def key(self) -> str:
        """Identifies it while it lasts."""
        return "/".join((self.kind.name, *self.of))


def alerts_of(board: Board) -> dict[str, Alert]:
    """Return the alerts of a board, by their keys.

    Each job whose health is ``bad`` has a critical one. A job whose driver gets no answer of Kafka has the one of Kafka
    besides its own.
    """
    of_jobs = (alert for line in board.lines for alert in _of_job(line, board.at))
    of_hosts = (alert for head in board.hosts for alert in _of_host(head, board.at))
    return {alert.key: alert for alert in (*of_jobs, *of_hosts, *_of_platform(board))}


def recovery_alert(line: Line, last: Last) -> Alert | None:
    """Return the alert of a job's newest recovery, also of one that has ended; None if it was planned."""
    if last.cause in PLANNED:
        return None
    return Alert(
        Kind.JobRecovering,
        {"job_name": line.name, "cause": last.cause},
        last.at,
        f"{line.name} recovers, and publishes nothing until then.",
        f"`clonos recovery explain {line.name}` shows its phases.",
        (line.id, last.id),
    )


def _of_job(line: Line, at: datetime) -> Iterator[Alert]:
    def alert(kind: Kind, summary: str, description: str, since: datetime = at, hold_s: float = 0.0) -> Alert:
        return Alert(kind, {"job_name": line.name}, since, summary, description, (line.id,), hold_s)

    name, inspect = line.name, f"`clonos job inspect {line.name}` shows"
    if line.health == "bad":
        recovery = recovery_alert(line, line.last) if line.stall and line.last and line.last.open else None
        if recovery is not None:
            yield recovery
        elif line.stall is not None:
            summary = f"{name} publishes nothing: {line.stall.why}."
            yield alert(Kind.JobWithoutOutput, summary, f"{inspect} the reason.", line.stall.since)
        elif line.state == "FAILED":
            yield alert(
                Kind.JobFailed, f"{name} has failed and is not restarted.", f"{inspect} the reason.", line.since
            )
        else:
            summary = f"{name} should run, and has no driver or does not leave the state {line.state}."
            yield alert(Kind.JobNotRunning, summary, f"{inspect} the reason.", line.since)
    if line.proof is not None and line.proof.contradicted:
        yield alert(
            Kind.OutputContradicted,
            f"The output of {name} contradicts its causal log.",
            f"`clonos verify {name}` shows which epochs and records.",
            line.proof.at,
        )
    if line.dead_letters:
        yield alert(
            Kind.DeadLetters,
            f"{name} has published dead letters in the last five minutes.",
            f"{inspect} their number and the causal log's figures.",
        )
    if line.forecast is not None and not line.forecast.warm and not line.alone:
        yield alert(
            Kind.JobWithoutStandby,
            f"No standby of {name} is READY on another host: a failure leads to a cold restart.",
            f"`clonos standby ls --job {name}` shows its standbys.",
            hold_s=STANDBY_HOLD_S,
        )
    if line.late is not None:
        yield alert(
            Kind.LateRowsDropped,
            f"{name} dropped rows behind its watermark, {line.late.rows} so far: its output lacks them.",
            f"{inspect} which query.",
            line.late.since,
        )


def _of_host(head: Head, at: datetime) -> Iterator[Alert]:
    if head.state in ("LOST", DISCONNECTED):
        yield Alert(
            Kind.HostLost,
            {"host": head.name},
            at,
            f"The host {head.name} sends no heartbeats.",
            "`clonos host ls` shows it. Remove it with `clonos host rm` if it does not return.",
            (head.name,),
        )
    if head.rival_at is not None:
        yield Alert(
            Kind.AgentReplaced,
            {"host": head.name},
            head.rival_at,
            f"A process was refused as the agent of {head.name}, because another one has taken its place.",
            "If nobody started a second agent, its token is stolen: revoke it (`clonos token ls`).",
            (head.name,),
        )


def _of_platform(board: Board) -> Iterator[Alert]:
    if board.dependencies.silent:
        yield Alert(
            Kind.KafkaUnavailable,
            {},
            board.at,
            f"Kafka does not answer the drivers of {len(board.dependencies.silent)} jobs.",
            "Jobs continue by themselves when it answers. `clonos status` shows which ones wait.",
        )
    for token in board.tokens.first:
        yield Alert(
            Kind.TokenExpires,
            {"host": token.host} if token.host else {"token": token.name},
            board.at,
            token.sentence,
            "The log of its agent has the reason." if token.host else "Replace it with `clonos token rotate`.",
            (token.id,),
        )
    if board.free_bytes is not None and board.free_bytes < _LITTLE_FREE_BYTES:
        yield Alert(
            Kind.DiskNearlyFull,
            {},
            board.at,
            f"The disk with the control plane's database has {board.free_bytes // 1_000_000} MB of free space.",
            "Free some: without space no job can be started, changed or recovered.",
        )
