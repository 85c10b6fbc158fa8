"""The load of `bench.control_plane`, in one process: agents, and people who list, start and stop jobs.

Reads its task as JSON from stdin, says ``measuring`` on stdout when all jobs run, and what it measured as JSON last.
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

from bench.connection import Connection, Refused
from bench.fleet import Agent, Hooks

_CODE: Final = (
    b'import clonos\n\n\n@clonos.job(name="bench")\ndef bench(ctx):\n    ctx.sink(ctx.source("orders"), topic="out")\n'
)
_PAGE: Final = 50
_PAGES_EVERY_S: Final = 0.5
_ACT_EVERY_S: Final = 1.0
_SETTLE_S: Final = 15.0
_AT_ONCE: Final = 8
_LATE_S: Final = 1.0
_TICK_S: Final = 0.05
_BURST_S: Final = 300.0
_SAID_EVERY_S: Final = 1.0


class Load:
    """One run of it.

    Args:
        task: ``host``, ``port``, ``admin``, ``agents`` (name → token), ``jobs``, ``seconds``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._took: dict[str, list[float]] = defaultdict(list)
        self._lags: dict[str, list[float]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self._waiting: dict[tuple[str, str], float] = {}
        self._states: dict[str, str] = {}
        self._moved = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Make the jobs, start them all, measure."""
        jobs = await self._create()
        generations: dict[str, int] = {}
        hooks = Hooks(self._note, self._fault, self._ordered, self._told)
        slots = -(-3 * len(jobs) // (2 * len(self._task["agents"])))
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._watch()), group.create_task(self._tick())]
            for name, token in self._task["agents"].items():

                def connect(token: str = token) -> Connection:
                    return Connection(self._task["host"], self._task["port"], token)

                others.append(group.create_task(Agent(name, slots, connect, generations, hooks).live()))
            await asyncio.sleep(2.0)
            burst = await self._start_all(jobs)
            await asyncio.sleep(_SETTLE_S)
            for kept in (self._took, self._lags, self._errors, self._waiting):
                kept.clear()  # type: ignore[attr-defined]
            self._say("measuring")
            using = [group.create_task(self._list(len(jobs))), group.create_task(self._act(jobs))]
            await asyncio.sleep(self._task["seconds"])
            for one in [*using, *others]:
                one.cancel()
        return {"burst": burst, **self._found()}

    def _found(self) -> dict[str, Any]:
        now = time.perf_counter()
        late = sum(now - since > _LATE_S for since in self._waiting.values())
        lags = [one for some in self._lags.values() for one in some]
        return {
            **{f"{kind}_ms": shares(took) for kind, took in sorted(self._took.items())},
            "reconcile_lag_s": shares(lags, 3),
            "reconcile_lag_by_cause_s": {cause: shares(some, 3) for cause, some in sorted(self._lags.items())},
            "requests_per_s": {
                kind: round(len(took) / self._task["seconds"], 1) for kind, took in sorted(self._took.items())
            },
            "errors": sum(self._errors.values()) + late,
            "errors_by_kind": {**self._errors, **({"never reconciled": late} if late else {})},
        }

    async def _create(self) -> list[str]:
        people = self._connection()
        form = secrets.token_hex(8)
        file = f'--{form}\r\nContent-Disposition: form-data; name="file"; filename="job.py"\r\n\r\n'.encode()
        body = file + _CODE + f"\r\n--{form}--\r\n".encode()
        artifact = await people.ask("POST", "/artifacts", body, f"multipart/form-data; boundary={form}")
        jobs = []
        for number in range(self._task["jobs"]):
            spec = {"metadata": {"name": f"job-{number}", "labels": {"team": f"t{number % 10}"}}}
            spec["spec"] = {"main": "job.py", "checkpoint": f"/nowhere/shared/job-{number}"}  # type: ignore[dict-item]
            created = {"spec": spec, "artifact": artifact["id"], "start": False}
            jobs.append((await people.ask("POST", "/jobs", json.dumps(created).encode()))["id"])
        return jobs

    async def _start_all(self, jobs: list[str]) -> dict[str, Any]:
        began = time.perf_counter()
        todo = iter(jobs)

        async def start() -> None:
            people = self._connection()
            for job in todo:
                await self._ask_for(people, job, "start", "RUN")

        await asyncio.gather(*(start() for _ in range(_AT_ONCE)))
        asked_s = time.perf_counter() - began
        async with asyncio.timeout(_BURST_S):
            while (running := sum(state == "RUNNING" for state in self._states.values())) < len(jobs):
                print(f"{running} of {len(jobs)} run; errors: {dict(self._errors)}", file=sys.stderr, flush=True)
                self._moved.clear()
                await self._moved.wait()
                await asyncio.sleep(_SAID_EVERY_S)
        lags = [one for some in self._lags.values() for one in some]
        return {
            "asked_s": round(asked_s, 1),
            "running_s": round(time.perf_counter() - began, 1),
            "reconcile_lag_s": shares(lags, 3),
        }

    async def _ask_for(self, people: Connection, job: str, what: str, goal: str) -> None:
        self._waiting[job, goal] = began = time.perf_counter()
        try:
            await people.ask("POST", f"/jobs/{job}/{what}")
        except (OSError, Refused) as error:
            self._fault(what, error)
        else:
            self._note("action", (time.perf_counter() - began) * 1000)

    async def _list(self, jobs: int) -> None:
        people = self._connection()
        cursor, seen = "", 0
        while True:
            began = time.perf_counter()
            try:
                page = await people.ask("GET", f"/jobs?limit={_PAGE}{cursor}")
            except (OSError, Refused) as error:
                self._fault("list", error)
            else:
                self._note("list", (time.perf_counter() - began) * 1000)
                seen += len(page["data"])
                cursor = f"&starting_after={page['next']}" if page["has_more"] else ""
                if not cursor:
                    if seen != jobs:
                        self._errors[f"list: {seen} jobs instead of {jobs}"] += 1
                    seen = 0
            await asyncio.sleep(_PAGES_EVERY_S)

    async def _act(self, jobs: list[str]) -> None:
        """Stop a job, start another one, and so on."""
        people = self._connection()
        stopped: list[str] = []
        while True:
            await asyncio.sleep(_ACT_EVERY_S)
            again = next((job for job in stopped if self._states.get(job) == "STOPPED"), None)
            if again is not None and len(stopped) > 3:
                stopped.remove(again)
                await self._ask_for(people, again, "start", "RUN")
            else:
                job = random.choice([job for job in jobs if self._states.get(job) == "RUNNING"])
                stopped.append(job)
                await self._ask_for(people, job, "stop", "STOP")

    async def _watch(self) -> None:
        """Follow the service's events, as a dashboard does: the service ends a stream in time, and it comes back."""
        moves = {"RUNNING": "RUNNING", "STOPPED": "EXITED"}
        after = ""
        while True:
            async for line in self._connection().lines(f"/events?type=job.state{after}"):
                if line.startswith("id: "):
                    after = f"&after={line[4:]}"
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    self._states[event["job"]] = to = event["data"]["to"]
                    self._moved.set()
                    if to in moves:
                        self._reconciled(event["job"], moves[to], f"report {moves[to]}")

    async def _tick(self) -> None:
        """How late this process itself is: its share of all figures."""
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._note("generator_delay", (time.perf_counter() - due) * 1000)

    def _note(self, kind: str, value: float) -> None:
        self._took[kind].append(value)

    def _fault(self, kind: str, error: Exception) -> None:
        what = str(error.status) if isinstance(error, Refused) else type(error).__name__
        if (known := f"{kind}: {what}") not in self._errors:
            print(f"{kind}: {str(error)[:300]}", file=sys.stderr, flush=True)
        self._errors[known] += 1

    def _ordered(self, job: str, goal: str, at: float) -> None:
        self._reconciled(job, goal, {"RUN": "start", "STOP": "stop"}.get(goal, "other"))

    def _told(self, job: str, state: str, at: float) -> None:
        if state in ("RUNNING", "EXITED"):
            self._waiting[job, state] = at

    def _reconciled(self, job: str, what: str, cause: str) -> None:
        since = self._waiting.pop((job, what), None)
        if since is not None:
            self._lags[cause].append(time.perf_counter() - since)

    def _connection(self) -> Connection:
        return Connection(self._task["host"], self._task["port"], self._task["admin"])

    @staticmethod
    def _say(what: str) -> None:
        print(what, flush=True)


def shares(values: list[float], digits: int = 1) -> dict[str, float]:
    """Of many values the middle, the 99th of a hundred and the largest."""
    ranked = sorted(values) or [0.0]
    at = {name: ranked[min(len(ranked) - 1, int(share * len(ranked)))] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {
        **{name: round(one, digits) for name, one in at.items()},
        "max": round(ranked[-1], digits),
        "n": len(values),
    }


async def _main() -> None:
    print(json.dumps(await Load(json.load(sys.stdin)).run()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
