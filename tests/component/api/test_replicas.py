"""Two replicas over one PostgreSQL: the order of events, and the responses while the database is unavailable."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from streams import Stream

from clonos.testing.harness import eventually
from clonos_api.auth.bootstrap import bootstrap
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from support.postgres import PostgresServer
from support.scripted import create
from support.serving import Served, served


@pytest.fixture
def replicas(postgres: PostgresServer, tmp_path: Path, name: str) -> Iterator[list[Served]]:
    url = postgres.create_database(name)
    schema.upgrade(url)
    with ExitStack() as stack:
        # One shared home: it contains the first token.
        yield [stack.enter_context(served(tmp_path, database_url=url)) for _ in range(2)]


def test_each_stream_has_all_events_in_one_order(replicas: list[Served], name: str) -> None:
    with replicas[0].client() as first:
        for number in range(4):
            create(first, f"{name}-{number}")

    def act(number: int) -> None:
        with replicas[number % 2].client() as client:
            for action in ("start", "stop") * 10:
                path = f"/jobs/{name}-{number}/{action}"
                assert client.post(path).status_code == 202

    with (
        Stream(replicas[0], "/events", type="job.desired") as stream_a,
        Stream(replicas[1], "/events", type="job.desired") as stream_b,
    ):
        actors = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for actor in actors:
            actor.start()
        seen = [[int(stream.next(60)["id"]) for _ in range(80)] for stream in (stream_a, stream_b)]
        for actor in actors:
            actor.join()
    assert seen[0] == sorted(set(seen[0]))
    assert seen[0] == seen[1]


def test_revoking_a_token_ends_its_streams_on_other_replicas(replicas: list[Served]) -> None:
    with replicas[0].client() as first, replicas[1].client() as second:
        token = first.post("/tokens", json={"name": "reader", "role": "viewer"}).json()
        with Stream(replicas[0], "/events", token=token["token"]) as stream:
            path = f"/tokens/{token['id']}"
            assert second.delete(path).status_code in (204, 404)
            assert stream.ended.wait(60)


def test_concurrent_replicas_create_one_first_token(postgres: PostgresServer, tmp_path: Path, name: str) -> None:
    url = postgres.create_database(name)
    schema.upgrade(url)
    files = [tmp_path / str(number) / "admin.token" for number in range(8)]

    async def start() -> list[bool]:
        databases = [Database(url) for _ in files]
        created = await asyncio.gather(*(bootstrap(*pair) for pair in zip(databases, files, strict=True)))
        for database in databases:
            await database.close()
        return created

    created = asyncio.run(start())
    assert [file.exists() for file in files] == created
    assert sum(created) == 1


def test_readiness_answers_in_time_while_the_database_is_frozen(
    replicas: list[Served], postgres: PostgresServer
) -> None:
    api = replicas[0]
    with api.client(retry=False) as admin:
        ready = api.url + "/health/ready"
        eventually(lambda: admin.get(ready).status_code == 200, "it is ready")
        with postgres.frozen():
            begun = time.monotonic()
            assert [admin.get(ready).status_code for _ in range(2)] == [503, 503]
            assert time.monotonic() - begun < 6, "each has two seconds"
        eventually(lambda: admin.get(ready).status_code == 200, "it is ready again")


def test_callers_get_retry_after_while_the_database_is_unavailable(
    replicas: list[Served], postgres: PostgresServer, name: str
) -> None:
    api = replicas[0]
    with api.client(retry=False) as admin, Stream(api, "/events") as stream:
        create(admin, name)
        stream.next()
        postgres.stop(kill=True)
        try:
            for answer in (admin.get("/jobs"), admin.post(f"/jobs/{name}/start")):
                assert answer.status_code == 503, answer.text
                assert answer.headers["content-type"] == "application/problem+json"
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["type"].endswith("/database-unavailable")
            ready = admin.get(api.url + "/health/ready")
            assert ready.status_code == 503
            assert admin.get(api.url + "/health/live").status_code == 200
            assert not stream.ended.is_set(), "a stream waits for the database to come back"
        finally:
            postgres.start()
        eventually(lambda: admin.get(api.url + "/health/ready").status_code == 200, "it is ready again")
        with api.client() as patient:  # another connection to the database may still be an old one
            assert patient.post(f"/jobs/{name}/start").status_code == 202
        while stream.next()["event"] != "job.desired":
            pass
