"""Simulated agents for `bench.load`.

They speak the real protocol over real HTTP: register, heartbeat, long-poll, push. A driver is a few numbers: it
claims, finishes an epoch each second, and tells events and log lines as `clonos run` does.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bench.connection import Connection, Refused

EPOCH_S: Final = 1.0
_START_S: Final = (0.3, 1.0)  # Spark takes longer; the control plane does not mind
_STOP_S: Final = (0.1, 1.0)
_COALESCE_S: Final = 0.05
_WAIT_S: Final = 20.0
_BACKOFF_S: Final = 0.5
_LINES: Final = 5000

Note = Callable[[str, float], None]
Fault = Callable[[str, Exception], None]


@dataclass
class Hooks:
    """Where agents tell what they saw.

    Attributes:
        took: Milliseconds of a request, by its kind.
        failed: A request that failed, by its kind.
        ordered: An agent has a new order: job, goal, and when.
        told: An agent tells a run's new state: job, state, and when.
    """

    took: Note
    failed: Fault
    ordered: Callable[[str, str, float], None]
    told: Callable[[str, str, float], None]


class Driver:
    """A run's driver.

    Args:
        order: The run's order.
        generation: Of its claim.
    """

    def __init__(self, order: dict[str, Any], generation: int) -> None:
        self.run, self.job, self.name = order["run"], order["job"], order["name"]
        self.goal = "RUN"
        self.state, self.driver_state = "PENDING", ""
        self.final = False
        self.exit_code: int | None = None
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.lines: list[str] = []
        self.offset = 0
        self.log = ""
        self.log_offset = 0
        self.epoch = 0
        self._generation = generation
        self._read = 0

    async def live(self, changed: Callable[[], None]) -> None:
        """Start, and finish epochs until cancelled."""
        self.state, self.started_at = "STARTING", _now()
        self.driver_state = "CLAIMING"
        self.tell("state", state="CLAIMING", generation=0)
        changed()
        await asyncio.sleep(random.uniform(*_START_S))
        self.tell("claimed", lineage=1, lanes=4)
        self.tell("state", state="RECONCILING")
        self.tell("state", state="RUNNING")
        self.state = self.driver_state = "RUNNING"
        changed()
        due = time.monotonic() + random.uniform(0, EPOCH_S)
        while True:
            await asyncio.sleep(due - time.monotonic())
            due += EPOCH_S
            self._finish_epoch()

    def end(self, state: str, exit_code: int) -> None:
        """It has ended."""
        self.state, self.driver_state, self.exit_code, self.final = "EXITED", state, exit_code, True
        self.ended_at = _now()
        if exit_code == 0:
            self.tell("stopped")
            self.tell("summary", state=state, seconds=1.0, epochs=self.epoch, restarts=0)

    def report(self) -> dict[str, Any]:
        """For a heartbeat."""
        whole = {
            "run": self.run,
            "state": self.state,
            "driver_state": self.driver_state,
            "attempts": 1 if self.state != "PENDING" else 0,
            "pid": 4711,
            "generation": self._generation,
            "exit_code": self.exit_code,
            "final": self.final,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
        }
        return {name: value for name, value in whole.items() if value is not None and value != ""}

    def tell(self, event: str, **fields: Any) -> None:
        """An event, and its log line."""
        record = {"event": event, "job": self.name, "generation": self._generation, **fields, "at": time.time()}
        self.lines.append(json.dumps(record))
        record.pop("offsets", None)
        self.log += json.dumps({**record, "level": "info", "timestamp": _now(), "logger": "clonos.runner"}) + "\n"

    def _finish_epoch(self) -> None:
        records = random.randrange(50, 500)
        self._read += records
        offsets = {"orders": {str(partition): self._read // 4 for partition in range(4)}}
        figures = {"skipped_lanes": 0, "diverged_lanes": 0, "recorded": 30, "replayed": 0, "dead_letters": 0}
        self.tell(
            "epoch", query="out", epoch=self.epoch, replay=False, read=records, records=records, **figures, dropped=0,
            duration_ms=random.randrange(80, 400), offsets=offsets,
        )  # fmt: skip
        self.epoch += 1


@dataclass
class Agent:
    """One simulated host.

    Args:
        name: Its name.
        slots: Drivers at once.
        connect: Opens a connection with its token.
        generations: Job id → its newest claim, of all agents.
        hooks: Told of what happens.
    """

    name: str
    slots: int
    connect: Callable[[], Connection]
    generations: dict[str, int]
    hooks: Hooks
    drivers: dict[str, Driver] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._instance = secrets.token_hex(16)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._revision = 0
        self._pause_s = 0.2
        self._id = ""

    async def live(self) -> None:
        """Register, and be an agent until cancelled."""
        body = {"name": self.name, "instance": self._instance, "slots": self.slots, "versions": {"clonos": "0"}}
        answer = await self.connect().ask("POST", "/agents", _json(body))
        self._id, self._beat_s = answer["id"], answer["heartbeat_s"]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._ask())
            group.create_task(self._push())

    async def _timed(self, kind: str, connection: Connection, method: str, path: str, body: Any = None) -> Any:
        """A request; None if it failed."""
        began = time.perf_counter()
        try:
            answer = await connection.ask(method, path, None if body is None else _json(body))
        except (OSError, Refused, asyncio.IncompleteReadError) as error:
            self.hooks.failed(kind, error)
            await asyncio.sleep(_BACKOFF_S)
            return None
        self.hooks.took(kind, (time.perf_counter() - began) * 1000)
        return answer

    async def _beat(self) -> None:
        connection = self.connect()
        told: dict[str, str] = {}
        await asyncio.sleep(random.uniform(0, self._beat_s))
        while True:
            self._changed.clear()
            reports = [one.report() for one in self.drivers.values()]
            body = {"instance": self._instance, "runs": reports}
            for one in reports:
                if told.get(one["run"]) != one["state"]:
                    self.hooks.told(self.drivers[one["run"]].job, one["state"], time.perf_counter())
            answer = await self._timed("heartbeat", connection, "POST", f"/agents/{self._id}/heartbeat", body)
            if answer is not None:
                self._pause_s = answer["forward_ms"] / 1000
                told = {one["run"]: one["state"] for one in reports}
            if await _happens(self._changed, self._beat_s * random.uniform(0.9, 1.1)):  # as the real one
                await asyncio.sleep(_COALESCE_S)

    async def _ask(self) -> None:
        connection = self.connect()
        while True:
            path = f"/agents/{self._id}/work?after={self._revision}&wait_s={_WAIT_S}"
            try:
                work = await connection.ask("GET", path)
            except (OSError, Refused, asyncio.IncompleteReadError) as error:
                self.hooks.failed("work", error)
                await asyncio.sleep(_BACKOFF_S)
                continue
            if work["revision"] != self._revision:
                self._revision = work["revision"]
                self._obey(work["runs"])

    def _obey(self, orders: list[dict[str, Any]]) -> None:
        now = time.perf_counter()
        ordered = {one["run"]: one for one in orders}
        for run in [run for run in self.drivers if run not in ordered]:
            self._tasks.pop(run).cancel()
            del self.drivers[run]
        for run, order in ordered.items():
            driver = self.drivers.get(run)
            if driver is None:
                self.generations[order["job"]] = self.generations.get(order["job"], 0) + 1
                driver = self.drivers[run] = Driver(order, self.generations[order["job"]])
                self._tasks[run] = asyncio.create_task(driver.live(self._wake))
                self.hooks.ordered(driver.job, "RUN", now)
            if order["goal"] != driver.goal:
                driver.goal = order["goal"]
                self.hooks.ordered(driver.job, driver.goal, now)
                self._tasks[run].cancel()
                self._tasks[run] = asyncio.create_task(self._stop(driver, graceful=driver.goal == "STOP"))
        self._changed.set()

    async def _stop(self, driver: Driver, *, graceful: bool) -> None:
        if driver.final:
            return
        if graceful:
            await asyncio.sleep(random.uniform(*_STOP_S))
        driver.end("STOPPED" if graceful else "", 0 if graceful else -9)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._hurry.set()

    async def _push(self) -> None:
        connection = self.connect()
        while True:
            await _happens(self._hurry, self._pause_s * random.uniform(0.9, 1.1))
            self._hurry.clear()
            telling = [one for one in self.drivers.values() if one.lines or one.log]
            if not telling:
                continue
            events = [(one, one.lines[:_LINES]) for one in telling]
            logs = [(one, one.log[:131_072]) for one in telling]
            body = {
                "instance": self._instance,
                "events": [{"run": one.run, "offset": one.offset, "lines": lines} for one, lines in events],
                "logs": [{"run": one.run, "offset": one.log_offset, "text": text} for one, text in logs],
            }
            answer = await self._timed("push", connection, "POST", f"/agents/{self._id}/pushes", body)
            if answer is None:
                continue
            for (one, lines), taken in zip(events, answer["events"], strict=True):
                size = sum(len(line) + 1 for line in lines)
                self._must(taken, one.offset + size)
                one.offset += size
                del one.lines[: len(lines)]
            for (one, text), taken in zip(logs, answer["logs"], strict=True):
                self._must(taken, one.log_offset + len(text))
                one.log_offset += len(text)
                one.log = one.log[len(text) :]

    def _must(self, taken: dict[str, Any], offset: int) -> None:
        if taken["offset"] != offset:
            self.hooks.failed("push", ValueError(f"{taken} instead of {offset}"))


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat()


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
