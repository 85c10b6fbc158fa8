"""The OpenAPI document: what FastAPI finds, and every error as ``application/problem+json``."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from clonos.resources.base import Problem
from clonos.resources.jobs import JobCreate, JobPatch
from clonos.spec import JobSpec
from clonos_api.auth.authentication import EXEMPT
from clonos_api.bodies import JSON, YAML

PROBLEM: Final = "application/problem+json"
_REF: Final = "#/components/schemas/"
_METHODS: Final = ("get", "post", "patch", "put", "delete")
# Bodies that routes read themselves, for they may be YAML.
_BODIES: Final = (JobCreate, JobPatch, JobSpec)

_TITLES: Final = {
    400: "The request cannot be read.",
    401: "There is no usable token.",
    403: "The token, or the host or origin that the request names, is not one that may do this.",
    404: "There is no such resource.",
    408: "The body did not come in time.",
    409: "The state of the resource, or a request under way, does not allow it.",
    410: "It was there, and it is gone for good.",
    412: "If-Match names a version that is not the newest.",
    413: "The body is too large.",
    415: "The body is of another kind than this route takes.",
    422: "Something in the request is wrong; `errors` names each field.",
    428: "The request needs If-Match.",
    429: "Too many requests; `Retry-After` says when to go on.",
    500: "An unexpected error.",
    503: "The database is away; `Retry-After` says when to ask again.",
}

BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
# What a client makes of the lines of one event; comments show only that the stream lives.
_SSE: Final = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["data"],
    "additionalProperties": False,
}
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events, until the client or the service ends the stream.",
        "content": {"text/event-stream": {"schema": _SSE}},
    }
}
LOCATION: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "description": "It is under way.",
        "headers": {"Location": {"description": "Where the operation is.", "schema": {"type": "string"}}},
    }
}
ETAG: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The job.",
        "headers": {"ETag": {"description": "Its version, for If-Match.", "schema": {"type": "string"}}},
    }
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These errors, for a route's ``responses``."""
    # Filled in by `describe`: FastAPI knows no references to answers.
    return {status: {"description": _TITLES[status]} for status in statuses}


def document_body(*schemas: type, required: bool = True) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that takes one of `schemas` as JSON or YAML."""
    refs = [{"$ref": f"{_REF}{schema.__name__}"} for schema in schemas]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": required, "content": {kind: {"schema": schema} for kind in (JSON, YAML)}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        separate_input_output_schemas=False,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    _, more = models_json_schema(
        [(model, "validation") for model in (*_BODIES, Problem)], ref_template=f"{_REF}{{model}}"
    )
    for name, schema in more["$defs"].items():
        schemas.setdefault(name, schema)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                _complete(path, method, item[method])
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["responses"] = {f"Problem{status}": _problem(status) for status in _TITLES}
    app.openapi_schema = document
    return document


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    open_to_all = path in EXEMPT
    if open_to_all:
        operation["security"] = []
    answers = operation["responses"]
    wanted = {403, 429, 500} if open_to_all else {401, 403, 429, 500, 503}
    if "{" in path:
        wanted.add(404)
    if "parameters" in operation or "requestBody" in operation:
        wanted.add(422)
    if "requestBody" in operation:
        wanted |= {400, 408, 413}
    if method != "get":
        wanted.add(409)
    wanted |= {int(status) for status in answers if status >= "400"} - ({422} - wanted)
    for status in wanted:
        answers[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    operation["responses"] = dict(sorted(answers.items()))


def _problem(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _TITLES[status],
        "content": {PROBLEM: {"schema": {"$ref": f"{_REF}Problem"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}
    return answer
