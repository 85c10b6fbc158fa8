"""The graph of a job: that of the newest claim, with rates of the newest epochs and the lag of each topic."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos_api.store import job_graph, jobs
from clonos_api.store.db.database import Database
from support.stored import EventFile, host_row, ingest, job_row, receive_now, run_row

pytestmark = pytest.mark.anyio

SCORED = {
    "sink": "KafkaSink",
    "topics": ["cards", "payments"],
    "patterns": [],
    "operators": [{"name": "judge", "takes": "columns", "timers": False}, {"name": "totals", "takes": "state"}],
    "state": ["aggregate"],
    "outputs": ["scored"],
    "dead_letters": ["dead"],
    "more_outputs": False,
}


async def graph_of(database: Database, file: EventFile) -> JobGraph:
    async with database.transaction() as session:
        run = await run_row(session, host=await host_row(session))
    async with database.transaction() as session:
        await ingest(session, run.id, 0, file.lines)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        receive_now(job)
        return await job_graph.of_job(session, job)


def ids(graph: JobGraph, kind: str) -> list[str]:
    return [node.id for node in graph.nodes if node.kind == kind]


async def test_a_job_that_never_ran_has_no_nodes(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        assert await job_graph.of_job(session, job) == JobGraph()


async def test_nodes_and_edges_have_rates_and_lag(database: Database) -> None:
    file = EventFile()
    file.start(1, queries={"scored": SCORED}, delivery={"scored": "atomic-epoch"})
    judge = {"recorded": 20, "replayed": 1, "bytes": 9}
    file.epoch(0, query="scored", topics_in={"cards": 500}, operators={"judge": judge})
    file.at += 120
    file.write_event("lag", query="scored", topics={"cards": 7, "payments": 0}, partitions={})
    for number in (1, 2):
        file.epoch(
            number,
            query="scored",
            records_in=60,
            records_out=50,
            dead_letters=10,
            topics_in={"cards": 40, "payments": 20},
            operators={"judge": judge, "judge#2": {"recorded": 5, "replayed": 0, "bytes": 9}},
        )
    graph = await graph_of(database, file)
    assert graph.generation == 1
    assert ids(graph, "topic") == ["topic:cards", "topic:payments", "topic:scored", "topic:dead"]
    query, *operators = [node for node in graph.nodes if not isinstance(node, TopicNode)]
    assert query == QueryNode(
        id="query:scored",
        name="scored",
        sink="KafkaSink",
        delivery="atomic-epoch",
        state=["aggregate"],
        records_in_per_s=12,
        records_out_per_s=10,
        recorded_per_s=5,
    )
    figures = {
        node.name: (node.takes, node.recorded_per_s, node.recorded, node.replayed)
        for node in operators
        if isinstance(node, OperatorNode)
    }
    assert figures == {
        "judge": ("columns", 4, 60, 3),
        "totals": ("state", 0, 0, 0),
        "judge#2": (None, 1, 10, 0),
    }
    assert {node.query for node in operators if isinstance(node, OperatorNode)} == {"query:scored"}
    scored = "query:scored"
    assert graph.edges == [
        GraphEdge(kind="input", source="topic:cards", target=scored, records_per_s=8, lag=7),
        GraphEdge(kind="input", source="topic:payments", target=scored, records_per_s=4, lag=0),
        GraphEdge(kind="output", source=scored, target="topic:scored", records_per_s=8),
        GraphEdge(kind="dead-letters", source=scored, target="topic:dead", records_per_s=2),
    ]


async def test_topics_of_patterns_and_rows_are_one_node(database: Database) -> None:
    query = {
        "sink": "KafkaSink",
        "topics": ["cards"],
        "patterns": ["orders-.*"],
        "outputs": ["a"],
        "more_outputs": True,
    }
    file = EventFile()
    file.start(1, queries={"split": query, "files": {"sink": "FilesSink", "topics": ["cards"]}})
    file.write_event("lag", query="split", topics={"cards": 7, "orders-1": 1, "orders-2": 2}, partitions={})
    file.epoch(0, query="split", records_in=60, topics_in={"cards": 10, "orders-1": 20, "orders-3": 30})
    graph = await graph_of(database, file)
    edges = {(edge.source, edge.target): (edge.records_per_s, edge.lag) for edge in graph.edges}
    assert edges == {
        ("topic:cards", "query:files"): (0, None),
        ("query:files", "sink:files:FilesSink"): (0, None),
        ("topic:cards", "query:split"): (1, 7),
        ("pattern:orders-.*", "query:split"): (5, 3),
        ("query:split", "topic:a"): (None, None),
        ("query:split", "rows:split:topics that rows name"): (None, None),
    }
    assert ids(graph, "topic") == ["topic:cards", "topic:a"]


@pytest.mark.parametrize("newest", [{"queries": {"new": {"topics": ["new"]}}}, {}])
async def test_the_newest_claim_that_has_a_graph_counts(database: Database, newest: dict[str, Any]) -> None:
    file = EventFile()
    file.start(1, queries={"old": SCORED})
    file.start(3, **newest)
    file.start(2, queries={"late": SCORED})  # of a host that was disconnected
    graph = await graph_of(database, file)
    assert (graph.generation, ids(graph, "query")) == ((3, ["query:new"]) if newest else (1, ["query:old"]))
