"""Ten ordinary callers beside one hostile caller: how much longer do the ordinary ones wait?

``python -m bench.hostile_caller --json`` takes about two minutes. The service is ``python -m clonos_api`` with SQLite
and its default limits, on the loopback interface. Quiet and hostile phases alternate, so that other load on the machine
affects both. Each set of callers is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.load import percentiles
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.auth.rates import Buckets, RateLimits, Refusals
from clonos_api.auth.turns import Turns
from clonos_api.guards.bodies import BodyLimits
from support.callers import HostileCaller, OrdinaryCaller
from support.connection import Connection
from support.serving import ApiProcess, Served

_MB: Final = 1 << 20
_SAMPLE_S: Final = 0.1
_CALLERS: Final = 10
_CALLS: Final = 20_000
# The hostile caller would be another machine; here its process must not take the processors of the service.
_NICENESS: Final = 15
_TARGET: Final = 3.0
_PEAK_MB: Final = 400  # of the 512 MB that a replica has in compose.yaml


class Memory:
    """The largest resident memory of a process with its children, while it is sampled."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._stopped = threading.Event()
        self.peak_mb = 0.0
        self.children_mb = 0.0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    @property
    def now_mb(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss / _MB)

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(_SAMPLE_S):
            self.peak_mb = max(self.peak_mb, self.now_mb)
            children = 0.0
            for child in self.process.children():
                try:
                    children += child.memory_info().rss / _MB
                except psutil.NoSuchProcess:
                    continue
            self.children_mb = max(self.children_mb, children)


