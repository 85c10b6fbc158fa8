"""A query that reads the output of another one starts after it, and never waits for long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.driver import start_order
from clonos.driver.job_graph import Graph
from clonos.driver.start_order import StartOrder

WORDCOUNT: Graph = {
    "words": {"topics": ["lines"], "outputs": ["sample", "words"]},
    "totals": {"topics": ["words"], "outputs": ["totals"]},
    "archive": {"topics": ["lines"], "outputs": ["archive"]},
}


def queries(*names: str) -> list[Any]:
    return [
        SimpleNamespace(query=SimpleNamespace(name=name), runner=SimpleNamespace(published=False)) for name in names
    ]


def names(due: list[Any]) -> list[str]:
    return [running.query.name for running in due]


def test_a_query_waits_for_the_one_whose_output_it_reads() -> None:
    words, totals, archive = queries("words", "totals", "archive")
    order = StartOrder([words, totals, archive], WORDCOUNT)
    assert names(order.due()) == ["words", "archive"]
    assert order.due() == []
    words.runner.published = True
    assert names(order.due()) == ["totals"]
    assert order.due() == []


def test_a_query_waits_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_order, "_HEAD_START_S", 0.0)
    assert names(StartOrder(queries("words", "totals"), WORDCOUNT).due()) == ["words", "totals"]


@pytest.mark.parametrize(
    "graph", [{}, {"a": {"topics": ["t"], "outputs": ["t"]}, "b": {"topics": [], "outputs": ["t"]}}]
)
def test_queries_of_an_unknown_order_start_together(graph: Graph) -> None:
    assert names(StartOrder(queries("a", "b"), graph).due()) == ["a", "b"]
