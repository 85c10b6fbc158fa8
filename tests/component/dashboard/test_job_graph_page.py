"""The job's page and REST show its graph: a job that never ran, one query, several queries."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.job_graph import GraphEdge, JobGraph, QueryNode, TopicNode
from clonos_api.dashboard.job import flows_of
from clonos_api.store.tables import JobRow
from component.dashboard.rows import Browser
from support.serving import Served, write
from support.stored import EventFile, host_row, ingest, job_row, receive_now, run_row


def started(file: EventFile) -> Callable[[AsyncSession], object]:
    async def make(session: AsyncSession) -> str:
        run = await run_row(session, host=await host_row(session))
        await ingest(session, run.id, 0, file.lines)
        receive_now(await session.get_one(JobRow, run.job))
        return run.job

    return make


def test_a_job_that_never_ran_says_so(api: Served, browser: Browser) -> None:
    async def make(session: AsyncSession) -> str:
        return (await job_row(session)).id

    job = write(api, make)
    with browser() as client:
        page = client.get(f"/jobs/{job}").raise_for_status().text
    assert "No driver has reported the job's graph yet." in page
    assert 'class="flow"' not in page
    with api.client() as admin:
        assert admin.get(f"/jobs/{job}/graph").raise_for_status().json() == {
            "generation": None,
            "reported_at": None,
            "nodes": [],
            "edges": [],
        }


def test_the_page_shows_the_graph(api: Served, browser: Browser) -> None:
    judge = {"name": "judge<b>", "takes": "columns"}
    queries = {
        "scored": {"sink": "KafkaSink", "topics": ["cards"], "operators": [judge], "outputs": ["scores"]},
        "totals": {"sink": "KafkaSink", "topics": ["cards", "x" * 249], "state": ["aggregate"], "outputs": ["sums"]},
    }
    queries["totals"]["interval_ms"] = 30_000
    file = EventFile()
    file.start(1, queries=queries)
    file.write_event("lag", query="scored", topics={"cards": 4321}, partitions={})
    tally = {"recorded": 250, "replayed": 0, "bytes": 1}
    file.epoch(0, query="scored", records_in=500, topics_in={"cards": 500}, operators={"judge<b>": tally})
    job = write(api, started(file))
    with browser() as client:
        page = client.get(f"/jobs/{job}").raise_for_status().text
        part = client.get(f"/jobs/{job}", headers={"HX-Request": "true"}).raise_for_status().text
    for shown in (page, part):
        drawing = re.sub(r"\s+", " ", shown.partition('<section id="job-graph"')[2].partition("</section>")[0])
        assert re.findall(r'<div class="query"><b>(\w+)</b>', drawing) == ["scored", "totals"]
        assert drawing.count('<li class="input">') == 3
        assert (
            '<b title="cards">cards</b> <small><span class="rate">50 /s</span> <span class="behind">lag 4 321'
            in drawing
        )
        assert "judge&lt;b&gt;" in drawing
        assert "judge<b>" not in drawing
        assert 'columns · 250 determinants <span class="rate">25 /s</span>' in drawing
        assert "state: aggregate · every 30 s</small>" in drawing
        assert drawing.count("every") == 1
    with api.client() as admin:
        graph = admin.get(f"/jobs/{job}/graph").raise_for_status().json()
    assert [node["id"] for node in graph["nodes"] if node["kind"] == "operator"] == ["operator:scored:judge<b>"]
    assert len(graph["edges"]) == 5


def test_dead_letters_come_first_and_all_topics_are_listed() -> None:
    topics = [TopicNode(kind="topic", id=f"t{number}", name=f"t{number}") for number in range(30)]
    edges = [GraphEdge(kind="output", source="q", target=topic.id) for topic in topics[1:]]
    edges.append(GraphEdge(kind="dead-letters", source="q", target="t0"))
    (flow,) = flows_of(JobGraph(nodes=[*topics, QueryNode(id="q", name="q", sink="KafkaSink")], edges=edges))
    assert [topic.name for _, topic in flow.outputs] == [topic.name for topic in topics]
    assert flow.inputs == flow.operators == []
    assert flows_of(JobGraph()) == []
