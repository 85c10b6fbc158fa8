"""Two replica processes over PostgreSQL under load, while the database or the leader is unavailable.

No accepted request is lost or executed twice, every reader gets each event once and in order, each epoch counts once,
no host is lost, no job stays in a transition; and requests during the outage get ``Retry-After``.
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

from clonos.testing.harness import eventually
from clonos_api.store import counters
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from load import Load
from support.busy import slowdown
from support.postgres import PostgresServer
from support.serving import ApiProcess

TAKEOVER_S = 10.0  # three where nothing else runs: a lease lasts two
# From the moment that the database takes connections.
RECOVERED_S = 5.0
# A leader's transaction is over by then.
_COMMIT_S = 2.0
# Thirty jobs with an epoch a second: what `World.working` takes on an idle machine.
_WORKING_S = 2.5
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
        settings["host_lease_s"] = 12.0  # the agents of the load share a thread with all clients
        self.replicas[name] = stack.enter_context(ApiProcess(self.home, log=self.log(name), port=port, **settings))

    def start_again(self, name: str) -> None:
        """Start a replica that was killed, at its old address."""
        self.start(name, self._stack, int(self.replicas[name].served.url.rsplit(":", 1)[1]))

    def log(self, name: str) -> Path:
        """The log file of a replica."""
        return self.home / f"{name}.log"

    def said(self, name: str, what: str, since: datetime) -> list[dict[str, Any]]:
        """Lines of a replica's log."""
        lines = [json.loads(line) for line in self.log(name).read_text().splitlines() if line.startswith("{")]
        return [
            record
            for record in lines
            if record["event"] == what and datetime.fromisoformat(record["timestamp"]) > since
        ]

    def lease(self) -> tuple[str, int]:
        """Who leads, and its token."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as link:
            row = link.execute("SELECT holder, fencing_token FROM leases WHERE name = 'leader'").fetchone()
        assert row is not None
        return str(row[0]).partition(":")[0], int(row[1])

    def working(self) -> float:
        """Wait until requests are accepted, epochs are counted and the readers read.

        Returns:
            By how many seconds this machine is slower than an idle one.
        """
        begun = time.monotonic()
        load = self.load
        people, epochs, read = len(load.accepted), len(load.counted), [len(seen) for seen in load.readers]

        def moved() -> bool:
            load.check()
            on = len(load.accepted) >= people + 6 and len(load.counted) >= epochs + 60
            return on and all(len(seen) > before for seen, before in zip(load.readers, read, strict=True))

        eventually(moved, "the load is worked on", timeout_s=60)
        return max(0.0, time.monotonic() - begun - _WORKING_S)

    def nothing_is_lost(self) -> None:
        """Pause the load, compare its requests and reports with the stored state, and resume it."""
        load = self.load
        load.rest()
        try:
            self._compare()
        finally:
            load.resume()

    def _compare(self) -> None:
        load = self.load
        eventually(lambda: not self._every("/operations", state="IN_PROGRESS"), "operations end", timeout_s=60)
        eventually(lambda: not self._transient_jobs(), "no job is in a transient state", timeout_s=60)
        jobs = {job["name"]: job for job in self._every("/jobs")}
        assert {name: job["id"] for name, job in jobs.items()} == load.jobs(), "each accepted job, once"
        for name, ids in load.operations_by_job().items():
            there = [operation["id"] for operation in self._every("/operations", job=name)]
            assert sorted(there) == sorted(ids), f"each accepted request on {name}, once"
        assert {host["state"] for host in self._every("/hosts")} == {"READY"}
        history = self._history()
        assert not [event for event in history if event["type"] == "host.lost"]
        self._moves_are_a_chain(history)
        seqs = [int(event["seq"]) for event in history]
        for seen in load.readers:
            eventually(lambda seen=seen: seen and seen[-1] >= seqs[-1], "the reader has read all")
            assert seen == seqs, "each event once and in order"
        assert asyncio.run(self._epochs({job["id"]: name for name, job in jobs.items()})) == load.reported

    def _transient_jobs(self) -> list[dict[str, Any]]:
        return [
            job
            for job in self._every("/jobs")
            if job["state"] != "CREATED" and job["state"] != SETTLED.get(job["desired_state"])
        ]

    def _every(self, path: str, **query: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            asked = {**query, "limit": 200, **({"starting_after": after} if after else {})}
            answer = self.admin.get(path, params=asked)
            assert answer.status_code == 200, answer.text
            rows += answer.json()["data"]
            if not answer.json()["has_more"]:
                return rows
            after = answer.json()["next"]

    def _history(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        after: str | None = str(self.load.first_seq)
        while after is not None:
            page = self.admin.get("/events/history", params={"after": after, "limit": 200}).json()
            events += page["data"]
            after = page["next"]
        return events

    def moved(self, since: datetime, until: datetime) -> set[tuple[str, str, str]]:
        """Moves between two moments: names of jobs, from, to."""
        names = {id: name for name, id in self.load.jobs().items()}
        return {
            (names.get(event["job"], ""), event["data"]["from"], event["data"]["to"])
            for event in self._history()
            if event["type"] == "job.state" and since <= datetime.fromisoformat(event["at"]) <= until
        }

    def _moves_are_a_chain(self, history: list[dict[str, Any]]) -> None:
        """Each transition of a job begins in the state where the previous one ended: no stale leader wrote."""
        at: dict[str, str] = {}
        for event in history:
            if event["type"] == "job.state":
                assert at.get(event["job"], "CREATED") == event["data"]["from"], event
                at[event["job"]] = event["data"]["to"]

    async def _epochs(self, jobs: dict[str, str]) -> dict[str, int]:
        """Returns the number of counted epochs: job name → epochs."""
        database = Database(self.url)
        epochs = {}
        async with database.reading() as session:
            for id, name in jobs.items():
                sums = await counters.of_job(session, id)
                assert "unreadable_events" not in sums
                if "epochs" in sums:
                    epochs[name] = sums["epochs"]
        await database.close()
        return epochs


@pytest.fixture(scope="module")
def world(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = postgres.create_database("outages")
    schema.upgrade(url)
    with World(url, tmp_path_factory.mktemp("outages")) as made:
        yield made


def _recovered(world: World, back: float, slow_s: float, report: Callable[[str, object], None]) -> None:
    """Everything works again in time after the database is back; the report has the durations."""
    load = world.load
    urls = [replica.served.url for replica in world.replicas.values()]
    for url in urls:
        eventually(
            lambda url=url: httpx.get(f"{url}/health/ready", timeout=10, verify=False).status_code == 200, "it is ready"
        )
    ready_s = time.monotonic() - back
    eventually(lambda: load.accepted[-1] > back and load.counted[-1] > back, "requests are accepted and epochs count")
    accepted_s = next(at for at in load.accepted if at > back) - back
    counted_s = next(at for at in load.counted if at > back) - back
    begun = len(load.readers[0])
    eventually(lambda: len(load.readers[0]) > begun, "there are events again")
    figures = {"ready": ready_s, "accepted": accepted_s, "epochs": counted_s}
    for name, seconds in figures.items():
        report(f"{name}_s", round(seconds, 2))
        assert seconds < (RECOVERED_S + slow_s) * slowdown(), (figures, slow_s)
    print(f"recovered: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in figures.items())}")


@contextmanager
def _retry_after_sent(load: Load) -> Iterator[None]:
    before = len(load.away)
    yield
    assert len(load.away) > before, "no request got Retry-After"


@pytest.mark.turn
@pytest.mark.parametrize("how", [pytest.param("restarted", marks=pytest.mark.full), "killed"])
def test_replicas_recover_from_a_database_restart(
    world: World, postgres: PostgresServer, record_property: Callable[[str, object], None], how: str
) -> None:
    slow_s = world.working()
    with postgres.away(postgres.crash if how == "killed" else postgres.stop):
        pass
    _recovered(world, time.monotonic(), slow_s, record_property)
    world.working()
    world.nothing_is_lost()


@pytest.mark.parametrize(
    "seconds", [pytest.param(7.0, marks=pytest.mark.full), pytest.param(30.0, marks=pytest.mark.full)]
)
def test_replicas_recover_from_a_database_outage(
    world: World, postgres: PostgresServer, record_property: Callable[[str, object], None], seconds: float
) -> None:
    """The outage is longer than the agents' lease and than the wait of a request."""
    slow_s = world.working()
    with _retry_after_sent(world.load):
        with postgres.away():
            over = time.monotonic() + seconds
            eventually(lambda: time.monotonic() > over, "the outage", timeout_s=seconds + 5)
            for replica in world.replicas.values():
                assert httpx.get(f"{replica.served.url}/health/live", timeout=5, verify=False).status_code == 200
                assert httpx.get(f"{replica.served.url}/health/ready", timeout=5, verify=False).status_code == 503
        _recovered(world, time.monotonic(), slow_s, record_property)
    world.working()
    world.nothing_is_lost()


