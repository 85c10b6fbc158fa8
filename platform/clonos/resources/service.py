"""Bodies for artifacts, operations, events, tokens, the audit log, connectors, validation and health."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from clonos.resources.base import HostName, Moment, Resource
from clonos.resources.jobs import Failure


class Artifact(Resource):
    """Uploaded job code, identified by its content."""

    id: str
    """SHA-256 of the bytes, hexadecimal."""
    kind: Literal["py", "zip"]
    """A job file, or an archive of files."""
    name: str
    size_bytes: int
    main: str | None = None
    """Path of the job file in it, if there is exactly one."""
    files: int = 1
    """Number of files in it."""
    created_at: Moment
    created_by: str


class Operation(Resource):
    """A long-running request, such as the stop of a job. `state` shows whether it has ended."""

    id: str
    kind: str
    """``start``, ``stop``, ``restart``, ``cancel``, ``move``, ``upgrade``, ``savepoint``, ``delete-savepoint``,
    ``delete``, ``check-cluster``, ``verify``.
    """
    job: str | None = None
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED"]
    result: dict[str, Any] = Field(default_factory=dict)
    """For a start, restart, move or upgrade: ``run`` and ``generation`` of the job's driver; for a savepoint, its
    deletion, or a stop that takes one: its id as ``savepoint``; for a check of a cluster: ``cluster`` (its name) and
    its ``state``; for ``verify`` the fields of `Verification`. Empty until the operation is complete.
    """
    failure: Failure | None = None
    created_at: Moment
    deadline: Moment
    """Time at which the operation fails if it is still in progress."""
    ended_at: Moment | None = None


# Types of server-sent events that are not an `Event`.
HEARTBEAT: Final = "heartbeat"  # without data: the connection is alive
GAP: Final = "gap"  # requested events are no longer stored


class Event(Resource):
    """An event of the control plane, such as a job's change of state. `seq` is also the id of the server-sent event."""

    seq: int
    at: Moment
    type: str
    """Type, such as ``job.state``."""
    job: str | None = None
    """Id of the job; `host`: id of the host; None: the event is not about one."""
    host: str | None = None
    text: str = ""
    """The event as a sentence, with names of jobs and hosts."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Further fields, by type."""


class Role(StrEnum):
    """Permissions of a token; each of the first three roles includes the permissions of the previous role."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # create jobs, and do anything with its subject's jobs
    ADMIN = "admin"  # anything
    AGENT = "agent"  # an agent's own routes, nothing else


class TokenCreate(Resource):
    """The request to create an API token."""

    name: str = Field(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?$")
    role: Role
    subject: str | None = Field(None, max_length=100)
    """User or agent that the token belongs to; None: the token's `name`. A new token of an operator or admin then needs
    a name that is not the subject of any token or job yet.
    """
    host: HostName | None = None
    """For the role ``agent``: the only host name that the agent may use."""
    expires_in_s: int | None = Field(30 * 86_400, gt=0, le=366 * 86_400)
    """Lifetime in seconds; null: it does not expire."""

    @field_validator("subject")
    @classmethod
    def _is_a_name(cls, subject: str | None) -> str | None:
        # The audit log writes "(nobody)" for requests without a token.
        if subject is not None and not (subject.isprintable() and subject[:1].isalnum()):
            raise ValueError("a subject is printable and starts with a letter or digit")
        return subject

    @model_validator(mode="after")
    def _of_one_host(self) -> TokenCreate:
        if (self.role is Role.AGENT) != (self.host is not None):
            raise ValueError("a token of the role agent names its agent, and no other token does")
        return self


class Token(Resource):
    """An API token, without its secret."""

    id: str
    name: str
    role: Role
    subject: str
    host: str | None = None
    created_at: Moment
    expires_at: Moment | None = None
    revoked_at: Moment | None = None
    replaced_by: str | None = None
    """Id of the token that a rotation has made from it."""
    last_used_at: Moment | None = None


WARNED: Final = timedelta(days=7)
WARNED_PARTS: Final = 4


def warned_within(lifetime: timedelta) -> timedelta:
    """Return the last part of a token's lifetime, in which its expiry is reported: a week, or a quarter of a short one.

    An agent has replaced its token earlier, in the last third.
    """
    return min(WARNED, lifetime / WARNED_PARTS)


class TokenCreated(Token):
    """A new API token with its secret: ``clonos_<id>_<secret>``."""

    token: str
    """The token. Only this response has it."""


class Session(Resource):
    """A browser that is signed in to the dashboard."""

    id: str
    subject: str
    role: Role
    session_of: str
    """Id of the API token whose rights the session has, or ``oidc`` for a user of the identity provider."""
    created_at: Moment
    expires_at: Moment
    last_used_at: Moment | None = None


class EndedSessions(Resource):
    """How many sessions a request has ended."""

    ended: int
    """Number of sessions that were ended."""


class SignInCode(Resource):
    """A code with which a browser signs in once, instead of the API token that asked for it."""

    code: str
    """Code for the link of the dashboard; it works once."""
    expires_at: Moment


class AuditEntry(Resource):
    """An entry of the audit log: one change or one refused request, with its subject."""

    seq: int
    at: Moment
    subject: str
    token: str | None = None
    """Id of the token that the request had."""
    action: str
    """Change, such as ``job.create``; for a refused request its method and path."""
    target: str | None = None
    """Id or path of what the request changes."""
    outcome: Literal["allowed", "denied"]
    """Whether the request was allowed."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Further data of the change, or the error of the refusal."""


