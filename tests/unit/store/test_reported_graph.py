"""The graph in the event of a claim, which job code can write: read and limited, or the claim is unreadable."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.telemetry.driver_events import GraphOperator, from_fields
from clonos_api.store.columns import IngestState
from clonos_api.store.ingest import Claimed, fold


def claim(**fields: Any) -> Claimed:
    event = {"event": "claimed", "at": 1.0, "generation": 1, "lineage": 1, **fields}
    (fact,) = fold(IngestState(), [from_fields(event)])
    assert isinstance(fact, Claimed)
    return fact


def test_a_claim_has_the_graph() -> None:
    operators = [{"name": "judge", "takes": "state", "timers": True, "of_a_later_version": 1}]
    graph = claim(queries={"out": {"sink": "KafkaSink", "topics": ["in"], "operators": operators}}).graph
    assert graph is not None
    assert graph["out"].topics == ["in"]
    assert graph["out"].operators == [GraphOperator(name="judge", takes="state", timers=True)]


def test_a_claim_of_an_earlier_version_has_no_graph() -> None:
    assert claim(queries=None).graph is None
    assert claim().graph is None


@pytest.mark.parametrize(
    "queries", [[], "text", {"out": 1}, {"out": {"topics": [1]}}, {"out": {"operators": [{"takes": "x"}]}}]
)
def test_a_graph_of_another_form_is_not_an_event_of_a_driver(queries: Any) -> None:
    with pytest.raises(ValueError, match="queries"):
        claim(queries=queries)


def test_the_number_of_queries_is_limited() -> None:
    graph = claim(queries={f"q{number}": {} for number in range(300)}).graph
    assert graph is not None
    assert len(graph) == 200