@pytest.mark.turn
@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)],
    ids=lambda number: number.name,
)
def test_another_replica_takes_over_a_lost_leader(
    world: World, record_property: Callable[[str, object], None], how: signal.Signals
) -> None:
    slow_s = world.working()
    first, token = world.lease()
    second = "two" if first == "one" else "one"
    process = world.replicas[first].process
    process.send_signal(how)
    lost = datetime.now(UTC)
    begun = time.monotonic()
    eventually(lambda: world.lease()[0] == second and world.lease()[1] > token, "the other one leads")
    took = time.monotonic() - begun
    record_property("takeover_s", round(took, 2))
    print(f"takeover: {took:.2f} s")
    assert took < (TAKEOVER_S + slow_s) * slowdown()
    world.admin.base_url = world.replicas[second].served.url + "/api/v1"
    if how is signal.SIGKILL:
        process.wait(60)
        world.start_again(first)
        world.working()
    else:
        world.working()
        woken = datetime.now(UTC)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: world.said(first, "lease-lost", woken), "the one that slept sees that it leads no more")
        world.working()
        # A commit that it requested before is confirmed only now.
        moved = {
            (record["job"], record["source"], record["target"])
            for record in world.said(first, "job-state-changed", woken)
        }
        assert moved <= world.moved(lost - timedelta(seconds=_COMMIT_S), lost), "the loser writes nothing"
    leader, newest = world.lease()
    if newest == token + 1:  # on a very busy machine, a leader may not renew its lease in time, and another one follows
        assert leader == second
        assert how is signal.SIGKILL or not world.said(first, "lease-acquired", woken)
    world.nothing_is_lost()
