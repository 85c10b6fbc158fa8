"""The API against its own OpenAPI document: no response is a server error, and every response is documented.

Requests are made from the document, those that it allows and those that it does not, by every kind of caller; the same
ones in each run. `test_roles` says who may do what; here everybody may ask for everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from clonos_api.openapi import document
from clonos_api.settings import Limits
from clonos_api.store.db import schema
from support.postgres import PostgresServer
from support.scripted import ScriptedAgent, create, placed, spec
from support.serving import UNLIMITED, Served, served

# Schemathesis leaves a connection open after a response that ended early; pytest would report it for a later test.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
CALLERS = ("admin", "owner", "stranger", "viewer", "agent", "nobody")
# Streams end at once.
LIMITS = Limits(**{**UNLIMITED.model_dump(), "stream_s": 0.02, "failures_per_s": 10_000, "failures_burst": 100_000})


def _operations() -> dict[str, Any]:
    loaded = schemathesis.openapi.from_dict(json.loads(document()))
    operations = {}
    for result in loaded.get_all_operations():
        operation = result.ok()
        operations[operation.definition.raw["operationId"]] = operation
    return operations


OPERATIONS = _operations()


ENDING = frozenset({"revoke_own_token", "rotate_own_token"})
ROLES = {
    "admin": ("admin", "root"),
    "owner": ("operator", "ada"),
    "stranger": ("operator", "bob"),
    "viewer": ("viewer", "eve"),
}


@dataclass
class Service:
    """A replica with one of each kind of resource.

    Attributes:
        tokens: Of each kind of caller.
        known: What is there, by the name that paths have for it.
    """

    api: Served
    agent: ScriptedAgent
    tokens: dict[str, str | None]
    known: dict[str, str]
    asked: int = 0
    statuses: dict[str, set[int]] = field(default_factory=dict)

    def token_for(self, operation: str, caller: str) -> str | None:
        """The caller's token; a new one for an operation that ends the token with which it is requested."""
        if operation not in ENDING or caller not in ROLES:
            return self.tokens[caller]
        role, subject = ROLES[caller]
        with self.api.client() as admin:
            made = admin.post("/tokens", json={"name": subject, "role": role, "subject": subject}).raise_for_status()
        return str(made.json()["token"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with _service(tmp_path_factory.mktemp("sqlite")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_to_others() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def on_postgresql(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = postgres.create_database("properties")
    schema.upgrade(url)
    with _service(tmp_path_factory.mktemp("postgresql"), database_url=url) as running:
        yield running


@contextlib.contextmanager
def _service(home: Path, **settings: Any) -> Iterator[Service]:
    with (
        served(home, limits=LIMITS, **settings) as api,
        api.client() as admin,
        ScriptedAgent(api, "known") as agent,
    ):
        agent.register()

        def token(caller: str) -> str:
            role, subject = ROLES[caller]
            made = admin.post("/tokens", json={"name": subject, "role": role, "subject": subject})
            return str(made.json()["token"])

        tokens: dict[str, str | None] = {
            "admin": api.admin,
            "owner": token("owner"),
            "stranger": token("stranger"),
            "viewer": token("viewer"),
            "agent": agent.client.headers["Authorization"].removeprefix("Bearer "),
            "nobody": None,
        }
        with api.client(tokens["owner"]) as owner:
            job = create(owner, "known")
            known = {
                "job": "known",
                "host": agent.id,
                "run": asyncio.run(placed(api, "known", agent.name)),
                "sha": job["artifact"],
                "kind": "source",
                "operation": owner.post("/jobs/known/start").json()["id"],
            }
            assert owner.post("/jobs/known/savepoints").status_code == 202
            known["savepoint"] = owner.get("/savepoints").json()["data"][0]["id"]
        yield Service(api, agent, tokens, known)


def _callers(operation: Any) -> list[str]:
    """The callers with permission, the most privileged first."""
    security = operation.definition.raw["security"]
    return ["agent"] if security and security[0]["token"] == ["agent"] else ["owner", "admin"]


def _ask(service: Service, name: str, caller: str, mode: GenerationMode, examples: int) -> None:
    operation, api = OPERATIONS[name], service.api
    if mode is GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & operation.definition.raw.keys():
        return  # there is nothing to be wrong
    token = service.token_for(name, caller)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    statuses = service.statuses.setdefault(name, set())

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        service.asked += 1
        # Two of three cases use existing names; otherwise all responses would be 404.
        if service.asked % 3:
            _name_known(case, service)
        if case.query and "wait_s" in case.query:
            case.query["wait_s"] = 0
        case.headers = _without_token(case)
        response = case.call(base_url=api.url, headers=headers, timeout=20)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    with api.client(service.tokens["owner"]) as client:
        if client.get("/jobs/known").status_code == 404:  # an earlier case has deleted it
            create(client, "known")
        service.agent.register()  # the same
    ask()


def _without_token(case: Case) -> dict[str, str]:
    return {name: value for name, value in dict(case.headers or {}).items() if name.lower() != "authorization"}


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
        if case.path.endswith("/hosts"):
            case.body["name"] = "known"
    if case.headers and "If-Match" in case.headers:
        case.headers["If-Match"] = "*"


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_response_is_a_server_error(service: Service, name: str) -> None:
    _ask(service, name, _callers(OPERATIONS[name])[0], GenerationMode.POSITIVE, 6)
    _ask(service, name, _callers(OPERATIONS[name])[0], GenerationMode.NEGATIVE, 3)


@pytest.mark.broad
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_role_gets_a_server_error(on_postgresql: Service, name: str, every_point: bool) -> None:
    """With `--every-point` four times as many requests."""
    service = on_postgresql
    for caller in CALLERS:
        # Each request without permission is refused, so few examples are enough.
        examples = (32 if every_point else 8) if caller in _callers(OPERATIONS[name]) else 2
        for mode in GenerationMode:
            _ask(service, name, caller, mode, examples)
    if "{" not in OPERATIONS[name].path and OPERATIONS[name].method == "get":
        assert 200 in service.statuses[name], "all was refused: nothing was tried"


@pytest.mark.parametrize(
    ("backend", "walks"), [("sqlite", 15), pytest.param("postgresql", 40, marks=pytest.mark.broad)]
)
def test_resources_in_responses_can_be_requested(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, backend: str, walks: int
) -> None:
    """Follows names in responses: a created job is changed, started, read and deleted."""
    more = {}
    if backend == "postgresql":
        more["database_url"] = request.getfixturevalue("postgres").create_database(name)
        schema.upgrade(more["database_url"])
    # A walk that revokes all tokens would get only refusals afterwards.
    asked = schemathesis.openapi.from_dict(json.loads(document())).exclude(operation_id="revoke_token")
    done: set[str] = set()
    made: list[str] = []
    with _service(tmp_path, **more) as service:

        class Walk(asked.as_state_machine()):  # type: ignore[misc]
            def get_call_kwargs(self, case: Case) -> dict[str, Any]:
                headers = {"Authorization": f"Bearer {service.api.admin}"}
                return {"base_url": service.api.url, "headers": headers, "timeout": 20}

            def before_call(self, case: Case) -> None:
                case.headers = _without_token(case)
                if case.headers.get("If-Match"):
                    case.headers["If-Match"] = "*"
                if isinstance(case.body, dict) and "artifact" in case.body:
                    case.body["artifact"] = service.known["sha"]
                    if case.method == "POST":  # one that is made up is hardly ever one that can be
                        made.append(f"walk-{len(made)}")
                        case.body["spec"] = spec(made[-1])

            def validate_response(self, response: Any, case: Case, **_: Any) -> None:
                if response.status_code < 300:
                    done.add(case.operation.definition.raw["operationId"])
                case.validate_response(response, checks=CHECKS)

        # Each walk runs alone, because its requests depend on the rows that earlier walks left. Hypothesis would report
        # walks with the same begin and different ends as flaky.
        for walk in range(walks):
            run_state_machine_as_test(
                seed(walk)(Walk),
                settings=settings(
                    max_examples=1,
                    stateful_step_count=12,
                    database=None,
                    deadline=None,
                    phases=[Phase.explicit, Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
    assert "create_job" in done
    assert done & {"start_job", "stop_job", "cancel_job", "restart_job", "delete_job", "create_savepoint"}


def test_undocumented_methods_get_405(service: Service) -> None:
    patterns = [
        (re.compile(re.sub(r"\{\w+\}", "[^/]+", operation.path) + "$"), operation.method.upper())
        for operation in OPERATIONS.values()
    ]
    with service.api.client() as client:
        for path in sorted({operation.path for operation in OPERATIONS.values()}):
            asked = re.sub(r"\{(\w+)\}", lambda named: service.known.get(named[1], "x"), path)
            methods = {method for pattern, method in patterns if pattern.match(asked)}
            # Load balancers ask for the head of these.
            head = {"HEAD"} if path.startswith("/health/") else set[str]()
            for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE"} - methods - head:
                answer = client.request(method, service.api.url + asked)
                assert answer.status_code == 405, f"{method} {asked}: {answer.status_code}"
                assert {method.strip() for method in answer.headers["Allow"].split(",")} == methods | head
                if method != "HEAD":
                    assert answer.json()["type"].endswith("/method-not-allowed")
