"""Hosts as people see them, and the routes by which an agent talks."""

from __future__ import annotations

from clonos.client.transport import Transport, decode
from clonos.resources.base import Page
from clonos.resources.hosts import (
    Agent,
    AgentRegister,
    AgentRegistered,
    EventsPush,
    Heartbeat,
    HeartbeatAnswer,
    LogPush,
    Pushed,
    Pushes,
    PushesTaken,
    Standby,
    TaskResult,
    Work,
)


class Hosts:
    """``/hosts``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> Page[Agent]:
        """All hosts."""
        return self._transport.pages(Agent, "/hosts", limit=limit)

    def get(self, name: str) -> Agent:
        """One host."""
        return self._transport.get(Agent, f"/hosts/{name}")

    def drain(self, name: str) -> Agent:
        """Give it nothing new, and move what it has."""
        return decode(Agent, self._transport.post(f"/hosts/{name}/drain"))

    def undrain(self, name: str) -> Agent:
        """Use it again."""
        return decode(Agent, self._transport.post(f"/hosts/{name}/undrain"))

    def delete(self, name: str) -> None:
        """Forget it."""
        self._transport.send("DELETE", f"/hosts/{name}")


class Standbys:
    """``/standbys``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> Page[Standby]:
        """All warm drivers."""
        return self._transport.pages(Standby, "/standbys", limit=limit)


class Agents:
    """``/agents``: what an agent asks and tells; pushes name offsets, so that each may be repeated."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def register(self, agent: AgentRegister) -> AgentRegistered:
        """An agent starts."""
        return decode(AgentRegistered, self._transport.post("/agents", agent))

    def heartbeat(self, agent: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """It lives."""
        return decode(HeartbeatAnswer, self._transport.post(f"/agents/{agent}/heartbeat", heartbeat))

    def work(self, agent: str, *, after: int, wait_s: float) -> Work:
        """What it is to do, as soon as the revision is another than `after`, or after `wait_s` seconds."""
        given = {"after": after, "wait_s": wait_s}
        return self._transport.get(Work, f"/agents/{agent}/work", given, timeout_s=wait_s + 10)

    def push(self, agent: str, pushes: Pushes) -> PushesTaken:
        """What all drivers of an agent wrote."""
        return decode(PushesTaken, self._transport.post(f"/agents/{agent}/pushes", pushes))

    def push_events(self, agent: str, run: str, push: EventsPush) -> Pushed:
        """What a driver told."""
        return decode(Pushed, self._transport.post(f"/agents/{agent}/runs/{run}/events", push))

    def push_log(self, agent: str, run: str, push: LogPush) -> Pushed:
        """What a driver logged."""
        return decode(Pushed, self._transport.post(f"/agents/{agent}/runs/{run}/log", push))

    def end_task(self, agent: str, task: str, result: TaskResult) -> None:
        """How a task went."""
        self._transport.post(f"/agents/{agent}/tasks/{task}", result)

    def delete(self, agent: str) -> None:
        """It goes for good."""
        self._transport.send("DELETE", f"/agents/{agent}")
