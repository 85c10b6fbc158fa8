"""The load generator of `bench.control_plane`: agents, and users who list, start and stop jobs, in one process.

The process reads its task as JSON from stdin. It prints ``measuring`` when all jobs run, then its results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time
from collections import Counter, defaultdict
from typing import Any, Final

from bench.fleet import Agent, Hooks
from support.connection import Connection, RequestFailed

_CODE: Final = (
    b'import clonos\n\n\n@clonos.job(name="bench")\ndef bench(ctx):\n    ctx.sink(ctx.source("orders"), topic="out")\n'
)
_PAGE: Final = 50
_LIST_INTERVAL_S: Final = 0.5
_ACTION_INTERVAL_S: Final = 1.0
_SETTLE_S: Final = 15.0
_CONCURRENCY: Final = 8
_LATE_S: Final = 1.0
_TICK_S: Final = 0.05
_BURST_S: Final = 300.0
_PROGRESS_INTERVAL_S: Final = 1.0


class Load:
    """One run of the load generator.

    Args:
        task: ``host``, ``port``, ``admin``, ``agents`` (name → token), ``jobs``, ``seconds``, ``epoch_s``, ``users``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._durations: dict[str, list[float]] = defaultdict(list)
        self._lags: dict[str, list[float]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self._waiting: dict[tuple[str, str], float] = {}
        self._states: dict[str, str] = {}
        self._state_changed = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Create the jobs, start all of them, measure."""
        jobs = await self._create()
        generations: dict[str, int] = {}
        hooks = Hooks(self._record, self._record_error, self._on_spec, self._on_report)
        slots = -(-3 * len(jobs) // (2 * len(self._task["agents"])))
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._follow_events()), group.create_task(self._measure_delay())]
            for name, token in self._task["agents"].items():

                def connect(token: str = token) -> Connection:
                    return Connection(self._task["host"], self._task["port"], token)

                others.append(
                    group.create_task(Agent(name, slots, connect, generations, hooks, self._task["epoch_s"]).simulate())
                )
            await asyncio.sleep(2.0)
            burst = await self._start_all(jobs)
            await asyncio.sleep(_SETTLE_S)
            for measurements in (self._durations, self._lags, self._errors, self._waiting):
                measurements.clear()
            print("measuring", flush=True)
            using = []
            if self._task["users"]:
                using.append(group.create_task(self._list_jobs(len(jobs))))
                using.append(group.create_task(self._stop_and_start_jobs(jobs)))
            await asyncio.sleep(self._task["seconds"])
            for task in [*using, *others]:
                task.cancel()
        return {"burst": burst, **self._figures()}

    def _figures(self) -> dict[str, Any]:
        now = time.perf_counter()
        late = sum(now - since > _LATE_S for since in self._waiting.values())
        lags = [lag for lags_of_cause in self._lags.values() for lag in lags_of_cause]
        return {
            **{f"{kind}_ms": percentiles(took) for kind, took in sorted(self._durations.items())},
            "reconcile_lag_s": percentiles(lags, 3),
            "reconcile_lag_by_cause_s": {cause: percentiles(lags, 3) for cause, lags in sorted(self._lags.items())},
            "requests_per_s": {
                kind: round(len(took) / self._task["seconds"], 1) for kind, took in sorted(self._durations.items())
            },
            "errors": sum(self._errors.values()) + late,
            "errors_by_kind": {**self._errors, **({"never reconciled": late} if late else {})},
        }

    async def _create(self) -> list[str]:
        client = self._connection()
        form = secrets.token_hex(8)
        file = f'--{form}\r\nContent-Disposition: form-data; name="file"; filename="job.py"\r\n\r\n'.encode()
        body = file + _CODE + f"\r\n--{form}--\r\n".encode()
        artifact = await client.request("POST", "/artifacts", body, f"multipart/form-data; boundary={form}")
        jobs = []
        for number in range(self._task["jobs"]):
            spec = {
                "metadata": {"name": f"job-{number}", "labels": {"team": f"t{number % 10}"}},
                "spec": {"main": "job.py", "checkpoint": f"/nowhere/shared/job-{number}"},
            }
            created = {"spec": spec, "artifact": artifact["id"], "start": False}
            jobs.append((await client.request("POST", "/jobs", json.dumps(created).encode()))["id"])
        return jobs

    async def _start_all(self, jobs: list[str]) -> dict[str, Any]:
        began = time.perf_counter()
        todo = iter(jobs)

        async def start() -> None:
            client = self._connection()
            for job in todo:
                await self._change_state(client, job, "start", "RUNNING")

        await asyncio.gather(*(start() for _ in range(_CONCURRENCY)))
        requested_s = time.perf_counter() - began
        async with asyncio.timeout(_BURST_S):
            while (running := sum(state == "RUNNING" for state in self._states.values())) < len(jobs):
                print(f"{running} of {len(jobs)} run; errors: {dict(self._errors)}", file=sys.stderr, flush=True)
                self._state_changed.clear()
                await self._state_changed.wait()
                await asyncio.sleep(_PROGRESS_INTERVAL_S)
        lags = [lag for lags_of_cause in self._lags.values() for lag in lags_of_cause]
        return {
            "requested_s": round(requested_s, 1),
            "running_s": round(time.perf_counter() - began, 1),
            "reconcile_lag_s": percentiles(lags, 3),
        }

    async def _change_state(self, client: Connection, job: str, action: str, desired: str) -> None:
        self._waiting[job, desired] = began = time.perf_counter()
        try:
            await client.request("POST", f"/jobs/{job}/{action}")
        except (OSError, RequestFailed) as error:
            self._record_error(action, error)
        else:
            self._record("action", (time.perf_counter() - began) * 1000)

    async def _list_jobs(self, jobs: int) -> None:
        client = self._connection()
        cursor, seen = "", 0
        while True:
            began = time.perf_counter()
            try:
                page = await client.request("GET", f"/jobs?limit={_PAGE}{cursor}")
            except (OSError, RequestFailed) as error:
                self._record_error("list", error)
            else:
                self._record("list", (time.perf_counter() - began) * 1000)
                seen += len(page["data"])
                cursor = f"&starting_after={page['next']}" if page["has_more"] else ""
                if not cursor:
                    if seen != jobs:
                        self._errors[f"list: {seen} jobs instead of {jobs}"] += 1
                    seen = 0
            await asyncio.sleep(_LIST_INTERVAL_S)

    async def _stop_and_start_jobs(self, jobs: list[str]) -> None:
        """Stop and start jobs alternately."""
        client = self._connection()
        stopped: list[str] = []
        while True:
            await asyncio.sleep(_ACTION_INTERVAL_S)
            again = next((job for job in stopped if self._states.get(job) == "STOPPED"), None)
            if again is not None and len(stopped) > 3:
                stopped.remove(again)
                await self._change_state(client, again, "start", "RUNNING")
            else:
                job = random.choice([job for job in jobs if self._states.get(job) == "RUNNING"])
                stopped.append(job)
                await self._change_state(client, job, "stop", "STOPPED")

    async def _follow_events(self) -> None:
        """Follow the service's events, as a dashboard does, and reconnect when the service closes the stream."""
        moves = {"RUNNING": "RUNNING", "STOPPED": "EXITED"}
        after = ""
        while True:
            async for line in self._connection().lines(f"/events?type=job.state{after}"):
                if line.startswith("id: "):
                    after = f"&after={line[4:]}"
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    self._states[event["job"]] = to = event["data"]["to"]
                    self._state_changed.set()
                    if to in moves:
                        self._record_lag(event["job"], moves[to], f"report {moves[to]}")

    async def _measure_delay(self) -> None:
        """Measure the delay of this process itself, which all figures include."""
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._record("generator_delay", (time.perf_counter() - due) * 1000)

    def _record(self, kind: str, value: float) -> None:
        self._durations[kind].append(value)

    def _record_error(self, kind: str, error: Exception) -> None:
        reason = str(error.status) if isinstance(error, RequestFailed) else type(error).__name__
        if (known := f"{kind}: {reason}") not in self._errors:
            print(f"{kind}: {str(error)[:300]}", file=sys.stderr, flush=True)
        self._errors[known] += 1

    def _on_spec(self, job: str, desired: str, at: float) -> None:
        self._record_lag(job, desired, {"RUNNING": "start", "STOPPED": "stop"}.get(desired, "other"))

    def _on_report(self, job: str, state: str, at: float) -> None:
        if state in ("RUNNING", "EXITED"):
            self._waiting[job, state] = at

    def _record_lag(self, job: str, state: str, cause: str) -> None:
        since = self._waiting.pop((job, state), None)
        if since is not None:
            self._lags[cause].append(time.perf_counter() - since)

    def _connection(self) -> Connection:
        return Connection(self._task["host"], self._task["port"], self._task["admin"])


def percentiles(values: list[float], digits: int = 1) -> dict[str, float]:
    """Median, 99th percentile, maximum and count of values."""
    ranked = sorted(values) or [0.0]
    at = {name: ranked[min(len(ranked) - 1, int(share * len(ranked)))] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {
        **{name: round(value, digits) for name, value in at.items()},
        "max": round(ranked[-1], digits),
        "n": len(values),
    }


async def _main() -> None:
    print(json.dumps(await Load(json.load(sys.stdin)).run()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
