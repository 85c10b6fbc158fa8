"""Simulated agents for `bench.load`.

They use the agents' protocol over real HTTP: register, heartbeat, long-poll, push. A simulated driver consists of
counters. It claims, finishes an epoch each second, and writes events and log lines as `clonos run` does.
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

from clonos.deadline import is_set_within
from clonos.telemetry.driver_events import Epoch
from support.connection import Connection, RequestFailed

EPOCH_S: Final = 1.0
_START_S: Final = (0.3, 1.0)  # Spark takes longer, but the load of the control plane is the same
_STOP_S: Final = (0.1, 1.0)
_COALESCE_S: Final = 0.05
_WAIT_S: Final = 20.0
_BACKOFF_S: Final = 0.5
_LINES: Final = 5000
_REST_INTERVAL_S: Final = 1.0
_CHANGING_S: Final = 10.0


@dataclass
class Hooks:
    """Callbacks for the measurements of the agents.

    Attributes:
        succeeded: A request succeeded: its kind, and its duration in milliseconds.
        failed: A request failed: its kind, and the error.
        spec_received: An agent received a run specification with a new desired state: job, desired state, and time.
        state_reported: An agent reports a run's new state: job, state, and time.
    """

    succeeded: Callable[[str, float], None]
    failed: Callable[[str, Exception], None]
    spec_received: Callable[[str, str, float], None]
    state_reported: Callable[[str, str, float], None]


class Driver:
    """A simulated driver.

    Args:
        spec: Specification of the run.
        generation: Generation of its claim.
        epoch_s: Seconds from one epoch to the next.
    """

    def __init__(self, spec: dict[str, Any], generation: int, epoch_s: float) -> None:
        self.run, self.job, self.name = spec["run"], spec["job"], spec["name"]
        self.desired = "RUNNING"
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
        self._epoch_s = epoch_s
        self._read = 0

    async def simulate(self, changed: Callable[[], None]) -> None:
        """Start, and finish epochs until cancelled."""
        self.state, self.started_at = "STARTING", _now()
        self.driver_state = "CLAIMING"
        self.emit("state", state="CLAIMING", generation=0)
        changed()
        await asyncio.sleep(random.uniform(*_START_S))
        self.emit("claimed", lineage=1, lanes=4)
        self.emit("state", state="RECONCILING")
        self.emit("state", state="RUNNING")
        self.state = self.driver_state = "RUNNING"
        changed()
        due = time.monotonic() + random.uniform(0, self._epoch_s)
        while True:
            await asyncio.sleep(due - time.monotonic())
            due += self._epoch_s
            self._finish_epoch()

    def exit(self, state: str, exit_code: int) -> None:
        """Set the final state, and emit the last events."""
        self.state, self.driver_state, self.exit_code, self.final = "EXITED", state, exit_code, True
        self.ended_at = _now()
        if exit_code == 0:
            self.emit("stopped")
            self.emit("summary", state=state, seconds=1.0, epochs=self.epoch, restarts=0)

    def report(self) -> dict[str, Any]:
        """The run's report for a heartbeat, without empty fields."""
        report = {
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
        return {name: value for name, value in report.items() if value is not None and value != ""}

    def emit(self, event: str, **fields: Any) -> None:
        """Append an event and its log line."""
        record = {"event": event, "job": self.name, "generation": self._generation, **fields, "at": time.time()}
        self.lines.append(json.dumps(record))
        for name in Epoch.long:
            record.pop(name, None)
        self.log += json.dumps({**record, "level": "info", "timestamp": _now(), "logger": "clonos.driver"}) + "\n"

    def _finish_epoch(self) -> None:
        records = int(random.randrange(50, 350) * self._epoch_s)
        self._read += records
        duration_ms = random.randrange(50, 400)
        self.emit(
            "epoch",
            query="out",
            epoch=self.epoch,
            duration_ms=duration_ms,
            records_in=records,
            records_out=records,
            recorded_determinants=30,
            recorded_bytes=900,
            published_lanes=4,
            spans=[{"name": name, "duration_ms": duration_ms / 4} for name in ("plan", "publish", "commit")],
            operators={"enrich": {"recorded": 30, "replayed": 0, "bytes": 900}},
            topics_in={"orders": records},
            latencies=dict.fromkeys(range(26, 34), records // 8),
            offsets={"orders": {str(partition): self._read // 4 for partition in range(4)}},
        )
        self.epoch += 1


@dataclass
class Agent:
    """One simulated host.

    Args:
        name: Its name.
        slots: Maximum number of drivers.
        connect: Opens a connection with the agent's token.
        generations: Job id → newest generation; all agents share the mapping.
        hooks: Callbacks for the measurements.
        epoch_s: Seconds from one epoch of a driver to the next.
    """

    name: str
    slots: int
    connect: Callable[[], Connection]
    generations: dict[str, int]
    hooks: Hooks
    epoch_s: float = EPOCH_S
    drivers: dict[str, Driver] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._instance = secrets.token_hex(16)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._push_now = asyncio.Event()
        self._revision = 0
        self._pause_s = 0.2
        self._id = ""

    async def simulate(self) -> None:
        """Register, then run as an agent until cancelled."""
        body = {"name": self.name, "instance": self._instance, "slots": self.slots, "versions": {"clonos": "0"}}
        response = await self.connect().request("POST", "/hosts", _json(body))
        self._id, self._heartbeat_s = response["id"], response["heartbeat_s"]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_heartbeats())
            group.create_task(self._poll_work())
            group.create_task(self._push())

    async def _timed(self, kind: str, connection: Connection, method: str, path: str, body: Any = None) -> Any:
        """Send a request and measure it; returns None if it failed."""
        began = time.perf_counter()
        try:
            response = await connection.request(method, path, None if body is None else _json(body))
        except (OSError, RequestFailed, asyncio.IncompleteReadError) as error:
            self.hooks.failed(kind, error)
            await asyncio.sleep(_BACKOFF_S)
            return None
        self.hooks.succeeded(kind, (time.perf_counter() - began) * 1000)
        return response

    async def _send_heartbeats(self) -> None:
        connection = self.connect()
        reported: dict[str, str] = {}
        await asyncio.sleep(random.uniform(0, self._heartbeat_s))
        while True:
            self._changed.clear()
            reports = [driver.report() for driver in self.drivers.values()]
            body = {"instance": self._instance, "runs": reports}
            for report in reports:
                run, state = report["run"], report["state"]
                if reported.get(run) != state:
                    self.hooks.state_reported(self.drivers[run].job, state, time.perf_counter())
            response = await self._timed("heartbeat", connection, "POST", f"/hosts/{self._id}/heartbeat", body)
            if response is not None:
                self._pause_s = response["push_interval_ms"] / 1000
                reported = {report["run"]: report["state"] for report in reports}
            if await is_set_within(
                self._changed, self._heartbeat_s * random.uniform(0.9, 1.1)
            ):  # the jitter of the real agent
                await asyncio.sleep(_COALESCE_S)

    async def _poll_work(self) -> None:
        connection = self.connect()
        while True:
            path = f"/hosts/{self._id}/work?after={self._revision}&wait_s={_WAIT_S}"
            try:
                work = await connection.request("GET", path)
            except (OSError, RequestFailed, asyncio.IncompleteReadError) as error:
                self.hooks.failed("work", error)
                await asyncio.sleep(_BACKOFF_S)
                continue
            if work["revision"] != self._revision:
                self._revision = work["revision"]
                self._apply_work(work["runs"])

    def _apply_work(self, runs: list[dict[str, Any]]) -> None:
        now = time.perf_counter()
        specs = {spec["run"]: spec for spec in runs}
        for run in [run for run in self.drivers if run not in specs]:
            self._tasks.pop(run).cancel()
            del self.drivers[run]
        for run, spec in specs.items():
            driver = self.drivers.get(run)
            if driver is None:
                self.generations[spec["job"]] = self.generations.get(spec["job"], 0) + 1
                driver = self.drivers[run] = Driver(spec, self.generations[spec["job"]], self.epoch_s)
                self._tasks[run] = asyncio.create_task(driver.simulate(self._report_now))
                self.hooks.spec_received(driver.job, "RUNNING", now)
            if spec["desired"] != driver.desired:
                driver.desired = spec["desired"]
                self.hooks.spec_received(driver.job, driver.desired, now)
                self._tasks[run].cancel()
                self._tasks[run] = asyncio.create_task(self._stop(driver, graceful=driver.desired == "STOPPED"))
        self._changed.set()

    async def _stop(self, driver: Driver, *, graceful: bool) -> None:
        if driver.final:
            return
        if graceful:
            await asyncio.sleep(random.uniform(*_STOP_S))
        driver.exit("STOPPED" if graceful else "", 0 if graceful else -9)
        self._report_now()

    def _report_now(self) -> None:
        self._changed.set()
        self._push_now.set()

    async def _push(self) -> None:
        connection, changing_until = self.connect(), 0.0
        while True:
            # As `clonos.agent.push_batcher`: each second, and more often for a while after a change.
            pause_s = self._pause_s if time.monotonic() < changing_until else max(self._pause_s, _REST_INTERVAL_S)
            if await is_set_within(self._push_now, pause_s * random.uniform(0.9, 1.1)):
                changing_until = time.monotonic() + _CHANGING_S
            self._push_now.clear()
            drivers = [driver for driver in self.drivers.values() if driver.lines or driver.log]
            if not drivers:
                continue
            events = [(driver, driver.lines[:_LINES]) for driver in drivers]
            logs = [(driver, driver.log[:131_072]) for driver in drivers]
            body = {
                "instance": self._instance,
                "events": [{"run": driver.run, "offset": driver.offset, "lines": lines} for driver, lines in events],
                "logs": [{"run": driver.run, "offset": driver.log_offset, "text": text} for driver, text in logs],
            }
            response = await self._timed("push", connection, "POST", f"/hosts/{self._id}/push", body)
            if response is None:
                continue
            for (driver, lines), result in zip(events, response["events"], strict=True):
                size = sum(len(line) + 1 for line in lines)
                self._check_offset(result, driver.offset + size)
                driver.offset += size
                del driver.lines[: len(lines)]
            for (driver, text), result in zip(logs, response["logs"], strict=True):
                self._check_offset(result, driver.log_offset + len(text))
                driver.log_offset += len(text)
                driver.log = driver.log[len(text) :]

    def _check_offset(self, result: dict[str, Any], offset: int) -> None:
        if result["offset"] != offset:
            self.hooks.failed("push", ValueError(f"{result} instead of {offset}"))


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat()
