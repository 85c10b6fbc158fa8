"""A control plane for the tests of one module, with a scripted agent."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import serving
from scripted import ScriptedAgent, placed
from serving import Change, Served, served


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
    with ScriptedAgent(api, f"host-{name}") as made:
        made.register()
        yield made


@pytest.fixture
def write(api: Served) -> Callable[[Change], Any]:
    """Writes to the store as another replica would: with a connection and a notifier of its own."""
    return functools.partial(serving.write, api)


@pytest.fixture
def place(api: Served) -> Callable[[str, str], str]:
    """Places a job on an agent, as the reconciler would; the id of the run."""
    return lambda job, agent: asyncio.run(placed(api, job, agent))
