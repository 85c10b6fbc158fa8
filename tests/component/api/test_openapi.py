"""The committed OpenAPI document matches the application and is complete for clients."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel

from clonos_api.app import create_app
from clonos_api.openapi import document
from clonos_api.routes.examples import EXAMPLES

COMMITTED = Path(__file__).parents[3] / "api" / "openapi.json"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document())
    return parsed


def test_the_committed_document_is_the_applications_own() -> None:
    assert COMMITTED.read_text() == document(), "run: python -m clonos_api.openapi > api/openapi.json"


def test_the_document_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLONOS_API__HOST", "example.org")
    monkeypatch.setenv("CLONOS_API__AUTH", "false")
    assert COMMITTED.read_text() == document()


def test_operations_have_readable_names(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for item in described["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)
    assert {"create_job", "stop_job", "stream_events", "get_work"} <= set(names)
    assert all(name.isidentifier() and name.islower() and name.count("__") == 0 for name in names)


def test_every_error_is_a_problem(described: dict[str, Any]) -> None:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert "500" in errors, (method, path)
            for status, answer in errors.items():
                assert answer == {"$ref": f"#/components/responses/Problem{status}"}, (method, path)
    for answer in described["components"]["responses"].values():
        assert answer["content"] == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def test_all_references_resolve(described: dict[str, Any]) -> None:
    text = json.dumps(described)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in described["components"]["schemas"]


def test_each_field_has_its_meaning(described: dict[str, Any]) -> None:
    bare = [
        f"{name}.{field}"
        for name, schema in described["components"]["schemas"].items()
        for field, part in schema.get("properties", {}).items()
        if len(part.get("description", "")) < 4
    ]
    assert not bare, "write it below the field in its class"
    for schema in described["components"]["schemas"].values():
        assert "Attributes:" not in schema.get("description", "")


def test_request_bodies_and_main_responses_have_valid_examples(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    bodies = {
        ref.rpartition("/")[2]
        for item in described["paths"].values()
        for operation in item.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for ref in re.findall(r"#/components/schemas/\w+", json.dumps(content["schema"]))
    } - {"Body_upload_artifact"}
    main = {"Job", "JobSummary", "Operation", "Host", "Savepoint", "Token", "TokenCreated", "Health", "Event"}
    assert {name for name, schema in schemas.items() if "examples" in schema} >= bodies | main | {"Problem", "Artifact"}
    models = {model.__name__: model for model in _all_models(BaseModel)}
    for name in EXAMPLES:
        model = models[name].model_validate(EXAMPLES[name])
        unknown = EXAMPLES[name].keys() - model.model_dump(by_alias=True).keys()
        assert not unknown, (name, unknown)


def _all_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _all_models(each)


def test_no_dependency_runs_in_a_thread() -> None:
    """FastAPI runs a dependency that is not a coroutine in a thread, which waits for the interpreter under load."""
    dependencies = {dependant.call for route in _routes() for dependant in _all(route)}
    calls = [call if inspect.isfunction(call) else type(call).__call__ for call in dependencies if call is not None]
    assert len(calls) > 50
    assert not [call for call in calls if not (inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call))]


def _routes() -> list[Dependant]:
    return [
        dependant
        for context in iter_route_contexts(create_app().routes)
        if (dependant := getattr(context, "dependant", None))
    ]


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for nested in dependant.dependencies:
        yield from _all(nested)
