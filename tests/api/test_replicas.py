"""Two replicas over one PostgreSQL: the order of events, and what callers hear while the database is away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from streams import Stream

from clonos.testing.postgres import PostgresServer
from clonos_api.auth.bootstrap import bootstrap
from clonos_api.store import agents, schema
from clonos_api.store.database import Database
from observe import eventually
from scripted import ScriptedAgent, create
from serving import Served, served


@pytest.fixture
def replicas(postgres: PostgresServer, tmp_path: Path, name: str) -> Iterator[list[Served]]:
    url = postgres.create_database(name)
    schema.upgrade(url)
    with ExitStack() as stack:
        # One home, as replicas that share a secret store have: the first token is in it.
        yield [stack.enter_context(served(tmp_path, database_url=url)) for _ in range(2)]


def test_each_stream_has_all_events_in_one_order(replicas: list[Served], name: str) -> None:
    with replicas[0].client() as first:
        for number in range(4):
            create(first, f"{name}-{number}")

    def act(number: int) -> None:
        with replicas[number % 2].client() as client:
            for action in ("start", "stop") * 10:
                answer = client.post(f"/jobs/{name}-{number}/{action}")
                assert answer.status_code == 202, answer.text

    with (
        Stream(replicas[0], "/events", type="job.desired") as one,
        Stream(replicas[1], "/events", type="job.desired") as two,
    ):
        actors = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for actor in actors:
            actor.start()
        seen = [[int(stream.next(20)["id"]) for _ in range(80)] for stream in (one, two)]
        for actor in actors:
            actor.join()
    assert seen[0] == sorted(set(seen[0]))
    assert seen[0] == seen[1]


def test_work_is_heard_of_through_the_other_replica(replicas: list[Served], name: str) -> None:
    with ScriptedAgent(replicas[0], f"host-{name}") as agent, replicas[1].client() as other:
        agent.register()
        revision = agent.work()["revision"]
        found: list[int] = []
        poller = threading.Thread(target=lambda: found.append(agent.work(revision, 20.0)["revision"]))
        poller.start()
        poller.join(0.3)
        assert poller.is_alive()
        assert other.post(f"/hosts/{agent.name}/drain").status_code == 200
        _bump(replicas[1], agent.id)
        poller.join(5)
        assert found
        assert found[0] != revision


def test_a_token_that_the_other_replica_revoked_ends_its_streams(replicas: list[Served]) -> None:
    with replicas[0].client() as one, replicas[1].client() as other:
        token = one.post("/tokens", json={"name": "reader", "role": "viewer"}).json()
        with Stream(replicas[0], "/events", token=token["token"]) as stream:
            assert other.delete(f"/tokens/{token['id']}").status_code == 204
            assert stream.ended.wait(3.0)


def test_replicas_that_start_at_once_make_one_first_token(postgres: PostgresServer, tmp_path: Path, name: str) -> None:
    url = postgres.create_database(name)
    schema.upgrade(url)
    files = [tmp_path / str(number) / "admin.token" for number in range(8)]

    async def start() -> list[bool]:
        databases = [Database(url) for _ in files]
        made = await asyncio.gather(*(bootstrap(*one) for one in zip(databases, files, strict=True)))
        for database in databases:
            await database.close()
        return made

    made = asyncio.run(start())
    assert [file.exists() for file in files] == made
    assert sum(made) == 1


def _bump(replica: Served, agent: str) -> None:
    async def bump() -> None:
        database = Database(replica.settings.database)
        async with database.transaction() as session:
            agents.bump(session, agent)
        await database.close()

    asyncio.run(bump())


def test_while_the_database_is_away_callers_hear_when_to_come_back(
    replicas: list[Served], postgres: PostgresServer, name: str
) -> None:
    api = replicas[0]
    with api.client() as admin, Stream(api, "/events") as stream:
        create(admin, name)
        stream.next()
        postgres.stop(kill=True)
        try:
            begun = time.monotonic()
            for answer in (admin.get("/jobs"), admin.post(f"/jobs/{name}/start")):
                assert answer.status_code == 503, answer.text
                assert answer.headers["content-type"] == "application/problem+json"
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["type"].endswith("/store-away")
            assert time.monotonic() - begun < 15
            ready = admin.get(api.url + "/health/ready")
            assert ready.status_code == 503
            assert admin.get(api.url + "/health/live").status_code == 200
            assert not stream.ended.is_set(), "a stream waits for the database to come back"
        finally:
            postgres.start()
        eventually(lambda: admin.get(api.url + "/health/ready").status_code == 200, "it is ready again")
        assert admin.post(f"/jobs/{name}/start").status_code == 202
        while stream.next()["event"] != "job.desired":
            pass
