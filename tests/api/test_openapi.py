"""The committed OpenAPI document is the application's, and it says what a client needs to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
