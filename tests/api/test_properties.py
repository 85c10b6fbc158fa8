"""The API against its own OpenAPI document: whatever is asked, no answer is a server error, and each is documented."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from clonos.testing.postgres import PostgresServer
from clonos_api.openapi import document
from clonos_api.store import schema
from scripted import ScriptedAgent, create, placed
from serving import Served, served

# It goes on for ever; `test_streams` reads it.
STREAMS = {"stream_events"}
CORE = ["create_job", "list_jobs", "update_job", "stop_job", "get_logs", "list_events", "register_agent", "push_events"]
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


def _operations() -> dict[str, Any]:
    loaded = schemathesis.openapi.from_dict(json.loads(document()))
    found = {}
    for result in loaded.get_all_operations():
        operation = result.ok()
        found[operation.definition.raw["operationId"]] = operation
    return {name: operation for name, operation in found.items() if name not in STREAMS}


OPERATIONS = _operations()


@dataclass
class Service:
    """A replica with one of each kind of resource."""

    api: Served
    agent: ScriptedAgent
    known: dict[str, str]
    asked: int = 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with _service(tmp_path_factory.mktemp("sqlite")) as one:
        yield one


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    server = PostgresServer()
    try:
        server.start()
        url = server.create_database("properties")
        schema.upgrade(url)
        with _service(tmp_path_factory.mktemp("postgresql"), database_url=url) as one:
            yield one
    finally:
        server.remove()


@contextlib.contextmanager
def _service(home: Path, **settings: Any) -> Iterator[Service]:
    with served(home, **settings) as api, api.client() as client, ScriptedAgent(api, "known") as agent:
        agent.register()
        job = create(client, "known")
        known = {
            "job": "known",
            "agent": agent.id,
            "run": asyncio.run(placed(api, "known", agent.name)),
            "sha": job["artifact"],
            "kind": "source",
            "operation": client.post("/jobs/known/start").json()["id"],
        }
        assert client.post("/jobs/known/savepoints").status_code == 202
        known["savepoint"] = client.get("/savepoints").json()["data"][0]["id"]
        yield Service(api, agent, known)


def _ask(service: Service, operation: Any, examples: int) -> None:
    api, agent = service.api, service.agent
    raw = operation.definition.raw
    agents_own = bool(raw["security"]) and raw["security"][0]["token"] == ["agent"]
    token = agent.client.headers["Authorization"] if agents_own else f"Bearer {api.admin}"

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Case) -> None:
        service.asked += 1
        # Of three cases two name what is there, or all would end with 404.
        if service.asked % 3:
            _name_known(case, service)
        if case.query and "wait_s" in case.query:
            case.query["wait_s"] = 0
        if case.query and case.query.get("follow"):
            case.query["follow"] = False
        case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
        response = case.call(base_url=api.url, headers={"Authorization": token}, timeout=20)
        case.validate_response(response, checks=CHECKS)

    with api.client() as client:
        if client.get("/jobs/known").status_code == 404:  # an earlier case has deleted it
            create(client, "known")
        agent.register()  # the same
    ask()


def _name_known(case: Case, service: Service) -> None:
    for name in case.path_parameters:
        case.path_parameters[name] = service.known.get(name, case.path_parameters[name])
    if "/connectors/" in case.path:
        case.path_parameters["name"] = "kafka"
    if "/hosts/" in case.path:
        case.path_parameters["name"] = "known"
    if isinstance(case.body, dict):
        for name, value in {"instance": service.agent.instance, "artifact": service.known["sha"]}.items():
            if name in case.body:
                case.body[name] = value
        if case.path.endswith("/agents"):
            case.body["name"] = "known"
    if case.headers and "If-Match" in case.headers:
        case.headers["If-Match"] = "*"


@pytest.mark.parametrize("name", CORE)
def test_no_answer_is_a_server_error(service: Service, name: str) -> None:
    _ask(service, OPERATIONS[name], 15)


@pytest.mark.broad
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_answer_of_any_operation_is_a_server_error(on_postgresql: Service, name: str) -> None:
    _ask(on_postgresql, OPERATIONS[name], 60)
