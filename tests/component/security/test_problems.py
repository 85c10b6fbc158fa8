"""One mapping for all errors; no trace, no value and no secret in a body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from clonos import errors
from clonos.errors import CLASSES, ClonosError
from clonos_api.guards.envelope import Envelope
from clonos_api.http import problems
from clonos_api.http.problems import http_status, problem_of
from support.serving import Served

CANARY = "c4n4ry-Zx81Kq77"


def test_each_error_has_a_status() -> None:
    assert {
        error.__name__: http_status(error("what")) for error in CLASSES if not 400 <= http_status(error("what")) < 600
    } == {}
    for cls, status in (
        (errors.SpecError, 422),
        (errors.ArchiveInvalid, 422),
        (errors.Unauthenticated, 401),
        (errors.Forbidden, 403),
        (errors.OriginNotAllowed, 403),
        (errors.NotFound, 404),
        (errors.StateConflict, 409),
        (errors.NameTaken, 409),
        (errors.ConcurrentUpdate, 409),
        (errors.RequestInProgress, 409),
        (errors.VersionStale, 412),
        (errors.RequestTooLarge, 413),
        (errors.IdempotencyKeyReused, 422),
        (errors.VersionMissing, 428),
        (errors.TooManyRequests, 429),
        (errors.DatabaseUnavailable, 503),
    ):
        assert http_status(cls("what")) == status, cls


@pytest.mark.parametrize("cls", CLASSES)
def test_a_problem_has_the_three_parts(cls: type[ClonosError]) -> None:
    actual = problem_of(cls("what happened", kept="kept", hint="do this"), instance="/x")
    assert (actual.detail, actual.kept, actual.hint, actual.instance) == ("what happened", "kept", "do this", "/x")
    assert actual.type == f"/docs/errors/{cls.slug}"


@pytest.mark.parametrize("cls", CLASSES)
def test_hints_are_not_taken_for_secrets(cls: type[ClonosError]) -> None:
    assert problem_of(cls("x")).hint == cls.hint_default
    assert problem_of(cls("x")).kept == cls.kept_default


class Body(BaseModel):
    """A body with a secret."""

    password: int


def failing_app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    problems.install(app)
    app.add_middleware(Envelope)

    @app.get("/unexpected")
    async def unexpected() -> None:
        raise RuntimeError(f"postgresql://ada:{CANARY}@db")

    @app.get("/typed")
    async def typed() -> None:
        raise errors.DatabaseUnavailable(f"postgresql://ada:{CANARY}@db does not answer")

    @app.get("/http")
    async def http() -> None:
        raise HTTPException(418, f"password={CANARY}")

    @app.post("/body")
    async def body(payload: Body) -> None:
        pass

    @app.get("/half")
    async def half() -> StreamingResponse:
        async def content() -> AsyncIterator[bytes]:
            yield b"first"
            raise RuntimeError(CANARY)

        return StreamingResponse(content())

    return app


async def answers(method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(failing_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.request(method, path, **more)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/unexpected", {}, 500),
        ("GET", "/typed", {}, 503),
        ("GET", "/http", {}, 418),
        ("GET", "/nothing", {}, 404),
        ("PUT", "/body", {}, 405),
        ("POST", "/body", {"json": {"password": CANARY}}, 422),
        ("POST", "/body", {"json": {CANARY: 1}}, 422),
        (
            "POST",
            "/body",
            {"content": f'{{"password": "{CANARY}', "headers": {"Content-Type": "application/json"}},
            422,
        ),
        ("POST", "/body", {"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}, 400),
        ("POST", "/body", {"content": b"\xff\xfe", "headers": {"Content-Type": "application/json"}}, 422),
    ],
)
async def test_bodies_hold_no_secret(method: str, path: str, more: dict[str, Any], status: int) -> None:
    answer = await answers(method, path, **more)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert CANARY not in answer.text
    assert "Traceback" not in answer.text
    body = answer.json()
    assert body["status"] == status
    assert body["instance"] == path
    if status == 500:
        assert body["request_id"] == answer.headers["x-request-id"]
    if status == 503:
        assert int(answer.headers["retry-after"]) > 0
    if status == 422 and "json" in more:
        assert [problem["field"] for problem in body["errors"]] == ["password"]


@pytest.mark.anyio
async def test_an_incomplete_response_closes_the_connection() -> None:
    with pytest.raises(RuntimeError):
        await answers("GET", "/half")


@pytest.mark.anyio
async def test_a_million_wrong_fields_get_a_small_response() -> None:
    answer = await answers("POST", "/body", json={"password": list(range(100_000))})
    assert len(answer.content) < 50_000


def test_errors_of_the_service_are_problems(service: Served) -> None:
    with service.client() as admin:
        for answer in (
            admin.get("/jobs/none"),
            admin.get("/jobs", params={"limit": "many"}),
            admin.post("/jobs", content=b"{", headers={"Content-Type": "application/json"}),
            admin.put("/jobs"),
            admin.get("/nothing"),
            admin.patch("/jobs/none", json={}),
        ):
            assert answer.headers["content-type"] == "application/problem+json", answer.text
            body = json.loads(answer.text)
            assert body["status"] == answer.status_code
            assert body["detail"]
