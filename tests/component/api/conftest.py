"""A control plane per test module, with scripted agents; and a job with a standby under its reconciler."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from scripted_job import LEASE_S, Rounds, ScriptedJob

from clonos.testing.harness import eventually
from clonos_api.reconcile import loop
from support import serving
from support.scripted import ScriptedAgent, placed, spec, upload
from support.serving import Change, Served, served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica without a reconciler."""
    with served(tmp_path_factory.mktemp("api")) as service:
        yield service


@pytest.fixture
def admin(api: Served) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@pytest.fixture
def agent(api: Served, name: str) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(api, f"host-{name}") as scripted:
        scripted.register()
        yield scripted


@pytest.fixture
def write(api: Served) -> Callable[[Change], Any]:
    """Writes to the store as another replica does: with its own connection and notifier."""
    return functools.partial(serving.write, api)


@pytest.fixture
def place(api: Served) -> Callable[[str, str], str]:
    """Places a job on an agent, as the reconciler does; returns the id of the run."""
    return lambda job, agent: asyncio.run(placed(api, job, agent))


@pytest.fixture(scope="module")
def reconciled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Rounds]]:
    """A replica whose reconciler leads, and its rounds."""
    folder, rounds = tmp_path_factory.mktemp("reconciled"), Rounds()
    settings = {"host_lease_s": LEASE_S, "shared_checkpoints": str(folder / "shared")}
    with pytest.MonkeyPatch.context() as patch:
        # It trusts missing heartbeats at once, and not only after a lease.
        patch.setattr(loop, "_REJOIN_S", -LEASE_S)
        patch.setattr("clonos_api.reconcile.states.moving.HAND_OVER_S", 300.0)
        patch.setattr(loop.Term, "round", rounds.counted)
        with served(folder, reconcile=True, **settings) as service, service.client() as client:
            eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
            yield service, rounds


@pytest.fixture
def job(reconciled: tuple[Served, Rounds], name: str) -> Iterator[ScriptedJob]:
    """A job with one standby; its three hosts are registered, and its driver is not started yet."""
    service, rounds = reconciled
    with ExitStack() as stack:
        client = stack.enter_context(service.client())
        hosts = [stack.enter_context(ScriptedAgent(service, f"{name}-{letter}")) for letter in "abc"]
        for host in hosts:
            host.register()
        scripted = ScriptedJob(service, client, hosts, name, rounds)
        scripted.send_heartbeats()
        wanted = spec(name)
        wanted["spec"]["standby"] = {"replicas": 1, "selfPromoteAfter": "10s"}
        created = client.post("/jobs", json={"spec": wanted, "artifact": upload(client)})
        assert created.status_code == 201, created.text
        yield scripted
        scripted.end()
