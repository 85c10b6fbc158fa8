"""Artifacts, operations, events, tokens, audit, connectors."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure


class Artifact(Resource):
    """Uploaded code, named by its content.

    Attributes:
        id: SHA-256 of the bytes, hexadecimal.
        main: The job file that was found inside, if there is exactly one.
    """

    id: str
    kind: Literal["py", "zip"]
    name: str
    size_bytes: int
    main: str | None = None
    files: int = 1
    created_at: Moment
    created_by: str


class Operation(Resource):
    """Something that takes a while.

    Attributes:
        kind: ``start``, ``stop``, ``restart``, ``cancel``, ``move``, ``upgrade``, ``savepoint``, ``delete-savepoint``,
            ``delete``.
        deadline: When it is given up: no operation is in progress for ever.
    """

    id: str
    kind: str
    job: str | None = None
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED"]
    result: dict[str, Any] = Field(default_factory=dict)
    failure: Failure | None = None
    created_at: Moment
    deadline: Moment
    ended_at: Moment | None = None


class Event(Resource):
    """Something that happened; the id of a server-sent event is its `seq`."""

    seq: int
    at: Moment
    type: str
    job: str | None = None
    agent: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Role(StrEnum):
    """What a token may do; each of the first three may do what the one before may."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # create jobs, and do anything with those of its subject
    ADMIN = "admin"  # anything
    AGENT = "agent"  # an agent's own routes, nothing else


class TokenCreate(Resource):
    """A new token.

    Attributes:
        subject: Whose it is; jobs belong to subjects.
        agent: For the role ``agent``: the only agent name that it may use.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?$")
    role: Role
    subject: str | None = Field(None, max_length=100)
    agent: str | None = None
    expires_in_s: int | None = Field(30 * 86_400, gt=0, le=366 * 86_400)

    @model_validator(mode="after")
    def _of_one_agent(self) -> TokenCreate:
        if (self.role is Role.AGENT) != (self.agent is not None):
            raise ValueError("a token of the role agent names its agent, and no other token does")
        return self


class Token(Resource):
    """A token; its secret is told once, at creation."""

    id: str
    name: str
    role: Role
    subject: str
    agent: str | None = None
    created_at: Moment
    expires_at: Moment | None = None
    revoked_at: Moment | None = None
    last_used_at: Moment | None = None


class TokenCreated(Token):
    """A new token with its secret: ``clonos_<id>_<secret>``."""

    token: str


class AuditEntry(Resource):
    """Who did what, or was refused."""

    seq: int
    at: Moment
    subject: str
    token: str | None = None
    action: str
    target: str | None = None
    outcome: Literal["allowed", "denied"]
    detail: dict[str, Any] = Field(default_factory=dict)


class Connector(Resource):
    """A source or a sink that jobs can name."""

    name: str
    kind: Literal["source", "sink"]
    version: str = ""
    summary: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class ValidateRequest(Resource):
    """Options to look at."""

    options: dict[str, Any]


class FieldProblem(Resource):
    """What is wrong with one option."""

    field: str
    what: str
    hint: str = ""


class Validation(Resource):
    """Whether the options are usable, as far as can be told without running a job."""

    valid: bool
    problems: list[FieldProblem] = Field(default_factory=list)


class LintFinding(Resource):
    """A place in a job's code where a replay may compute something else (`clonos lint`).

    Attributes:
        file: The file within the artifact.
        runs: Where the code runs: ``rows``, ``job`` or ``start``.
    """

    file: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    call: str
    runs: str
    why: str
    instead: str


class JobValidation(Validation):
    """Whether a job can be created as it is, and what the linter says of its code; findings do not hinder a start."""

    findings: list[LintFinding] = Field(default_factory=list)


class Health(Resource):
    """Whether the service can do its work.

    Attributes:
        leader: Whether this replica reconciles.
    """

    status: Literal["ok", "degraded"]
    version: str
    database: Literal["ok", "away"]
    leader: bool
    checks: dict[str, str] = Field(default_factory=dict)
