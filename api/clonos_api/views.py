"""Rows of the store as resources of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clonos.resources.checkpoints import Savepoint
from clonos.resources.hosts import Agent, Standby
from clonos.resources.jobs import Generation, Job, JobException, JobVersion, Recovery, Run
from clonos.resources.service import Artifact, AuditEntry, Event, Operation, Token
from clonos_api.store.tables import (
    AgentRow,
    ArtifactRow,
    AuditRow,
    EventRow,
    ExceptionRow,
    GenerationRow,
    JobRow,
    JobVersionRow,
    OperationRow,
    RecoveryRow,
    RunRow,
    SavepointRow,
    StandbyRow,
    TokenRow,
)

Names = Mapping[str, str]
"""Agent id → name."""


def artifact(row: ArtifactRow) -> Artifact:
    """Uploaded code."""
    return Artifact.model_validate(_columns(row, "id kind name size_bytes main files created_at created_by"))


def job(row: JobRow, agent: str | None) -> Job:
    """A job; `agent` is the name of the host that has its newest run."""
    same = "id name labels spec version observed_version artifact desired_state state state_since state_deadline"
    more = "generation run restarts failure owner created_at updated_at"
    return Job.model_validate({**_columns(row, f"{same} {more}"), "agent": agent})


def job_version(row: JobVersionRow) -> JobVersion:
    """A specification that a job had."""
    return JobVersion.model_validate(_columns(row, "version spec artifact created_at created_by"))


def run(row: RunRow, agents: Names) -> Run:
    """A placement."""
    same = "id state attempts pid exit_code created_at started_at ended_at"
    ordered = {"version": row.order["version"], "standby": row.order.get("standby", False)}
    return Run.model_validate({**_columns(row, same), "agent": agents.get(row.agent, row.agent), **ordered})


def generation(row: GenerationRow, agent: str) -> Generation:
    """A claim; `agent` is the name of the host where it was made."""
    same = "generation lineage driver run attempt cause claimed_at ended_at epochs records"
    return Generation.model_validate({**_columns(row, same), "agent": agent})


def recovery(row: RecoveryRow) -> Recovery:
    """A recovery."""
    return Recovery.model_validate({**row.body, **_columns(row, "id job started_at ended_at")})


def job_exception(row: ExceptionRow) -> JobException:
    """An error that a driver told."""
    return JobException.model_validate(_columns(row, "seq at generation failure"))


def savepoint(row: SavepointRow) -> Savepoint:
    """A savepoint."""
    same = "id job job_name name state location epochs size_bytes failure version artifact created_at completed_at"
    return Savepoint.model_validate(_columns(row, same))


def operation(row: OperationRow) -> Operation:
    """Something that takes a while."""
    return Operation.model_validate(_columns(row, "id kind job state result failure created_at deadline ended_at"))


def event(row: EventRow) -> Event:
    """Something that happened."""
    return Event.model_validate(_columns(row, "seq at type job agent data"))


def host(row: AgentRow, runs: int) -> Agent:
    """A host with so many runs."""
    same = "id name state failure_domain slots spares versions labels limits registered_at heartbeat_at"
    return Agent.model_validate({**_columns(row, same), "runs": runs, "free": max(0, row.slots - runs)})


def standby(row: StandbyRow, agents: Names, lag_epochs: int | None) -> Standby:
    """A warm driver."""
    told = {"why_here": row.body.get("why_here", ""), "lag_epochs": lag_epochs}
    return Standby.model_validate(
        {**told, **_columns(row, "id job mode state since"), "agent": agents.get(row.agent, row.agent)}
    )


def token(row: TokenRow) -> Token:
    """A token, without its secret."""
    same = "id name role subject agent created_at expires_at revoked_at last_used_at"
    return Token.model_validate(_columns(row, same))


def audit_entry(row: AuditRow) -> AuditEntry:
    """Who did what."""
    return AuditEntry.model_validate(_columns(row, "seq at subject token action target outcome detail"))


def _columns(row: Any, names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names.split()}
