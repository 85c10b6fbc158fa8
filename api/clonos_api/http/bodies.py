"""Bodies as JSON or YAML, and versions as ETags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import yaml
from fastapi import Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from clonos.documents import load_yaml
from clonos.errors import SpecError, VersionStale
from clonos.resources.base import PLAIN
from clonos.resources.clusters import Cluster
from clonos.resources.jobs import Job, JobCreate
from clonos.standby.states import StandbyState
from clonos_api.http.checked_json import check_value, parse
from clonos_api.http.problems import BodyInvalid

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_YAML_TYPES: Final = frozenset({YAML, "application/x-yaml", "text/yaml", "text/x-yaml"})
# The YAML parser is slow; a specification has a few dozen lines.
_LONGEST_YAML: Final = 100_000
_DEEPEST: Final = 50

Body = TypeVar("Body", bound=BaseModel)

TEXT: Final = PLAIN
SHA: Final = r"^[0-9a-f]{64}$"
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of results.")]
StandbyStates = Annotated[list[StandbyState] | None, Query(description="States; a standby matches any of them.")]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=200, description="The ETag of the resource, from an earlier response."),
]


def etag(resource: Job | Cluster) -> str:
    """Return the header ``ETag`` of a job or cluster: the version of its specification, and a hash of everything else,
    such as its state.

    ``If-None-Match`` compares all of it, and ``If-Match`` the version: a change of state does not hinder an update.
    """
    digest = hashlib.blake2b(resource.model_dump_json(by_alias=True).encode(), digest_size=6).hexdigest()
    return f'"{resource.version}-{digest}"'


def matched_version(if_match: str | None, newest: int) -> int:
    """Check that the header ``If-Match`` of a change names the version `newest`, or ``*``; return `newest`.

    Without the header the status is 428; if it names only other versions, 412.
    """
    if if_match is None:
        raise HTTPException(428, "This change needs If-Match with the ETag of the resource.")
    check_version(if_match, newest)
    return newest


def check_version(if_match: str | None, newest: int) -> None:
    """Check that the header ``If-Match``, if there is one, names the version `newest`, or ``*``; otherwise 412.

    An empty header names no version.
    """
    if if_match is None:
        return
    tags = {tag.strip() for tag in if_match.split(",")}
    versions = {tag[1:-1].partition("-")[0] for tag in tags if len(tag) > 2 and tag[0] == tag[-1] == '"'}
    if "*" not in tags and str(newest) not in versions:
        raise VersionStale(f"If-Match names {if_match or 'no version'}, and the newest version is {newest}.")


def document_of(model: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """Return a FastAPI dependency that reads the body as `model`, from JSON or YAML."""

    async def read(request: Request) -> Body:
        return checked(model, await read_document(request))

    return read


async def job_create(
    request: Request,
    artifact: Annotated[
        str | None, Query(pattern=SHA, description="SHA-256 of the code, if the body is a bare job specification.")
    ] = None,
    start: Annotated[
        bool, Query(description="Whether to start the job at once, if the body is a bare job specification.")
    ] = True,
) -> JobCreate:
    """Return the request to create a job: a `JobCreate`, or a bare specification such as a ``job.yaml``."""
    body = await read_document(request)
    if isinstance(body, dict) and "metadata" in body:
        body = {"spec": body, "start": start, **({"artifact": artifact} if artifact is not None else {})}
    return checked(JobCreate, body)


async def read_document(request: Request) -> Any:
    """Parse the body of a request from JSON or YAML; other media types get status 415."""
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    content = await request.body()
    if media_type == JSON:
        return json_of(content)
    if media_type in _YAML_TYPES:
        return await run_in_threadpool(_yaml, content)
    raise HTTPException(415, f"The body is {media_type!r}; send {JSON} or {YAML}.")


def checked(model: type[Body], value: Any) -> Body:
    """Validate the parsed body `value` as `model`; the error names each wrong field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = [
            {**detail, "loc": ("body", *detail["loc"])}
            for detail in error.errors(include_url=False, include_context=False)
        ]
        raise BodyInvalid(details, model) from error


def json_of(content: bytes) -> Any:
    """Parse a JSON body; the status of an invalid one is 422."""
    try:
        return parse(content)
    except json.JSONDecodeError as error:
        raise _wrong("json_invalid", f"The body is not JSON: {error}") from error


def _yaml(content: bytes) -> Any:
    if len(content) > _LONGEST_YAML:
        raise _wrong("yaml_too_long", f"A YAML body has at most {_LONGEST_YAML} bytes; send JSON.")
    try:
        _check_shape(content)
        value = load_yaml(content)
        check_value(value)
        return value
    except (yaml.YAMLError, SpecError, ValueError, RecursionError) as error:
        raise _wrong("yaml_invalid", f"The body is not usable YAML: {error}") from error


def _check_shape(content: bytes) -> None:
    """Refuse aliases and deep nesting, which make a short text a large value."""
    depth = 0
    for event in yaml.parse(content, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise SpecError("it has an alias (*name); write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise SpecError(f"it is nested more than {_DEEPEST} deep")


def _wrong(kind: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": ("body",), "msg": message, "input": None}])
