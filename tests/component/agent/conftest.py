"""Fixtures: a fake control plane, and agents that are stopped with all their drivers after the test."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from component.agent.api import FakeApi
from component.agent.hosts import ProcessAgent, ThreadAgent, processes_of, settings


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def run() -> Iterator[str]:
    """Id of a run; its processes, and the processes of runs whose ids begin with it, are killed after the test."""
    run = f"r{secrets.token_hex(4)}"
    yield run
    for pid in processes_of(run, prefix=True):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def host(api: FakeApi, run: str, tmp_path: Path) -> Iterator[Callable[..., ThreadAgent]]:
    """Starts agents in threads."""
    started: list[ThreadAgent] = []

    def start(**more: Any) -> ThreadAgent:
        started.append(ThreadAgent(settings(**{"home": tmp_path, "url": api.url} | more)))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
def host_process(api: FakeApi, run: str, tmp_path: Path) -> Iterator[Callable[..., ProcessAgent]]:
    """Starts agents as processes."""
    started: list[ProcessAgent] = []

    def start(environment: dict[str, str] | None = None, **more: Any) -> ProcessAgent:
        log = tmp_path / "agent.log"
        started.append(ProcessAgent(settings(tmp_path, api.url, **more), log, **(environment or {})))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.kill()
