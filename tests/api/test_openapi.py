"""The committed OpenAPI document is the application's, and it says what a client needs to know."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from clonos_api.app import create_app
from clonos_api.openapi import document

COMMITTED = Path(__file__).parents[2] / "api" / "openapi.json"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document())
    return found


def test_the_committed_document_is_the_applications_own() -> None:
    assert COMMITTED.read_text() == document(), "run: python -m clonos_api.openapi > api/openapi.json"


def test_it_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    text = json.dumps(described)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in described["components"]["schemas"]


def test_nothing_of_a_request_is_done_by_a_thread() -> None:
    """FastAPI has one do each dependency that is no coroutine; on a busy service it waits for the interpreter."""
    found = {one.call for route in _routes() for one in _all(route)}
    calls = [one if inspect.isfunction(one) else type(one).__call__ for one in found if one is not None]
    assert len(calls) > 50
    assert not [one for one in calls if not (inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one))]


def _routes() -> list[Dependant]:
    return [found for one in iter_route_contexts(create_app().routes) if (found := getattr(one, "dependant", None))]


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for one in dependant.dependencies:
        yield from _all(one)
