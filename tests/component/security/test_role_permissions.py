"""Every route with every kind of caller on the objects of two owners, over real HTTP.

The table of roles is written by hand, and OpenAPI must have the same. What each caller gets follows from OpenAPI.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from clonos.resources.service import Role
from clonos_api.app import create_app
from clonos_api.routes.documented import OWNER
from clonos_api.settings import ApiSettings
from support.scripted import ScriptedAgent, create, placed, saved, upload
from support.serving import Served
from support.stored import EventFile

# v viewer, o operator, O operator who owns it, a admin, g agent of its own name, G any agent, - any caller.
# Each of the first four also has the permissions of those before it.
ROUTES = {
    "GET /metrics": "v",
    "GET /api/v1/artifacts": "v",
    "POST /api/v1/artifacts": "o",
    "GET /api/v1/artifacts/{sha}": "v",
    "GET /api/v1/artifacts/{sha}/content": "OG",
    "DELETE /api/v1/artifacts/{sha}": "a",
    "GET /api/v1/jobs": "v",
    "POST /api/v1/jobs": "o",
    "POST /api/v1/jobs/validate": "o",
    "GET /api/v1/jobs/{job}": "v",
    "PATCH /api/v1/jobs/{job}": "O",
    "DELETE /api/v1/jobs/{job}": "O",
    "POST /api/v1/jobs/{job}/start": "O",
    "POST /api/v1/jobs/{job}/rollback": "O",
    "POST /api/v1/jobs/{job}/stop": "O",
    "POST /api/v1/jobs/{job}/restart": "O",
    "POST /api/v1/jobs/{job}/move": "O",
    "POST /api/v1/jobs/{job}/verify": "O",
    "POST /api/v1/jobs/{job}/upgrade": "O",
    "POST /api/v1/jobs/{job}/resolve": "O",
    "POST /api/v1/jobs/{job}/cancel": "O",
    "GET /api/v1/jobs/{job}/versions": "v",
    "GET /api/v1/jobs/{job}/versions/diff": "O",
    "GET /api/v1/jobs/{job}/runs": "v",
    "GET /api/v1/jobs/{job}/runs/{run}": "v",
    "GET /api/v1/jobs/{job}/generations": "v",
    "GET /api/v1/jobs/{job}/recoveries": "v",
    "GET /api/v1/recoveries": "v",
    "GET /api/v1/jobs/{job}/recoveries/{recovery}": "v",
    "GET /api/v1/jobs/{job}/exceptions": "v",
    "GET /api/v1/jobs/{job}/metrics": "v",
    "GET /api/v1/jobs/{job}/series": "v",
    "GET /api/v1/jobs/{job}/graph": "v",
    "GET /api/v1/jobs/{job}/offsets": "v",
    "GET /api/v1/jobs/{job}/causal-log": "v",
    "GET /api/v1/jobs/{job}/standbys": "v",
    "GET /api/v1/jobs/{job}/logs": "v",
    "GET /api/v1/jobs/{job}/checkpoints": "v",
    "GET /api/v1/jobs/{job}/checkpoints/{epoch}": "v",
    "POST /api/v1/jobs/{job}/savepoints": "O",
    "GET /api/v1/jobs/{job}/savepoints": "v",
    "GET /api/v1/savepoints": "v",
    "GET /api/v1/savepoints/{savepoint}": "v",
    "DELETE /api/v1/savepoints/{savepoint}": "O",
    "GET /api/v1/operations": "v",
    "GET /api/v1/operations/{operation}": "v",
    "GET /api/v1/events": "v",
    "GET /api/v1/events/history": "v",
    "GET /api/v1/hosts": "v",
    "GET /api/v1/hosts/{name}": "v",
    "DELETE /api/v1/hosts/{name}": "a",
    "POST /api/v1/hosts/{name}/drain": "a",
    "POST /api/v1/hosts/{name}/undrain": "a",
    "GET /api/v1/standbys": "v",
    "GET /api/v1/clusters": "v",
    "POST /api/v1/clusters": "a",
    "GET /api/v1/clusters/{cluster}": "v",
    "PUT /api/v1/clusters/{cluster}": "a",
    "DELETE /api/v1/clusters/{cluster}": "a",
    "POST /api/v1/clusters/{cluster}/check": "a",
    "GET /api/v1/connectors": "v",
    "GET /api/v1/connectors/{kind}/{name}": "v",
    "POST /api/v1/connectors/{kind}/{name}/validate": "o",
    "POST /api/v1/tokens": "a",
    "GET /api/v1/tokens": "a",
    "GET /api/v1/tokens/self": "vg",
    "DELETE /api/v1/tokens/self": "v",
    "POST /api/v1/tokens/self/rotate": "vg",
    "DELETE /api/v1/tokens/{token}": "a",
    "GET /api/v1/sessions": "a",
    "DELETE /api/v1/sessions": "a",
    "DELETE /api/v1/sessions/{session}": "a",
    "POST /api/v1/sign-in-codes": "v",
    "GET /api/v1/audit": "a",
    "POST /api/v1/hosts": "g",
    "POST /api/v1/hosts/{host}/leave": "g",
    "POST /api/v1/hosts/{host}/heartbeat": "g",
    "GET /api/v1/hosts/{host}/work": "g",
    "POST /api/v1/hosts/{host}/push": "g",
    "POST /api/v1/hosts/{host}/tasks/{task}": "g",
    "GET /api/v1/health": "v",
    "GET /api/v1/status": "v",
    "GET /health/live": "-",
    "GET /health/ready": "-",
}
# Each kind of caller with its role and the roles that it includes. Jobs and their objects belong to ada or bob.
CALLERS: dict[str, frozenset[str]] = {
    "nobody": frozenset(),
    "viewer": frozenset({"viewer"}),
    "ada": frozenset({"viewer", "operator"}),
    "bob": frozenset({"viewer", "operator"}),
    "admin": frozenset({"viewer", "operator", "admin"}),
    "agent": frozenset({"agent"}),  # of the host that has the run
    "other agent": frozenset({"agent"}),
}
OWNERS = ("ada", "bob")
# Path parameters that name an object of a job's owner, or uploaded code.
OWNED = frozenset({"job", "run", "recovery", "operation", "savepoint", "epoch", "sha"})


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "patch", "delete")
    }


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(ApiSettings(home=tmp_path_factory.mktemp("home"))).openapi()


def test_the_table_has_every_route(document: dict[str, Any]) -> None:
    assert set(operations(document)) == set(ROUTES)


def test_openapi_says_the_roles(document: dict[str, Any]) -> None:
    said = {"v": ["viewer"], "o": ["operator"], "O": ["operator"], "a": ["admin"], "g": ["agent"], "G": ["agent"]}
    for name, operation in operations(document).items():
        wanted = [role for letter in ROUTES[name] for role in said.get(letter, [])]
        assert operation.get("security", []) == ([{"token": wanted}] if wanted else []), name
        assert operation.get(OWNER, False) == ("O" in ROUTES[name]), name


def test_changes_of_owned_objects_need_their_owner(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        if not name.startswith("GET ") and OWNED & path_parameters(name):
            assert operation.get(OWNER) or operation["security"][0]["token"] in (["admin"], ["agent"]), name


def path_parameters(route: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", route))


def expected(operation: dict[str, Any], caller: str, owner: str) -> str:
    """What a caller gets for an object of `owner`, by the declaration of the operation."""
    if not operation.get("security"):
        return "allowed"
    if caller == "nobody":
        return "401"
    roles = set(operation["security"][0]["token"])
    if not roles & CALLERS[caller]:
        return "403"
    if roles == {"agent"}:  # a route of agents about their own host
        return "allowed" if caller == "agent" else "403"
    foreign = operation.get(OWNER, False) and caller in OWNERS and caller != owner
    return "403" if foreign else "allowed"


def new_callers(service: Served) -> dict[str, str]:
    """A token of each kind, except of the agent and of nobody."""
    with service.client() as admin:

        def token(role: Role, **more: str) -> str:
            return str(admin.post("/tokens", json={"name": "t", "role": role, **more}).json()["token"])

        return {
            "viewer": token(Role.VIEWER, subject="eve"),
            **{owner: token(Role.OPERATOR, subject=owner) for owner in OWNERS},
            "admin": token(Role.ADMIN, subject="root"),
            "other agent": token(Role.AGENT, host="other"),
        }


@pytest.fixture(scope="module")
def callers(service: Served) -> dict[str, str]:
    return new_callers(service)


@dataclass(frozen=True)
class World:
    """The objects of one owner, by the path parameters that name them."""

    named: dict[str, str]
    agent: ScriptedAgent


@contextmanager
def made(service: Served, token: str) -> Iterator[World]:
    """A job with one of each of its objects, on the host of an agent."""
    with service.client(token) as owner, ScriptedAgent(service, f"h{secrets.token_hex(4)}") as agent:
        agent.register()
        job = create(owner, f"j{secrets.token_hex(4)}")
        run = asyncio.run(placed(service, job["id"], agent.name))
        file = EventFile()
        file.start(1)
        file.epoch(1)
        file.restart(2)
        cluster = f"c{secrets.token_hex(4)}"
        with service.client() as admin:
            described = {"metadata": {"name": cluster}, "spec": {"master": "spark://m:7077"}}
            assert admin.post("/clusters", json=described).status_code == 201
        agent.push("events", run, 0, lines=file.lines)
        yield World(
            {
                "job": job["id"],
                "run": run,
                "recovery": owner.get(f"/jobs/{job['id']}/recoveries").json()["data"][0]["id"],
                "operation": owner.post(f"/jobs/{job['id']}/savepoints").json()["id"],
                "savepoint": asyncio.run(saved(service, job["id"])),
                "epoch": "1",
                "sha": upload(owner, f"# {secrets.token_hex(4)}\n".encode()),
                "host": agent.id,
                "name": agent.name,
                "task": str(uuid.uuid4()),
                "cluster": cluster,
                "kind": "source",
                "token": "ffffffffffffffff",
                "session": "ffffffffffffffff",
            },
            agent,
        )


@pytest.fixture(scope="module")
def worlds(service: Served, callers: dict[str, str]) -> Iterator[dict[str, World]]:
    with ExitStack() as stack:
        yield {owner: stack.enter_context(made(service, callers[owner])) for owner in OWNERS}


@pytest.fixture(scope="module")
def connection(service: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=20.0, trust_env=False, verify=False) as client:
        yield client


def ask(connection: httpx.Client, route: str, world: World, token: str | None) -> int:
    method, template = route.split(" ")
    named = {**world.named, **({"name": "kafka"} if "/connectors/" in route else {})}
    path = re.sub(r"\{(\w+)\}", lambda match: named[match[1]], template)
    body = {"json": {"name": world.agent.name, "instance": "i"}} if method in ("POST", "PUT", "PATCH") else {}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with connection.stream(method, path, headers=headers, **body) as answer:
        return answer.status_code


# The parameters come from the table, which `test_the_table_has_every_route` compares with OpenAPI.
CASES = [(route, owner) for route in ROUTES for owner in (OWNERS if OWNED & path_parameters(route) else OWNERS[:1])]


@pytest.mark.parametrize(("route", "owner"), CASES)
def test_each_caller_on_each_object(
    route: str,
    owner: str,
    document: dict[str, Any],
    service: Served,
    callers: dict[str, str],
    worlds: dict[str, World],
    connection: httpx.Client,
) -> None:
    if "/tokens/self" in route and not route.startswith("GET"):
        callers = new_callers(service)  # the route ends the token that it gets
    outcomes = {caller: expected(operations(document)[route], caller, owner) for caller in CALLERS}
    # Callers without permission come first, because the others may delete the object.
    for caller in sorted(CALLERS, key=lambda name: outcomes[name] == "allowed"):
        with ExitStack() as stack:
            world = worlds[owner]
            deletes = route.startswith("DELETE") and path_parameters(route) - {"token"}
            rotates = caller == "agent" and route.endswith("/rotate")
            if outcomes[caller] == "allowed" and (deletes or rotates):
                world = stack.enter_context(made(service, new_callers(service)[owner]))
            token = world.agent.client.headers["authorization"].split(" ")[1]
            status = ask(connection, route, world, token if caller == "agent" else callers.get(caller))
        actual = str(status) if status in (401, 403) else "allowed"
        assert (caller, actual) == (caller, outcomes[caller]), f"{route} of {owner} answered {status}"
        assert status < 500


def test_a_refused_caller_does_not_learn_whether_a_job_exists(caller: Callable[..., httpx.Client]) -> None:
    assert caller("viewer", subject="eve").post("/jobs/no-such-job/start").status_code == 403
    assert caller("operator", subject="ada").post("/jobs/no-such-job/start").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/xhealth/live", "/health/livex", "/health/live/", "/health/live/x", "/health", "/health/", "/x/health/live",
        "/api/v1/health/live", "/HEALTH/LIVE", "/health/live%2f", "/health//live", "//health/live", "/health/live;x",
        "/jobs?/health/live", "/%68ealth/livex", "/", "/docsx", "/redoc", "/openapi.json", "/api/v1/openapi.json",
        "/api/v1/no-such-route", "/metrics", "/static/x", "/favicon.ico", "/api/v1/tokens?x=/health/live",
    ],
)  # fmt: skip
def test_only_two_exact_paths_need_no_token(path: str, nobody: httpx.Client) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert nobody.request(method, path).status_code == 401, method
    assert nobody.get("/health/live").status_code == 200
    assert nobody.get("/health/ready").status_code == 200


def test_agents_use_their_own_name_and_id(service: Served, caller: Callable[..., httpx.Client]) -> None:
    """A token that was stolen from one host is of no use as another."""
    thief = caller("agent", host="thief")
    body = {"name": "victim", "instance": "i", "slots": 1}
    assert thief.post("/hosts", json=body).status_code == 403
    with ScriptedAgent(service, "victim") as victim:
        victim.register()
        for path in ("heartbeat", "push", f"tasks/{uuid.uuid4()}"):
            assert thief.post(f"/hosts/{victim.id}/{path}", json={"instance": victim.instance}).status_code == 403
        # The name instead of the id does not help either.
        assert thief.get("/hosts/victim/work").status_code in (403, 422)
        assert thief.post(f"/hosts/{victim.id}/leave").status_code == 403
        assert victim.client.get(f"/hosts/{victim.id}/work").status_code == 200


def test_only_agent_tokens_name_a_host(service: Served) -> None:
    with service.client() as admin:
        assert admin.post("/tokens", json={"name": "t", "role": "agent"}).status_code == 422
        assert admin.post("/tokens", json={"name": "t", "role": "viewer", "host": "x"}).status_code == 422
