"""Base classes of all bodies of the REST API: resources, pages and problems."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from clonos.documents import describe_fields

T = TypeVar("T")


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone")
    try:
        moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("there is no such time in UTC") from error
    return moment


Moment = Annotated[datetime, AfterValidator(_utc)]
PLAIN: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Pattern of a text without control characters, which a terminal would execute; a database cannot store NUL."""
HostName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,98}[a-zA-Z0-9])?$")]


# Fields that mean the same in all bodies; a docstring describes the others.
_EVERYWHERE: Final = {
    "apiVersion": "Version of the format.",
    "artifact": "SHA-256 of the job's code.",
    "at": "Time.",
    "claimed_at": "Time of the claim of the causal log.",
    "completed_at": "Time of completion; null: not yet.",
    "created_at": "Time of creation.",
    "created_by": "Subject that created it.",
    "deadline": "Time after which it fails.",
    "desired_state": "State that a user requested.",
    "ended_at": "Time of its end; null: it has not ended.",
    "epoch": "Number of the epoch in its query.",
    "expires_at": "Time from which it is not valid; null: it does not expire.",
    "failed_generation": "Generation of the driver that failed.",
    "failure": "The error; null: there is none.",
    "from_host": "Id of the host on which the job ran before.",
    "generation": "Number of the driver's claim of the causal log.",
    "heartbeat_at": "Time of the newest heartbeat.",
    "host": "Id of the host; null: none.",
    "id": "Identifier, which never changes.",
    "instance": "Identifies the process of the agent.",
    "job": "Id of the job; null: none.",
    "job_name": "Name of the job.",
    "labels": "Labels: name and value.",
    "last_used_at": "Time of the newest request, within a minute; null: it was not used.",
    "lineage": "Number of the job's history; a start from an older point begins another.",
    "name": "Name.",
    "phases": "Its parts, in order.",
    "pid": "Process id on its host; null: not started.",
    "query": "Name of the query.",
    "registered_at": "Time of the first registration.",
    "replayed_determinants": "Determinants that the replay read.",
    "revoked_at": "Time of the revocation; null: it was not revoked.",
    "role": "Role: viewer, operator, agent or admin.",
    "run": "Id of the run: one driver process on one host.",
    "seq": "Number, which increases.",
    "since": "Time since which this holds.",
    "size_bytes": "Size in bytes.",
    "slots": "Largest number of drivers and standbys.",
    "spec": "Specification of the job, as in `job.yaml`.",
    "started_at": "Time of its start; null: not yet.",
    "state": "State.",
    "state_since": "Time of the newest change of the state.",
    "subject": "Person or program to which it belongs.",
    "to_host": "Id of the host on which the job runs afterwards.",
    "updated_at": "Time of the newest change.",
    "version": "Number of the version.",
    "waits": "What the recovery waits for.",
}


def _described(schema: dict[str, Any], model: type[BaseModel]) -> None:
    describe_fields(schema, model, _EVERYWHERE)


class Resource(BaseModel):
    """Base class of the request and response bodies of the REST API.

    The JSON Schema of a field has its meaning: from the docstring, or what it means in all bodies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_described)


class Page(Resource, Generic[T]):
    """One page of a list in the REST API."""

    data: list[T]
    """Entries, newest first unless the route specifies another order."""
    has_more: bool = False
    """Whether there is another page."""
    next: str | None = None
    """Value of ``starting_after`` in the request for the next page."""


class Problem(BaseModel):
    """An error in the format of RFC 9457 (``application/problem+json``)."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_described)

    type: str = "about:blank"
    """``/docs/errors/<slug>``, the page of the error; the slug is the command line's."""
    title: str = ""
    """The slug in words."""
    status: int
    """HTTP status."""
    detail: str = ""
    """What happened."""
    instance: str | None = None
    kept: str = ""
    """Data that is safe despite the error."""
    hint: str = ""
    """Next step for the user."""
    errors: list[dict[str, str]] = Field(default_factory=list)
    """Position and problem of each invalid field."""
