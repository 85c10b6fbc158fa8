"""Two replicas as processes over PostgreSQL, under load, while the database or the leader goes away.

Nothing that was accepted is lost or done twice, every reader sees each event once and in order, each epoch counts once,
no host is given up, no job stays where it was on its way to; and who asks meanwhile hears when to come back.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from clonos.testing.postgres import PostgresServer
from clonos_api.store import counters, schema
from clonos_api.store.database import Database
from load import Load
from observe import eventually
from serving import ApiProcess

TAKEOVER_S = 10.0  # three where nothing else runs: a lease lasts two
# From the moment that the database takes connections.
RECOVERED_S = 5.0
# A leader's transaction is over by then.
_COMMIT_S = 2.0
SETTLED = {"RUNNING": "RUNNING", "STOPPED": "STOPPED"}


class World:
    """Replicas and a load on them.

    Attributes:
        replicas: By the name that each has in the lease.
    """

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home
        self.replicas: dict[str, ApiProcess] = {}
        self._stack = ExitStack()

    def __enter__(self) -> World:
        with ExitStack() as stack:
            for name in ("one", "two"):
                self.start(name, stack)
            urls = [replica.served.url for replica in self.replicas.values()]
            self.admin = stack.enter_context(self.replicas["one"].served.client())
            self.load = stack.enter_context(Load(urls, self.replicas["one"].served.admin))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, name: str, stack: ExitStack, port: int = 0) -> None:
        """Start a replica."""
        settings: dict[str, Any] = {"database_url": self.url, "replica": name, "reconcile": True, "heartbeat_s": 1.0}
        self.replicas[name] = stack.enter_context(ApiProcess(self.home, log=self.log(name), port=port, **settings))

    def start_again(self, name: str) -> None:
        """Start a replica that was killed, at its old address."""
        self.start(name, self._stack, int(self.replicas[name].served.url.rsplit(":", 1)[1]))

    def log(self, name: str) -> Path:
        """What a replica says."""
        return self.home / f"{name}.log"

    def said(self, name: str, what: str, since: datetime) -> list[dict[str, Any]]:
        """Lines of a replica's log."""
        lines = [json.loads(line) for line in self.log(name).read_text().splitlines() if line.startswith("{")]
        return [one for one in lines if one["event"] == what and datetime.fromisoformat(one["timestamp"]) > since]

    def lease(self) -> tuple[str, int]:
        """Who leads, and its token."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as link:
            row = link.execute("SELECT holder, token FROM leases WHERE name = 'leader'").fetchone()
        assert row is not None
        return str(row[0]).partition(":")[0], int(row[1])

    def working(self) -> None:
        """Let it work for a moment: people are accepted, epochs are counted, the readers read."""
        load = self.load
        people, epochs, read = len(load.accepted), len(load.counted), [len(seen) for seen in load.readers]

        def moved() -> bool:
            load.check()
            on = len(load.accepted) >= people + 6 and len(load.counted) >= epochs + 60
            return on and all(len(seen) > before for seen, before in zip(load.readers, read, strict=True))

        eventually(moved, "the load is worked on", timeout_s=60)

    def nothing_is_lost(self) -> None:
        """Let all come to rest, compare what was told with what there is, and go on."""
        load = self.load
        load.rest()
        try:
            self._compare()
        finally:
            load.resume()

    def _compare(self) -> None:
        load = self.load
        eventually(lambda: not self._every("/operations", state="IN_PROGRESS"), "operations end", timeout_s=60)
        eventually(lambda: not self._under_way(), "no job is on its way", timeout_s=60)
        jobs = {job["name"]: job for job in self._every("/jobs")}
        assert {name: job["id"] for name, job in jobs.items()} == load.jobs(), "each accepted job, once"
        for name, ids in load.operations_by_job().items():
            there = [one["id"] for one in self._every("/operations", job=name)]
            assert sorted(there) == sorted(ids), f"each accepted request on {name}, once"
        assert {host["state"] for host in self._every("/hosts")} == {"READY"}
        history = self._history()
        assert not [one for one in history if one["type"] in ("agent.lost", "host.lost")]
        self._moves_are_a_chain(history)
        seqs = [int(one["seq"]) for one in history]
        for seen in load.readers:
            eventually(lambda seen=seen: seen and seen[-1] >= seqs[-1], "the reader has read all")
            assert seen == seqs, "each event once and in order"
        assert asyncio.run(self._epochs({job["id"]: name for name, job in jobs.items()})) == load.told

    def _under_way(self) -> list[dict[str, Any]]:
        return [
            job
            for job in self._every("/jobs")
            if job["state"] != "CREATED" and job["state"] != SETTLED.get(job["desired_state"])
        ]

    def _every(self, path: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            asked = {**query, "limit": 200, **({"starting_after": after} if after else {})}
            answer = self.admin.get(path, params=asked)
            assert answer.status_code == 200, answer.text
            found += answer.json()["data"]
            if not answer.json()["has_more"]:
                return found
            after = answer.json()["next"]

    def _history(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after: str | None = str(self.load.first_seq)
        while after is not None:
            page = self.admin.get("/events/history", params={"after": after, "limit": 200}).json()
            found += page["data"]
            after = page["next"]
        return found

    def moved(self, since: datetime, until: datetime) -> set[tuple[str, str, str]]:
        """Moves between two moments: names of jobs, from, to."""
        names = {id: name for name, id in self.load.jobs().items()}
        return {
            (names.get(one["job"], ""), one["data"]["from"], one["data"]["to"])
            for one in self._history()
            if one["type"] == "job.state" and since <= datetime.fromisoformat(one["at"]) <= until
        }

    def _moves_are_a_chain(self, history: list[dict[str, Any]]) -> None:
        """Each move of a job begins where the one before ended: no stale leader made one."""
        at: dict[str, str] = {}
        for one in history:
            if one["type"] == "job.state":
                assert at.get(one["job"], "CREATED") == one["data"]["from"], one
                at[one["job"]] = one["data"]["to"]

    async def _epochs(self, jobs: dict[str, str]) -> dict[str, int]:
        """How many epochs count, by the name of the job."""
        database = Database(self.url)
        found = {}
        async with database.reading() as session:
            for id, name in jobs.items():
                sums = await counters.of_job(session, id)
                assert "unreadable_events" not in sums
                if "epochs" in sums:
                    found[name] = sums["epochs"]
        await database.close()
        return found


@pytest.fixture(scope="module")
def world(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = postgres.create_database("outages")
    schema.upgrade(url)
    with World(url, tmp_path_factory.mktemp("outages")) as made:
        yield made


def _recovered(world: World, back: float, report: Callable[[str, object], None]) -> None:
    """All goes on in time after the database is back; how long it took is in the report."""
    load = world.load
    urls = [replica.served.url for replica in world.replicas.values()]
    for url in urls:
        eventually(lambda url=url: httpx.get(f"{url}/health/ready", timeout=10).status_code == 200, "it is ready")
    ready_s = time.monotonic() - back
    eventually(lambda: load.accepted[-1] > back and load.counted[-1] > back, "requests are accepted and epochs count")
    accepted_s = next(at for at in load.accepted if at > back) - back
    counted_s = next(at for at in load.counted if at > back) - back
    begun = len(load.readers[0])
    eventually(lambda: len(load.readers[0]) > begun, "there are events again")
    figures = {"ready": ready_s, "accepted": accepted_s, "epochs": counted_s}
    for name, seconds in figures.items():
        report(f"{name}_s", round(seconds, 2))
        assert seconds < RECOVERED_S, figures
    print(f"recovered: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in figures.items())}")


@contextmanager
def _told_to_come_back(load: Load) -> Iterator[None]:
    before = len(load.away)
    yield
    assert len(load.away) > before, "nobody was told to come back"


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_the_database_is_restarted(
    world: World, postgres: PostgresServer, record_property: Callable[[str, object], None], how: str
) -> None:
    world.working()
    with postgres.away(postgres.crash if how == "killed" else postgres.stop):
        pass
    _recovered(world, time.monotonic(), record_property)
    world.working()
    world.nothing_is_lost()


@pytest.mark.parametrize("seconds", [7.0, pytest.param(30.0, marks=pytest.mark.broad)])
def test_the_database_is_away(
    world: World, postgres: PostgresServer, record_property: Callable[[str, object], None], seconds: float
) -> None:
    """For longer than the agents' lease, and than requests wait."""
    world.working()
    with _told_to_come_back(world.load):
        with postgres.away():
            over = time.monotonic() + seconds
            eventually(lambda: time.monotonic() > over, "the outage", timeout_s=seconds + 5)
            for replica in world.replicas.values():
                assert httpx.get(f"{replica.served.url}/health/live", timeout=5).status_code == 200
                assert httpx.get(f"{replica.served.url}/health/ready", timeout=5).status_code == 503
        _recovered(world, time.monotonic(), record_property)
    world.working()
    world.nothing_is_lost()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda one: one.name)
