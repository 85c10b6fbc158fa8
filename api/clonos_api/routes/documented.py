"""Completes the OpenAPI document of FastAPI: error responses as ``application/problem+json``, meanings, examples."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema

from clonos.documents import meanings
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.base import Problem
from clonos.resources.jobs import JobCreate, JobPatch
from clonos.telemetry.log_entries import LogEntry
from clonos_api.admission import spec_schema
from clonos_api.auth.authentication import EXEMPT
from clonos_api.auth.declared import declares_owner
from clonos_api.http.bodies import JSON, YAML
from clonos_api.routes.access import API
from clonos_api.routes.examples import EXAMPLES

# Of an operation: besides admins, only the subject that created the object in the path may use it.
OWNER: Final = "x-clonos-owner"
PROBLEM: Final = "application/problem+json"
_REF: Final = "#/components/schemas/"
_METHODS: Final = ("get", "post", "patch", "put", "delete")
# Bodies that routes parse themselves, because they may be YAML.
_BODIES: Final = (JobCreate, JobPatch, JobSpec, ClusterSpec)

_TITLES: Final = {
    400: "The request cannot be parsed.",
    401: "The token is missing or invalid.",
    403: "The token, the `Host` or the `Origin` of the request is not allowed to do this.",
    404: "There is no such resource.",
    408: "The request body timed out.",
    409: "The state of the resource, or a request in progress, does not allow this.",
    410: "The resource was removed permanently.",
    412: "`If-Match` names a stale version.",
    413: "The body is too large.",
    415: "The media type of the body is not supported.",
    422: "The request is invalid; `errors` names each field.",
    428: "The request needs `If-Match`.",
    429: "Too many requests; retry after `Retry-After` seconds.",
    500: "An unexpected error.",
    503: "The database is unavailable; retry after `Retry-After` seconds.",
}

BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
# One event as a client decodes it. Heartbeats have no data: by the standard they are not events.
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
        "description": "The operation is in progress.",
        "headers": {"Location": {"description": "URL of the operation.", "schema": {"type": "string"}}},
    }
}
ETAG: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The resource.",
        "headers": {"ETag": {"description": "Its version and state, for If-Match.", "schema": {"type": "string"}}},
    }
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` argument of a route that responds with problems of these HTTP statuses."""
    # `describe` completes them: FastAPI does not support references to responses.
    return {status: {"description": _TITLES[status]} for status in statuses}


def document_body(*schemas: type, required: bool = True) -> dict[str, Any]:
    """Return the ``openapi_extra`` argument of a route that accepts one of `schemas` as JSON or YAML."""
    refs = [{"$ref": f"{_REF}{schema.__name__}"} for schema in schemas]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": required, "content": {kind: {"schema": schema} for kind in (JSON, YAML)}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the complete OpenAPI document of the application."""
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
    spec_schema.narrow(schemas)
    entry = schemas[LogEntry.__name__]
    for name, text in meanings(LogEntry).items():
        entry["properties"][name]["description"] = text
    schemas["Body_upload_artifact"]["properties"]["file"]["description"] = "The job file, or a ZIP archive."
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                _complete(path, method, item[method])
    for route in iter_route_contexts(app.routes):
        if route.include_in_schema and declares_owner(route):
            for method in route.methods or ():
                document["paths"][route.path][method.lower()][OWNER] = True
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["responses"] = {f"Problem{status}": _problem(status) for status in _TITLES}
    app.openapi_schema = document
    return document


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    open_to_all = path in EXEMPT
    if open_to_all:
        operation["security"] = []
    for parameter in operation.get("parameters", []):
        parameter["schema"] = _without_null(parameter["schema"])
    responses = operation["responses"]
    expected = {403, 429, 500} if open_to_all else {401, 403, 429, 500, 503}
    if "{" in path:
        expected.add(404)
    if path.startswith(API):
        expected.add(422)  # for unknown query parameters
    if "requestBody" in operation:
        expected |= {400, 408, 413}
    if method != "get":
        expected.add(409)
    expected |= {int(status) for status in responses if status >= "400"}
    if method == "get" and "application/json" in responses.get("200", {}).get("content", {}):
        responses["304"] = {"description": "The client has this response: its `If-None-Match` has the `ETag`."}
    for status in expected:
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    operation["responses"] = dict(sorted(responses.items()))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which is left out instead of null."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **choices[0]}


def _problem(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _TITLES[status],
        "content": {PROBLEM: {"schema": {"$ref": f"{_REF}Problem"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}
    return answer
