"""The job's page and REST show its graph: a job that never ran, one query, several queries."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.tables import JobRow
from support.serving import Served, write
from support.stored import EventFile, host_row, ingest, job_row, receive_now, run_row

Browser = Callable[..., httpx.Client]


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
    assert "<svg role" not in page
    with api.client() as admin:
        assert admin.get(f"/jobs/{job}/graph").raise_for_status().json() == {
            "generation": None,
            "reported_at": None,
            "nodes": [],
            "edges": [],
        }


def test_the_page_draws_the_graph_and_has_it_as_a_table(api: Served, browser: Browser) -> None:
    judge = {"name": "judge<b>", "takes": "columns"}
    queries = {
        "scored": {"sink": "KafkaSink", "topics": ["cards"], "operators": [judge], "outputs": ["scores"]},
        "totals": {"sink": "KafkaSink", "topics": ["cards", "x" * 249], "state": ["aggregate"], "outputs": ["sums"]},
    }
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
        drawing = shown.partition('<section id="job-graph"')[2].partition("</section>")[0]
        assert drawing.count('<rect class="query"') == 2
        assert drawing.count('<rect class="topic"') == 4
        assert drawing.count('<path class="input"') == 3
        assert "lag 4 321" in drawing
        assert "judge&lt;b&gt;" in drawing
        assert "judge<b>" not in drawing
        assert f"<title>{'x' * 249}</title>" in drawing
        assert f">{'x' * 249}</text>" not in drawing
        assert "<td>cards</td><td>scored</td><td>input</td><td>50 /s</td><td>4 321</td>" in drawing
        assert ">25 /s</text>" in drawing
        assert "250 determinants" in drawing
    with api.client() as admin:
        graph = admin.get(f"/jobs/{job}/graph").raise_for_status().json()
    assert [node["id"] for node in graph["nodes"] if node["kind"] == "operator"] == ["operator:scored:judge<b>"]
    assert len(graph["edges"]) == 5
