"""Query parameters that a route does not declare are refused; every list has pages."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import httpx
import pytest

from clonos.client import Client
from clonos_api.openapi import document
from support.scripted import ScriptedAgent, create
from support.serving import Served
from support.stored import EventFile

OPERATIONS = {
    (method.upper(), path): operation
    for path, item in json.loads(document())["paths"].items()
    for method, operation in item.items()
    if path.startswith("/api/v1/")
}
LISTS = sorted(
    path
    for (method, path), operation in OPERATIONS.items()
    if "Page_" in str(operation["responses"].get("200")) and path != "/api/v1/events/history"
)


def parameters(operation: dict[str, Any]) -> dict[str, bool]:
    """The query parameters of an operation, and whether each is a list."""
    return {
        parameter["name"]: '"array"' in json.dumps(parameter["schema"])
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query"
    }


def ask(client: httpx.Client, method: str, path: str, query: list[tuple[str, str]]) -> httpx.Response:
    named = re.sub(r"\{\w+\}", lambda _: str(uuid.uuid4()), path).removeprefix("/api/v1")
    body = {"json": {}} if method in ("POST", "PATCH") else {}
    return client.request(method, named, params=httpx.QueryParams(query), **body)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_unknown_query_parameters_are_refused(admin: httpx.Client, method: str, path: str) -> None:
    answer = ask(admin, method, path, [("limi", "3")])
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert [error["field"] for error in problem["errors"]] == ["query.limi"]
    assert problem["kept"] == "nothing was changed."
    allowed = ", ".join(sorted(parameters(OPERATIONS[method, path]))) or "none"
    assert problem["hint"] == f"allowed: {allowed}."


@pytest.mark.parametrize(
    ("method", "path"), [key for key, operation in OPERATIONS.items() if not all(parameters(operation).values())]
)
def test_parameters_with_one_value_are_not_repeated(admin: httpx.Client, method: str, path: str) -> None:
    for name, is_list in parameters(OPERATIONS[method, path]).items():
        if not is_list:
            problem = ask(admin, method, path, [(name, "3")] * 2).json()
            assert [error["field"] for error in problem["errors"]] == [f"query.{name}"]


def test_parameters_with_several_values_are_repeated(admin: httpx.Client) -> None:
    assert admin.get("/jobs", params=[("state", "RUNNING"), ("state", "FAILED"), ("label", "a=1")]).status_code == 200


def test_every_list_has_pages() -> None:
    assert len(LISTS) > 15
    for path in LISTS:
        assert {"limit", "starting_after"} <= parameters(OPERATIONS["GET", path]).keys(), path


def pages(client: httpx.Client, path: str, **query: str) -> list[list[dict[str, Any]]]:
    """All pages of a list, of one entry each."""
    result = []
    after: dict[str, str] = {}
    while True:
        answer = client.get(path, params={"limit": 1, **query, **after})
        assert answer.status_code == 200, answer.text
        result.append(answer.json()["data"])
        if not answer.json()["has_more"]:
            return result
        after = {"starting_after": answer.json()["next"]}


def test_pages_of_lists_by_name(api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str) -> None:
    with ScriptedAgent(api, f"a-{name}") as other:
        other.register()
        names = [host["name"] for (host,) in pages(admin, "/hosts")]
    assert names == sorted(names)
    assert {agent.name, other.name} <= set(names)
    plugins = [(plugin["kind"], plugin["name"]) for (plugin,) in pages(admin, "/connectors")]
    assert plugins == sorted(plugins)
    assert {("sink", "kafka"), ("source", "kafka")} <= set(plugins)
    assert ("sink", "kafka") not in [
        (plugin["kind"], plugin["name"]) for (plugin,) in pages(admin, "/connectors", kind="source")
    ]


def test_pages_of_offsets(admin: httpx.Client, agent: ScriptedAgent, place: Any, name: str) -> None:
    create(admin, name)
    file = EventFile()
    file.start(1)
    for query in ("second", "first"):
        file.epoch(0, query=query)
    agent.push("events", place(name, agent.name), 0, lines=file.lines)
    assert [offsets["query"] for (offsets,) in pages(admin, f"/jobs/{name}/offsets")] == ["first", "second"]


def test_the_client_sends_only_declared_parameters(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str
) -> None:
    create(admin, name)
    with Client(api.url, api.admin) as client:
        assert agent.name in [host.name for host in client.hosts.list().data]
        assert len(client.hosts.list(limit=1).data) == 1
        assert "kafka" in [plugin.name for plugin in client.connectors.list().data]
        assert client.jobs.offsets(name).data == []