def measure(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """All figures, by the keys of `bench/README.md`."""
    with ApiProcess(home, reconcile=True) as process, _callers() as callers:
        service = process.served
        memory = Memory(process.process.pid)
        task = {"address": _address(service), "seconds": arguments.seconds}
        ordinary = {**task, "tokens": [_token(service, f"user-{number}") for number in range(_CALLERS)]}
        hostile = {**task, "token": _token(service, "hostile"), "only": arguments.only}
        asyncio.run(_create(service, ordinary["tokens"]))
        begin_mb, rounds = memory.now_mb, []
        for _ in range(arguments.rounds):
            quiet = _phase(memory.process, callers, {"ordinary": ordinary})
            beside = _phase(memory.process, callers, {"ordinary": ordinary, "hostile": hostile})
            ratio = round(beside["all_ms"]["p99"] / quiet["all_ms"]["p99"], 2)
            rounds.append({"quiet": quiet, "hostile": beside, "p99_ratio": ratio})
            print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
        memory.stop()
        live = httpx.get(f"{service.url}/health/live", trust_env=False, timeout=10).status_code
    ratio = statistics.median(each["p99_ratio"] for each in rounds)
    refused = sum(each[phase]["refused"] for each in rounds for phase in ("quiet", "hostile"))
    return {
        "seconds": arguments.seconds,
        "rounds": rounds,
        "p99_ratio": ratio,
        "refused": refused,
        "rss_mb": {
            "begin": round(begin_mb, 1),
            "peak": round(memory.peak_mb, 1),
            "children_peak": round(memory.children_mb, 1),
        },
        "limits_us": asyncio.run(_limits_us()),
        "live": live,
        "targets": {
            f"p99 ratio <= {_TARGET:g}": ratio <= _TARGET,
            "none is refused": refused == 0 and live == 200,
            f"peak RSS <= {_PEAK_MB} MB": memory.peak_mb <= _PEAK_MB,
        },
    }


def _token(service: Served, subject: str) -> str:
    with service.client() as admin:
        body = {"name": subject, "role": "operator", "subject": subject}
        return str(admin.post("/tokens", json=body).raise_for_status().json()["token"])


def _address(service: Served) -> tuple[str, int]:
    url = httpx.URL(service.url)
    assert url.port is not None
    return url.host, url.port


async def _create(service: Served, tokens: list[str]) -> None:
    host, port = _address(service)
    for number, token in enumerate(tokens):
        caller = OrdinaryCaller(Connection(host, port, token), f"job-{number}")
        await caller.create()
        caller.close()


def _phase(
    service: psutil.Process, callers: dict[str, subprocess.Popen[str]], tasks: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Let callers work at the same time; return the figures of the ordinary ones."""
    before, begun = sum(service.cpu_times()[:2]), time.monotonic()
    for role, task in tasks.items():
        stdin = callers[role].stdin
        assert stdin is not None
        stdin.write(json.dumps(task) + "\n")
        stdin.flush()
    figures = {role: _line(callers[role]) for role in tasks}
    cores = round((sum(service.cpu_times()[:2]) - before) / (time.monotonic() - begun), 2)
    hostile = {"hostile_answers": figures["hostile"]} if "hostile" in tasks else {}
    return {**figures["ordinary"], "service_cores": cores, **hostile}


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@contextlib.contextmanager
def _callers() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each kind of callers; it does one task after the other."""
    processes = {
        role: subprocess.Popen(
            [sys.executable, "-m", "bench.hostile_caller", "--role", role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in ("ordinary", "hostile")
    }
    try:
        for process in processes.values():
            _line(process)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


async def _limits_us() -> float:
    """CPU time of the limits of one request: its rate, its turn and its body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def nothing(_: Message) -> None:
        pass

    async def receive() -> Message:
        return {"type": "http.request"}

    async def spent_us(called: ASGIApp) -> float:
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/api/v1/jobs", "headers": []}
        scope["clonos.principal"] = Principal("token", "ada", Role.VIEWER)
        begun = time.thread_time()
        for _ in range(_CALLS):
            await called(scope, receive, nothing)
        return (time.thread_time() - begun) / _CALLS * 1e6

    buckets = Buckets(rate=1e9, burst=1_000_000)
    limited = RateLimits(
        Turns(BodyLimits(app, limit=lambda method, path: 1_000_000), at_once=4),
        people=buckets,
        hosts=buckets,
        refusals=Refusals(rate=1, burst=1),
    )
    return round(await spent_us(limited) - await spent_us(app), 1)


async def _ordinary(task: dict[str, Any]) -> dict[str, Any]:
    host, port = task["address"]
    callers = [
        OrdinaryCaller(Connection(host, port, token), f"job-{number}") for number, token in enumerate(task["tokens"])
    ]
    await asyncio.gather(*(caller.use(task["seconds"]) for caller in callers))
    for caller in callers:
        caller.close()
    durations: dict[str, list[float]] = {}
    for caller in callers:
        for kind, taken in caller.durations_ms.items():
            durations.setdefault(kind, []).extend(taken)
    refused = [each for caller in callers for each in caller.refused]
    for each in refused[:5]:
        print(each, file=sys.stderr)
    return {
        "all_ms": percentiles([taken for kind in durations.values() for taken in kind]),
        "by_kind_ms": {kind: percentiles(taken) for kind, taken in sorted(durations.items())},
        "refused": len(refused),
    }


async def _hostile(task: dict[str, Any]) -> dict[str, Any]:
    host, port = task["address"]
    caller = HostileCaller(lambda: Connection(host, port, task["token"]), (host, port), "job-0")
    await caller.attack(task["seconds"], only=filter(None, task["only"].split(",")))
    return dict(caller.answers)


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one line; default: indented")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each phase")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of a quiet and a hostile phase")
    parser.add_argument("--only", default="", metavar="ATTACK,…", help="some attacks; default: all at once")
    parser.add_argument("--role", choices=("ordinary", "hostile"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        work = _ordinary
        if arguments.role == "hostile":
            os.nice(_NICENESS)
            work = _hostile
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(asyncio.run(work(json.loads(line)))), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as home:
        print(json.dumps(measure(arguments, Path(home)), indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
