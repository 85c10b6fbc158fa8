"""The API against its own OpenAPI document: no response is a server error, and every response is documented.

Requests are made from the document, those that it allows and those that it does not, by every kind of caller; the same
ones in each run. A request that the document allows is refused only for a permission or a state, or by one of `RULES`.
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
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from clonos_api.openapi import document
from clonos_api.routes.documented import OWNER
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
# By fixture.
BACKENDS = {"sqlite": "service", "postgresql": "on_postgresql"}
CALLERS = ("admin", "owner", "other", "viewer", "agent", "nobody")
# Streams end at once.
LIMITS = Limits(**{**UNLIMITED.model_dump(), "stream_s": 0.02, "failures_per_s": 10_000, "failures_burst": 100_000})


DOCUMENT = json.loads(document())
# The roles of each operation. Without them in the document, schemathesis leaves tokens to the test.
SECURITY = {
    described["operationId"]: described.pop("security")
    for item in DOCUMENT["paths"].values()
    for described in item.values()
}


def _operations(mode: GenerationMode) -> dict[str, Any]:
    loaded = schemathesis.openapi.from_dict(DOCUMENT)
    if mode is GenerationMode.POSITIVE:
        # No text may have a NUL, which PostgreSQL cannot store. JSON Schema cannot state one rule for all strings.
        loaded.config.generation.update(allow_x00=False)
    operations = {}
    for result in loaded.get_all_operations():
        operation = result.ok()
        operations[operation.definition.raw["operationId"]] = operation
    return operations


BY_MODE = {mode: _operations(mode) for mode in GenerationMode}
OPERATIONS = BY_MODE[GenerationMode.POSITIVE]


# Statuses of a request that is wrong in each state.
INVALID = frozenset({400, 408, 413, 415, 422})


@dataclass(frozen=True)
class Rule:
    """A rule that JSON Schema cannot express: a request that the document allows may get 422 for it.

    Attributes:
        operations: The operations that have it.
        field: Pattern of the fields that the response names.
        why: Why the schema cannot express it.
    """

    operations: frozenset[str]
    field: str
    why: str


_SPEC = frozenset({"create_job", "validate_job", "update_job"})
_CLUSTER = frozenset({"create_cluster", "update_cluster"})
RULES = (
    Rule(_SPEC, r"spec\.(params|sparkConf)\..+", "lists of allowed options; secrets by reference"),
    Rule(_SPEC | {"create_savepoint"}, r"(spec\.checkpoint|location)", "the parts of a URI"),
    Rule(_SPEC, r"spec\.cluster", "the clusters that exist"),
    Rule(_SPEC, r"(spec\.)*spec", "either a cluster or a master"),
    Rule(_SPEC, r"spec\.executor", "the product of two numbers"),
    Rule(_CLUSTER, r"spec\.sparkConf\..+", "settings of other fields; secrets by reference"),
    Rule(_CLUSTER, r"spec\.sharedLocations", "the parts of a URI"),
    Rule(_CLUSTER, r"spec", "fields that depend on the scheme of the master"),
    Rule(_SPEC, r"spec\.main", "the parts of a path"),
    Rule(
        _SPEC,
        r"(spec\.)*(trigger\.interval|restartPolicy\.\w+Backoff|standby\.selfPromoteAfter|stallTimeout|(driver|executor)\.memory)",
        "the size of a number in a text with a unit",
    ),
    Rule(frozenset({"update_job", "update_cluster"}), r"metadata\.name", "it is a name that cannot change"),
    Rule(frozenset({"create_job", "validate_job"}), r"artifact", "a bare specification needs it in the query"),
    Rule(frozenset({"create_job", "validate_job"}), r"start_from", "either a savepoint or an epoch"),
    Rule(frozenset({"start_job"}), r"", "either a savepoint or an epoch"),
    Rule(frozenset({"resolve_job"}), r"", "a topic only with the decision dead-letter"),
    Rule(frozenset({"create_token"}), r"", "a host only with the role agent"),
    Rule(frozenset({"create_token"}), r"subject", "printable characters of Unicode"),
    Rule(frozenset({"push_all"}), r"(events|logs)", "a run only once"),
    Rule(frozenset({"upload_artifact"}), r".*", "the content of a file"),
)


ENDING = frozenset({"revoke_own_token", "rotate_own_token"})
# The roles that each caller's role includes.
ALLOWS: dict[str, set[str]] = {
    "admin": {"viewer", "operator", "admin"},
    "owner": {"viewer", "operator"},
    "other": {"viewer", "operator"},
    "viewer": {"viewer"},
    "agent": {"agent"},
    "nobody": set(),
}
# Operations whose bodies name objects with an owner, and operations of agents that name a host.
FOREIGN = frozenset({"create_job", "register_host"})
ROLES = {
    "admin": ("admin", "root"),
    "owner": ("operator", "ada"),
    "other": ("operator", "bob"),
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
        """The caller's token; a new one for an operation that ends the token of its request."""
        if operation not in ENDING or self.tokens[caller] is None:
            return self.tokens[caller]
        if caller == "agent":
            asked = {"name": "agent-once", "role": "agent", "host": self.agent.name}
        else:
            role, subject = ROLES[caller]
            asked = {"name": subject, "role": role, "subject": subject}
        with self.api.client() as admin:
            made = admin.post("/tokens", json=asked).raise_for_status()
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
            "other": token("other"),
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
            _add_cluster(admin)
            known["cluster"] = "known"
            known["savepoint"] = owner.get("/savepoints").json()["data"][0]["id"]
        yield Service(api, agent, tokens, known)


