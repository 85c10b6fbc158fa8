"""`Idempotency-Key`: a repeated request is done once, also after a failure between the attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from clonos.errors import DatabaseUnavailable
from clonos.testing.harness import eventually
from clonos_api.routes import actions
from support.scripted import spec, upload
from support.serving import Served

KEY = "Idempotency-Key"


def wanted(client: httpx.Client, name: str) -> dict[str, Any]:
    return {"spec": spec(name), "artifact": upload(client), "start": False}


def test_the_same_request_gets_the_same_answer(service: Served, name: str) -> None:
    with service.client() as admin:
        body = wanted(admin, name)
        first, second = (admin.post("/jobs", json=body, headers={KEY: name}) for _ in range(2))
        assert (first.status_code, second.status_code) == (201, 201)
        assert second.json() == first.json()
        assert second.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers
        for header in ("location", "etag", "content-type"):
            assert second.headers[header] == first.headers[header]
        # Without a key it is another request.
        assert admin.post("/jobs", json=body).status_code == 409


def test_another_request_under_the_key_is_refused(service: Served, name: str) -> None:
    with service.client() as admin:
        assert admin.post("/jobs", json=wanted(admin, name), headers={KEY: name}).status_code == 201
        other = admin.post("/jobs", json=wanted(admin, f"{name}-2"), headers={KEY: name})
        assert (other.status_code, other.json()["type"].rsplit("/", 1)[1]) == (422, "idempotency-key-reused")
        assert admin.get(f"/jobs/{name}-2").status_code == 404


def test_a_failed_request_frees_its_key(service: Served, name: str) -> None:
    with service.client() as admin:
        wrong = {**wanted(admin, name), "artifact": "0" * 64}
        assert admin.post("/jobs", json=wrong, headers={KEY: name}).status_code >= 400
        assert admin.post("/jobs", json=wanted(admin, name), headers={KEY: name}).status_code == 201


@pytest.mark.parametrize("done", [False, True])
def test_a_request_that_lost_the_database_can_be_repeated_at_once(
    service: Served, name: str, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Whether the work was done or not: it is done once."""
    inner = actions.changing

    async def broken(*given: Any) -> Any:
        monkeypatch.setattr(actions, "changing", inner)
        if done:
            await inner(*given)
        raise DatabaseUnavailable("The database does not answer.")

    with service.client(retry=False) as admin:
        assert admin.post("/jobs", json=wanted(admin, name)).status_code == 201
        monkeypatch.setattr(actions, "changing", broken)
        assert admin.post(f"/jobs/{name}/start", headers={KEY: name}).status_code == 503
        answers: list[httpx.Response] = []

        def accepted() -> bool:
            answers.append(admin.post(f"/jobs/{name}/start", headers={KEY: name}))
            return answers[-1].status_code == 202

        eventually(accepted, "it is accepted")
        assert ("idempotency-replayed" in answers[-1].headers) is done
        (only,) = admin.get("/operations", params={"job": name}).json()["data"]
        assert answers[-1].json()["id"] == only["id"]


def test_keys_belong_to_subjects(service: Served, name: str, caller: Callable[..., httpx.Client]) -> None:
    ada, bob = caller("operator", subject="ada"), caller("operator", subject="bob")
    assert ada.post("/jobs", json=wanted(ada, name), headers={KEY: name}).status_code == 201
    # Bob neither sees Ada's answer nor is kept from using the key.
    assert bob.post("/jobs", json=wanted(bob, f"{name}-b"), headers={KEY: name}).json()["created_by"] == "bob"


def test_many_concurrent_requests_create_one_job(service: Served, name: str) -> None:
    with service.client() as admin:
        body = wanted(admin, name)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with service.client() as client:
            answers.append(client.post("/jobs", json=body, headers={KEY: name}))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    created = [response for response in answers if response.status_code == 201]
    assert created
    assert {row.json()["id"] for row in created} == {created[0].json()["id"]}
    assert {response.status_code for response in answers} <= {201, 409}
    assert {response.json()["type"].rsplit("/", 1)[1] for response in answers if response.status_code == 409} <= {
        "request-in-progress"
    }


def test_a_response_with_a_secret_is_not_stored(service: Served) -> None:
    with service.client() as admin:
        before = len(admin.get("/tokens", params={"limit": 200}).json()["data"])
        answer = admin.post("/tokens", json={"name": "t", "role": "viewer"}, headers={KEY: "k"})
        assert answer.status_code == 422
        assert len(admin.get("/tokens", params={"limit": 200}).json()["data"]) == before


def test_keys_have_a_length(service: Served, name: str) -> None:
    with service.client() as admin:
        body = wanted(admin, name)
        for key in ("", "x" * 256):
            assert admin.post("/jobs", json=body, headers={KEY: key}).status_code == 422
