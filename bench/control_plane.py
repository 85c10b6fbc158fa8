"""One control plane on PostgreSQL under the load of 100 agents with 1,000 jobs.

``python -m bench.control_plane --json``; ``--minutes 1`` for a first impression. The service is the process that
``clonos up`` starts. The benchmark starts its own durable PostgreSQL. A third process (`bench.load`) simulates agents
and users over real HTTP. All three share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
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

from bench.fleet import EPOCH_S
from bench.progress import exit_on_sigterm, log_progress
from clonos_api.store.db import schema
from support.postgres import PostgresServer

_READY_S: Final = 60
_SAMPLE_S: Final = 1.0
_MB: Final = 1 << 20


@contextlib.contextmanager
def service(home: Path, database: str, profiler: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Start the control plane as ``clonos up`` does; yields its address and process.

    Args:
        home: ``CLONOS_HOME``.
        database: URL of the control plane's database.
        profiler: Command of a profiler that runs the service; empty for none.
    """
    ready = home / "ready.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")} | {
        "CLONOS_HOME": str(home),
        "CLONOS_LOG_LEVEL": "warning",
        "CLONOS_API__PORT": "0",
        "CLONOS_API__READY_FILE": str(ready),
        "CLONOS_API__DATABASE_URL": database,
        "CLONOS_API__SHARED_CHECKPOINTS": "/nowhere/shared",
        # One client with one token sends the requests of many users.
        "CLONOS_API__LIMITS__REQUESTS_PER_S": "10000",
        "CLONOS_API__LIMITS__BURST": "10000",
        # Short runs must cover the end of a stream and its reconnect too.
        "CLONOS_API__LIMITS__STREAM_S": "30",
        "CLONOS_API__LIMITS__STREAMS_PER_TOKEN": "10000",
        "CLONOS_API__LIMITS__REQUESTS_AT_ONCE": "10000",
    }
    process = subprocess.Popen(
        [*profiler, sys.executable, "-m", "clonos_api"], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the control plane did not start")
            time.sleep(0.05)
        state = json.loads(ready.read_text())
        yield state["url"], psutil.Process(state["pid"])
    finally:
        # Stop only the service, because a profiler must still write its file.
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(json.loads(ready.read_text())["pid"], signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Meter:
    """Memory and CPU while the load runs.

    Args:
        service: The control plane.
        postgres: First process of PostgreSQL.
        load: The load generator.
    """

    def __init__(self, service: psutil.Process, postgres: psutil.Process, load: psutil.Process) -> None:
        self._service, self._postgres, self._load = service, postgres, load
        self._rss: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._cpu = self._cpu_times()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Stop sampling; return memory and CPU figures."""
        self._stopped.set()
        self._thread.join()
        seconds = time.monotonic() - self._began
        cores = {name: round((spent - self._cpu[name]) / seconds, 3) for name, spent in self._cpu_times().items()}
        sizes = [size for _, size in self._rss]
        later = self._rss[len(self._rss) // 3 :]
        return {
            "rss_mb": {
                "min": round(min(sizes), 1),
                "max": round(max(sizes), 1),
                "last": round(sizes[-1], 1),
                # Over the last two thirds, because caches fill in the first third.
                "slope_per_min": round(_slope(later) * 60, 3),
            },
            "cpu_cores": cores,
        }

    def _sample(self) -> None:
        while not self._stopped.wait(_SAMPLE_S):
            self._rss.append((time.monotonic(), self._service.memory_info().rss / _MB))

    def _cpu_times(self) -> dict[str, float]:
        return {"service": _cpu(self._service), "postgresql": _cpu(self._postgres), "load": _cpu(self._load)}


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of a process and of its children, including exited children."""
    spent = sum(process.cpu_times()[:4])
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(child.cpu_times()[:2])
    return float(spent)


def _slope(points: list[tuple[float, float]]) -> float:
    """Slope of the least-squares line through the points."""
    if len(points) < 2:
        return 0.0
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def measure(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """All figures, by the keys of `bench/README.md`."""
    postgres = PostgresServer(durable=True)
    try:
        postgres.start()
        database = postgres.create_database("clonos")
        schema.upgrade(database)
        with service(home, database, arguments.profiler) as (url, process):
            address = httpx.URL(url)
            admin = (home / "admin.token").read_text().strip()
            log_progress(f"{url}: tokens for {arguments.agents} agents")
            task = {
                "host": address.host,
                "port": address.port,
                "admin": admin,
                "agents": _tokens(url, admin, arguments.agents),
                "jobs": arguments.jobs,
                "seconds": arguments.minutes * 60,
                "epoch_s": arguments.epoch_s,
                "users": not arguments.no_users,
            }
            load = subprocess.Popen(
                [sys.executable, "-m", "bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            try:
                assert load.stdin is not None
                assert load.stdout is not None
                load.stdin.write(json.dumps(task))
                load.stdin.close()
                log_progress(f"{arguments.jobs} jobs are created and started")
                if load.stdout.readline().strip() != "measuring":
                    raise RuntimeError("the load generator exited before the measurement")
                log_progress(f"all run; measuring for {arguments.minutes:g} minutes")
                meter = Meter(process, psutil.Process(postgres.pid), psutil.Process(load.pid))
                figures = json.loads(load.stdout.readline())
                used = meter.stop()
            finally:
                load.kill()
                load.wait()
    finally:
        postgres.remove()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "jobs": arguments.jobs,
        "agents": arguments.agents,
        "minutes": arguments.minutes,
        "epoch_s": arguments.epoch_s,
        **figures,
        **used,
        "targets": _targets(figures),
    }


def _tokens(url: str, admin: str, agents: int) -> dict[str, str]:
    with httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {admin}"}, trust_env=False) as http:
        tokens = {}
        for number in range(agents):
            name = f"host-{number:03}"
            response = http.post("/tokens", json={"name": name, "role": "agent", "host": name}).raise_for_status()
            tokens[name] = response.json()["token"]
        return tokens


def _targets(figures: dict[str, Any]) -> dict[str, bool]:
    return {
        "heartbeat p99 <= 50 ms": figures["heartbeat_ms"]["p99"] <= 50,
        "list page p99 <= 100 ms": figures.get("list_ms", {"p99": 0})["p99"] <= 100,
        "reconcile lag p99 <= 1 s": figures["reconcile_lag_s"]["p99"] <= 1,
        "no errors": figures["errors"] == 0,
    }


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one line; default: indented")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--epoch-s", type=float, default=EPOCH_S, help="from one epoch of a job to the next")
    parser.add_argument("--no-users", action="store_true", help="nobody lists, starts or stops jobs")
    parser.add_argument("--profiler", type=shlex.split, default=[], metavar="COMMAND", help="wraps the service")
    arguments = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as home:
        print(json.dumps(measure(arguments, Path(home)), indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
