"""A query that reads the output of another one starts after it, and never waits for long."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from clonos import deadline
from clonos.driver.start_order import StartOrder
from clonos.telemetry.driver_events import Graph, GraphQuery
from support.clock import Clock

WORDCOUNT: Graph = {
    "words": GraphQuery(topics=["lines"], outputs=["sample", "words"]),
    "totals": GraphQuery(topics=["words"], outputs=["totals"]),
    "archive": GraphQuery(topics=["lines"], outputs=["archive"]),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadline, "time", clock)
    return clock


def queries(*names: str) -> list[Any]:
    return [
        SimpleNamespace(
            query=SimpleNamespace(name=name), runner=SimpleNamespace(published=False, busy=threading.Lock())
        )
        for name in names
    ]


def names(due: list[Any]) -> list[str]:
    return [running.query.name for running in due]


def test_a_query_waits_for_the_one_whose_output_it_reads(clock: Clock) -> None:
    words, totals, archive = queries("words", "totals", "archive")
    order = StartOrder([words, totals, archive], WORDCOUNT)
    assert names(order.due()) == ["words", "archive"]
    assert order.due() == []
    words.runner.published = True
    assert names(order.due()) == ["totals"]
    assert order.due() == []


@pytest.mark.parametrize(("cold", "begins_s"), [(False, 1.0), (True, 2.0)])
def test_a_query_does_not_wait_for_one_without_input(clock: Clock, cold: bool, begins_s: float) -> None:
    order = StartOrder(queries("words", "totals"), WORDCOUNT, cold=cold)
    assert names(order.due()) == ["words"]
    clock.now += begins_s - 0.1
    assert order.due() == []
    clock.now += 0.2
    assert names(order.due()) == ["totals"]


def test_a_query_waits_while_the_first_epoch_before_it_runs(clock: Clock) -> None:
    words, totals = queries("words", "totals")
    order = StartOrder([words, totals], WORDCOUNT)
    assert names(order.due()) == ["words"]
    with words.runner.busy:
        clock.now += 9.0
        assert order.due() == []
        clock.now += 1.1
        assert names(order.due()) == ["totals"]


def test_a_chain_starts_in_its_order(clock: Clock) -> None:
    graph: Graph = {
        "first": GraphQuery(topics=["in"], outputs=["a"]),
        "second": GraphQuery(topics=["a"], outputs=["b"]),
        "third": GraphQuery(topics=["b"], outputs=["c"]),
    }
    first, second, third = queries("first", "second", "third")
    order = StartOrder([first, second, third], graph)
    assert names(order.due()) == ["first"]
    with first.runner.busy:
        clock.now += 5.0
        assert order.due() == []
    first.runner.published = True
    assert names(order.due()) == ["second"]
    clock.now += 0.9
    assert order.due() == []
    clock.now += 0.2
    assert names(order.due()) == ["third"], "the second has no input"


@pytest.mark.parametrize(
    "graph", [{}, {"a": GraphQuery(topics=["t"], outputs=["t"]), "b": GraphQuery(topics=[], outputs=["t"])}]
)
def test_queries_of_an_unknown_order_start_together(clock: Clock, graph: Graph) -> None:
    assert names(StartOrder(queries("a", "b"), graph).due()) == ["a", "b"]
