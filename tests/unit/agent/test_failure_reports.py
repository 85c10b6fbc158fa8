"""A heartbeat reports the failure of a driver at once, also directly after another heartbeat."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.agent import agent as agent_module
from clonos.agent.agent import Agent
from clonos.resources.hosts import Heartbeat, HeartbeatResponse, HostRegistered


class Api:
    def __init__(self) -> None:
        self.heartbeats = 0

    async def heartbeat(self, _host: str, _heartbeat: Heartbeat, *, timeout_s: float) -> HeartbeatResponse:
        self.heartbeats += 1
        return HeartbeatResponse(revision=0, drain=False, push_interval_ms=1000)


@pytest.mark.parametrize("failure", [True, False])
def test_only_a_failure_is_reported_without_a_pause(monkeypatch: pytest.MonkeyPatch, failure: bool) -> None:
    monkeypatch.setattr(agent_module, "_COALESCE_S", 300.0)
    agent: Any = Agent.__new__(Agent)
    agent.instance = "0" * 32
    agent._api = Api()
    agent._capacity = agent._stored_work = agent._poll = None
    agent._pool = SimpleNamespace(ready=0)
    agent._supervisor = SimpleNamespace(reports=list)
    agent._changed, agent._failed = asyncio.Event(), asyncio.Event()
    agent._events_held_until = 0.0
    agent._batcher = SimpleNamespace(interval_s=0.0, changed_recently=False, run_changed=lambda: None)
    host = HostRegistered(id="h", lease_s=600.0, heartbeat_s=60.0, standby_heartbeat_s=60.0)

    async def run() -> int:
        sending = asyncio.create_task(agent._send_heartbeats(host))
        while not agent._api.heartbeats:
            assert not sending.done(), sending.exception()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        (agent._driver_failed if failure else agent._run_changed)()
        deadline = asyncio.get_running_loop().time() + (30.0 if failure else 0.2)
        while agent._api.heartbeats == 1 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        sending.cancel()
        return agent._api.heartbeats

    assert asyncio.run(run()) == (2 if failure else 1)