def _has_permission(operation: Any, caller: str) -> bool:
    """Whether the role of a caller has the permission for an operation; the object may belong to others."""
    security = SECURITY[operation.definition.raw["operationId"]]
    return not security or bool(ALLOWS[caller] & set(security[0]["token"]))


def _ask(service: Service, name: str, caller: str, mode: GenerationMode, examples: int) -> None:
    operation, api = BY_MODE[mode][name], service.api
    if mode is GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & operation.definition.raw.keys():
        return  # there is nothing to be wrong
    if name in ENDING:
        examples = 1
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
        if "wait_s" in case.query and _is_valid(case, ParameterLocation.QUERY):
            case.query["wait_s"] = 0
        case.headers = _without_token(case)
        response = case.call(base_url=api.url, headers=headers, timeout=20)
        statuses.add(response.status_code)
        case.validate_response(response, checks=[*CHECKS, negative_data_rejection])
        reason = _unexpected(operation, caller, mode, response)
        assert reason is None, f"{case.method} {response.request.url} as {caller}: {reason}\n{case.body!r}"

    with api.client(service.tokens["owner"]) as client:
        if client.get("/jobs/known").status_code == 404:  # an earlier case has deleted it
            create(client, "known")
        service.agent.register()  # the same
    with api.client() as admin:
        if admin.get("/clusters/known").status_code == 404:  # the same
            _add_cluster(admin)
    ask()


def _add_cluster(admin: Any) -> None:
    described = {"metadata": {"name": "known"}, "spec": {"master": "spark://m:7077"}}
    assert admin.post("/clusters", json=described).status_code == 201


def _unexpected(operation: Any, caller: str, mode: GenerationMode, response: Any) -> str | None:
    """Why a status is not the one that the document's requirements and the caller's role give."""
    raw, status, refused = operation.definition.raw, response.status_code, response.status_code in (401, 403)
    if _has_permission(operation, caller):
        # Some objects belong to others, also those that a body names.
        may_be_foreign = OWNER in raw or raw["operationId"] in FOREIGN
        if refused and not (may_be_foreign and status == 403 and caller != "admin"):
            return "the role has the permission"
    elif mode is GenerationMode.POSITIVE or status not in INVALID:
        expected = 401 if caller == "nobody" else 403
        return None if status == expected else f"expected {expected}"
    if mode is GenerationMode.NEGATIVE or status not in INVALID:
        return None
    problem = response.json()
    if problem["type"].endswith("/idempotency-key-reused"):
        return None
    rules = [rule.field for rule in RULES if raw["operationId"] in rule.operations]
    fields = [error["field"] for error in problem.get("errors", [])] or ["?"]
    if all(any(re.fullmatch(rule, field) for rule in rules) for field in fields):
        return None
    return f"the document allows the request; refused: {', '.join(fields)}"


def _without_token(case: Case) -> dict[str, str]:
    return {name: value for name, value in dict(case.headers or {}).items() if name.lower() != "authorization"}


def _is_valid(case: Case, location: ParameterLocation) -> bool:
    """Whether a part of a case is one that the document allows."""
    part = case.meta.components.get(location)
    return part is None or part.mode.is_positive


def _name_known(case: Case, service: Service) -> None:
    """Name existing objects, in the valid parts of a case: what is wrong about it remains."""
    if _is_valid(case, ParameterLocation.PATH):
        known = {**service.known, "name": "kafka" if "/connectors/" in case.path else "known"}
        for name in case.path_parameters:
            case.path_parameters[name] = known.get(name, case.path_parameters[name])
    if isinstance(case.body, dict) and _is_valid(case, ParameterLocation.BODY):
        for name, value in {"instance": service.agent.instance, "artifact": service.known["sha"]}.items():
            if name in case.body:
                case.body[name] = value
        if case.path.endswith("/hosts"):
            case.body["name"] = "known"
        if case.method == "PATCH" and case.body.get("spec"):
            case.body["spec"]["metadata"]["name"] = "known"
    if "If-Match" in case.headers and _is_valid(case, ParameterLocation.HEADER):
        case.headers["If-Match"] = "*"


@pytest.mark.turn
@pytest.mark.parametrize("name", sorted(OPERATIONS))
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def test_each_role_gets_documented_statuses(request: pytest.FixtureRequest, backend: str, name: str) -> None:
    service, operation = request.getfixturevalue(BACKENDS[backend]), OPERATIONS[name]
    for caller in ("viewer", "owner", "admin", "agent"):
        permitted = _has_permission(operation, caller)
        # Each request without permission is refused, so one is enough.
        _ask(service, name, caller, GenerationMode.POSITIVE, 3 if permitted else 1)
        if permitted and caller != "viewer":
            _ask(service, name, caller, GenerationMode.NEGATIVE, 2)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_many_requests_get_documented_statuses(on_postgresql: Service, name: str, every_point: bool) -> None:
    """With `--every-point` four times as many requests."""
    service, operation = on_postgresql, OPERATIONS[name]
    for caller in CALLERS:
        examples = (32 if every_point else 8) if _has_permission(operation, caller) else 2
        for mode in GenerationMode:
            _ask(service, name, caller, mode, examples)
    if "{" not in operation.path and operation.method == "get":
        assert 200 in service.statuses[name], "all was refused: nothing was tried"


@pytest.mark.turn
@pytest.mark.parametrize(("backend", "walks"), [("sqlite", 15), pytest.param("postgresql", 40, marks=pytest.mark.full)])
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
                    stateful_step_count=18,  # the first twelve have no token
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
