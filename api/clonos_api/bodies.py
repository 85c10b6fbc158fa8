"""Bodies as JSON or YAML, versions as ETags, and cursors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final, TypeVar

import yaml
from fastapi import Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from clonos.errors import SpecError, VersionStale
from clonos.resources import base
from clonos.resources.jobs import JobCreate
from clonos.standby.states import StandbyState

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_YAML_TYPES: Final = frozenset({YAML, "application/x-yaml", "text/yaml", "text/x-yaml"})
# The YAML reader is slow; a specification has a few dozen lines.
_LONGEST_YAML: Final = 100_000
_DEEPEST: Final = 50

Body = TypeVar("Body", bound=BaseModel)
Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=200, description="So many at the most.")]
StartingAfter = Annotated[
    str | None, Query(max_length=200, pattern=r"^[\x21-\x7e]+$", description="`next` of the page before.")
]
StandbyStates = Annotated[list[StandbyState] | None, Query(description="Any of these.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=200, description="The job's ETag as it was read.")]


def page(items: Iterable[Item], next_cursor: str | None) -> base.Page[Item]:
    """A page as the API gives it."""
    return base.Page(data=list(items), has_more=next_cursor is not None, next=next_cursor)


def etag(version: int) -> str:
    """A version as an ETag."""
    return f'"{version}"'


def matched_version(if_match: str | None, newest: int) -> int:
    """The version that a change is based on.

    Raises:
        HTTPException: 428, there is no ``If-Match``.
        VersionStale: It names another version than the newest.
    """
    if if_match is None:
        raise HTTPException(428, "This change needs If-Match with the ETag of what it changes.")
    given = {one.strip() for one in if_match.split(",")}
    if "*" not in given and etag(newest) not in given:
        raise VersionStale(f"If-Match names {if_match}, and the newest version is {etag(newest)}.")
    return newest


def document_of(model: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """A dependency that reads the body as `model`, from JSON or YAML."""

    async def read(request: Request) -> Body:
        return checked(model, await read_document(request))

    return read


async def job_create(
    request: Request,
    artifact: Annotated[
        str | None, Query(description="For a body that is a bare job specification: the code's SHA-256.")
    ] = None,
    start: Annotated[bool, Query(description="The same: whether to start it at once.")] = True,
) -> JobCreate:
    """A new job from a `JobCreate` or from a bare specification, as a user's ``job.yaml`` is."""
    found = await read_document(request)
    if isinstance(found, dict) and "metadata" in found:
        found = {"spec": found, "start": start, **({"artifact": artifact} if artifact is not None else {})}
    return checked(JobCreate, found)


async def read_document(request: Request) -> Any:
    """The body as plain values.

    Raises:
        HTTPException: 415, it says that it is something else.
        RequestValidationError: It is not what it says.
    """
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    content = await request.body()
    if media_type == JSON:
        return _json(content)
    if media_type in _YAML_TYPES:
        return await run_in_threadpool(_yaml, content)
    raise HTTPException(415, f"The body is {media_type!r}; send {JSON} or {YAML}.")


def checked(model: type[Body], value: Any) -> Body:
    """`value` as `model`.

    Raises:
        RequestValidationError: Naming each wrong field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [
            {**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False, include_context=False)
        ]
        raise RequestValidationError(found) from error


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _wrong("json_invalid", f"The body is not JSON: {error}") from error


def _yaml(content: bytes) -> Any:
    if len(content) > _LONGEST_YAML:
        raise _wrong("yaml_too_long", f"A YAML body has {_LONGEST_YAML} bytes at the most; send JSON.")
    try:
        _check_shape(content)
        return yaml.safe_load(content)
    except (yaml.YAMLError, SpecError, ValueError, RecursionError) as error:
        raise _wrong("yaml_invalid", f"The body is not usable YAML: {error}") from error


def _check_shape(content: bytes) -> None:
    """Refuse what makes a short text a large value: aliases, and deep nesting."""
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