class Connector(Resource):
    """An installed source or sink; `options` is the JSON Schema of its options."""

    name: str
    kind: Literal["source", "sink"]
    """A source or a sink."""
    version: str = ""
    summary: str = ""
    """What it connects to."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its options."""


class ValidateRequest(Resource):
    """Options of a source or sink to check."""

    options: dict[str, Any]
    """Options of the connector."""


class FieldProblem(Resource):
    """A problem of one field of a request (a path, such as ``spec.master``), or of one option."""

    field: str
    """Path of the field in the document, such as ``spec.standby.replicas``."""
    what: str
    """The problem."""
    hint: str = ""
    """How to fix it; may be empty."""


class Validation(Resource):
    """Result of the check of a source's or sink's options. It runs no job, so it cannot find every error."""

    valid: bool
    """Whether the options would be accepted."""
    problems: list[FieldProblem] = Field(default_factory=list)
    """What is wrong."""


class LintFinding(Resource):
    """A line of a job's code where a replay may compute another result (`clonos lint`)."""

    file: str
    """The file within the artifact."""
    line: int
    """Line in the file, from 1."""
    column: int
    """Column in the line."""
    code: str
    """Code of the linter's rule, such as ``CL001``."""
    severity: Literal["error", "warning"]
    """Severity; an error lets the linter fail."""
    call: str
    """Text of the call."""
    runs: str
    """Where the code runs: ``rows``, ``job`` or ``start``."""
    why: str
    """Reason why a replay may differ."""
    instead: str
    """Recommended replacement."""


class JobValidation(Validation):
    """Result of a check of a job: whether it can be created as it is, and the linter's findings, which do not prevent a
    start.
    """

    valid: bool
    """Whether the job would be accepted."""
    problems: list[FieldProblem] = Field(default_factory=list)
    """What is wrong in the specification or the code."""
    findings: list[LintFinding] = Field(default_factory=list)
    """What the linter found in the code."""


class Health(Resource):
    """Health of one replica of the control plane and of its dependencies."""

    status: Literal["ok", "degraded"]
    """``degraded``: the database is unavailable, or a background task failed in the last minute."""
    version: str
    database: Literal["ok", "unavailable"]
    """Whether the database answers."""
    leader: bool
    """Whether this replica is the leader."""
    checks: dict[str, str] = Field(default_factory=dict)
    """Failed check (``database`` or a background task) → reason; empty if all is well."""
