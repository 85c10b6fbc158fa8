"""The graph in an event, which job code can write: read, limited, or left out."""

from __future__ import annotations

from typing import Any

import pytest

from clonos_api.store.ingest import Claimed, IngestState, fold
from clonos_api.store.reported_graph import ReportedOperator, ReportedQuery, parse


def claim(**fields: Any) -> Claimed:
    event = {"event": "claimed", "at": 1.0, "generation": 1, "lineage": 1, **fields}
    (fact,) = fold(IngestState(), [event])
    assert isinstance(fact, Claimed)
    return fact


def test_a_claim_has_the_graph() -> None:
    operators = [{"name": "judge", "takes": "state", "timers": True, "of_a_later_version": 1}]
    graph = claim(queries={"out": {"sink": "KafkaSink", "topics": ["in"], "operators": operators}}).graph
    assert graph is not None
    assert graph["out"].topics == ["in"]
    assert graph["out"].operators == [ReportedOperator(name="judge", takes="state", timers=True)]


@pytest.mark.parametrize(
    "queries", [None, [], "text", {"out": 1}, {"out": {"topics": [1]}}, {"out": {"operators": [{"takes": "x"}]}}]
)
def test_a_claim_counts_without_a_graph(queries: Any) -> None:
    assert claim(queries=queries).graph == {}
    assert claim().graph is None


def test_an_unreadable_query_is_left_out() -> None:
    assert parse({"bad": {"topics": [1]}, "good": {"topics": ["in"]}}) == {"good": ReportedQuery(topics=["in"])}


def test_lists_and_texts_are_limited() -> None:
    many = [f"{'x' * 300}{number}" for number in range(300)]
    query = {"topics": many, "outputs": many, "operators": [{"name": name} for name in many]}
    graph = parse({f"{'q' * 200}{number}": query for number in range(3)} | {f"q{number}": {} for number in range(300)})
    assert len(graph) == 200
    reported = graph[f"{'q' * 200}0"]
    assert {len(names) for names in (reported.topics, reported.outputs, reported.operators)} == {100}
    assert {len(name) for name in [*reported.topics, *(operator.name for operator in reported.operators)]} == {250}
