"""Lineage: one run for each driver process, with its input and output topics and its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from clonos.settings import LineageSettings
from clonos.telemetry.driver_events import (
    DriverEvent,
    Failed,
    Finished,
    Report,
    State,
    Stopped,
    Summary,
    Superseded,
)
from clonos.telemetry.openlineage import lineage
from clonos.testing.harness import eventually
from support.collecting import Collector, collecting

AT = 1_767_268_800.0


def settings(backend: Collector) -> LineageSettings:
    return LineageSettings(url=backend.url, api_key=SecretStr("k"))


@pytest.fixture
def backend() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def state(name: str) -> DriverEvent:
    return State(name, at=AT)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (Stopped(at=AT + 5), "COMPLETE"),
        (Finished(at=AT + 5), "COMPLETE"),
        (Superseded(what="It is old.", at=AT + 5), "ABORT"),
        (Failed(what="It broke.", at=AT + 5), "FAIL"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_run(backend: Collector, end: DriverEvent, said: str) -> None:
    with lineage("orders", settings(backend)) as flows:
        assert flows is not None
        flows.set_topics("broker:9092", {"in-b", "in-a"}, {"out"})
        for name in ("CLAIMING", "RUNNING", "RESTARTING", "RUNNING"):
            flows.take(state(name))
        flows.take(end)
        flows.take(Summary(at=AT + 5))
    eventually(lambda: len(backend.posted) == 2, "both events are sent")
    assert {post.path for post in backend.posted} == {"/api/v1/lineage"}
    begun, ended = (json.loads(post.body) for post in backend.posted)
    assert (begun["eventType"], ended["eventType"]) == ("START", said)
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("clonos", "orders")
    assert begun["eventTime"].startswith("2026-01-01T12:00:00")
    topics = [(topic["namespace"], topic["name"]) for topic in begun["inputs"]]
    assert topics == [("kafka://broker:9092", "in-a"), ("kafka://broker:9092", "in-b")]
    assert [topic["name"] for topic in begun["outputs"]] == ["out"]
    failure = ended["run"].get("facets", {}).get("errorMessage", {}).get("message")
    assert failure == (end.what if isinstance(end, Report) else None)
    assert {post.headers["Authorization"] for post in backend.posted} == {"Bearer k"}


def test_a_standby_that_never_ran_is_not_a_run(backend: Collector) -> None:
    with lineage("orders", settings(backend)) as flows:
        assert flows is not None
        flows.take(state("CLAIMING"))
        flows.take(Failed(what="x", at=AT))
    assert backend.posted == []


def test_lineage_is_off_by_default() -> None:
    with lineage("orders", LineageSettings()) as flows:
        assert flows is None


def test_a_missing_package_is_logged_and_the_job_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with lineage("x", LineageSettings(url="http://a")) as flows:
        assert flows is None
    assert "clone[lineage]" in capsys.readouterr().out