def test_the_leader_is_lost(world: World, record_property: Callable[[str, object], None], how: signal.Signals) -> None:
    world.working()
    first, token = world.lease()
    second = "two" if first == "one" else "one"
    process = world.replicas[first].process
    process.send_signal(how)
    lost = datetime.now(UTC)
    begun = time.monotonic()
    eventually(lambda: world.lease() == (second, token + 1), "the other one leads")
    took = time.monotonic() - begun
    record_property("takeover_s", round(took, 2))
    print(f"takeover: {took:.2f} s")
    assert took < TAKEOVER_S
    world.admin.base_url = world.replicas[second].served.url + "/api/v1"
    if how is signal.SIGKILL:
        process.wait(10)
        world.start_again(first)
        world.working()
    else:
        world.working()
        woken = datetime.now(UTC)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: world.said(first, "not-leading", woken), "the one that slept sees that it leads no more")
        world.working()
        # It hears only now of a commit that it had asked for.
        moved = {(one["job"], one["source"], one["target"]) for one in world.said(first, "job-moved", woken)}
        assert moved <= world.moved(lost - timedelta(seconds=_COMMIT_S), lost), "the loser writes nothing"
        assert not world.said(first, "leading", woken)
    assert world.lease() == (second, token + 1)
    world.nothing_is_lost()
