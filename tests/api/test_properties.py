"""The API against its own OpenAPI document: whatever is asked, no answer is a server error, and each is documented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from clonos_api.openapi import document
from scripted import ScriptedAgent, create
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, ScriptedAgent]]:
    home = tmp_path_factory.mktemp("properties")
    with served(home) as api, api.client() as client, ScriptedAgent(api, "known") as agent:
        agent.register()
        create(client, "known")
        yield api, agent


def _ask(api: Served, agent: ScriptedAgent, operation: Any, examples: int) -> None:
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
        roles = operation.definition.raw["security"]
        agents_own = roles and roles[0]["token"] == ["agent"]
        # Half of all paths name what is there.
        if len(str(case.path_parameters)) % 2 and "job" in case.path_parameters:
            case.path_parameters["job"] = "known"
        if agents_own and "agent" in case.path_parameters:
            case.path_parameters["agent"] = agent.id
        if case.query and "wait_s" in case.query:
            case.query["wait_s"] = 0
        if case.query and case.query.get("follow"):
            case.query["follow"] = False
        token = agent.client.headers["Authorization"] if agents_own else f"Bearer {api.admin}"
        headers = {"Authorization": token}
        case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
        response = case.call(base_url=api.url, headers=headers, timeout=20)
        case.validate_response(response, checks=CHECKS)

    ask()


@pytest.mark.parametrize("name", CORE)
def test_no_answer_is_a_server_error(service: tuple[Served, ScriptedAgent], name: str) -> None:
    _ask(*service, OPERATIONS[name], 15)


@pytest.mark.broad
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_answer_of_any_operation_is_a_server_error(service: tuple[Served, ScriptedAgent], name: str) -> None:
    _ask(*service, OPERATIONS[name], 60)
