"""Lineage: one run for each driver process, from what it reads to what it writes, and how it ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from clonos.lineage import lineage
from clonos.settings import LineageSettings
from collecting import Collector, collecting
from observe import eventually

AT = 1_767_268_800.0


def settings(backend: Collector) -> LineageSettings:
    return LineageSettings(url=backend.url, api_key=SecretStr("k"))


@pytest.fixture
def backend() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def state(name: str) -> dict[str, Any]:
    return {"event": "state", "state": name, "at": AT}


@pytest.mark.parametrize(
    ("end", "said"),
    [("stopped", "COMPLETE"), ("finished", "COMPLETE"), ("superseded", "ABORT"), ("failed", "FAIL")],
)
def test_a_run(backend: Collector, end: str, said: str) -> None:
    with lineage("orders", settings(backend)) as flows:
        assert flows is not None
        flows.flows("broker:9092", {"in-b", "in-a"}, {"out"})
        for one in ("CLAIMING", "RUNNING", "RESTARTING", "RUNNING"):
            flows.take(state(one))
        flows.take({"event": end, "what": "It broke." if end == "failed" else None, "at": AT + 5})
        flows.take({"event": "summary", "at": AT + 5})
    eventually(lambda: len(backend.posted) == 2, "it is told")
    assert {one.path for one in backend.posted} == {"/api/v1/lineage"}
    begun, ended = (json.loads(one.body) for one in backend.posted)
    assert (begun["eventType"], ended["eventType"]) == ("START", said)
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("clonos", "orders")
    assert begun["eventTime"].startswith("2026-01-01T12:00:00")
    topics = [(one["namespace"], one["name"]) for one in begun["inputs"]]
    assert topics == [("kafka://broker:9092", "in-a"), ("kafka://broker:9092", "in-b")]
    assert [one["name"] for one in begun["outputs"]] == ["out"]
    failure = ended["run"].get("facets", {}).get("errorMessage", {}).get("message")
    assert failure == ("It broke." if end == "failed" else None)
    assert {one.headers["Authorization"] for one in backend.posted} == {"Bearer k"}


def test_a_standby_that_never_ran_is_no_run(backend: Collector) -> None:
    with lineage("orders", settings(backend)) as flows:
        assert flows is not None
        flows.take(state("CLAIMING"))
        flows.take({"event": "failed", "what": "x", "at": AT})
    assert backend.posted == []


def test_off_unless_it_is_asked_for() -> None:
    with lineage("orders", LineageSettings()) as flows:
        assert flows is None


def test_what_is_missing_is_said_and_the_job_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with lineage("x", LineageSettings(url="http://a")) as flows:
        assert flows is None
    assert "clonos[lineage]" in capsys.readouterr().out
