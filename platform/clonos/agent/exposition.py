"""Metrics of the agent for Prometheus (`AgentSettings.metrics`): CPU, memory, state and starts of its drivers.

Only the host can measure these values. The control plane serves the metrics of the jobs (`clonos_api.metrics`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Final

import psutil
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from clonos.errors import SpecError

_SNAPSHOT_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Driver:
    """A run on this host, for the metrics."""

    job: str
    run: str
    role: str  # ``driver`` or ``standby``
    state: str  # state of the run (`clonos.resources.jobs.Run`)
    attempts: int  # number of driver processes started, including the job's earlier runs
    pid: int | None


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """The values of the agent's metrics at one moment."""

    drivers: tuple[Driver, ...]  # the runs on this host
    slots: int  # maximum number of drivers
    pool_drivers: int  # number of warm drivers without a job
    unanswered_s: float  # seconds since the last response of the control plane


@contextlib.contextmanager
def serve_metrics(address: str, snapshot: Callable[[], AgentSnapshot]) -> Iterator[str]:
    """Serve ``/metrics`` at ``host:port`` until the context exits, and yield the address; port 0 selects a free port.

    The endpoint has no authentication. `snapshot` is called in the caller's event loop.

    Raises:
        SpecError: The address is invalid or in use.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()

    async def snapshot_in_loop() -> AgentSnapshot:
        return snapshot()

    def take_snapshot() -> AgentSnapshot:
        return asyncio.run_coroutine_threadsafe(snapshot_in_loop(), loop).result(_SNAPSHOT_TIMEOUT_S)

    registry = CollectorRegistry()
    registry.register(AgentCollector(take_snapshot))
    ProcessCollector(namespace="clonos_agent", registry=registry)
    try:
        server, _ = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError) as error:
        what = f"The agent cannot listen at {address!r}: {error}."
        raise SpecError(what, hint="--metrics takes HOST:PORT.") from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        # In a thread: the server takes up to half a second to stop, and the agent's exit does not wait for that.
        threading.Thread(target=_shut_down, args=(server,), daemon=True).start()


def _shut_down(server: socketserver.BaseServer) -> None:
    server.shutdown()
    server.server_close()


class AgentCollector:
    """Collects the agent's metrics: it takes a snapshot for each scrape."""

    def __init__(self, snapshot: Callable[[], AgentSnapshot]) -> None:
        self._snapshot = snapshot
        # Highest value so far: a counter must not decrease when a worker exits and no parent counts its CPU time.
        self._cpu_s: dict[tuple[str, int | None], float] = {}

    def collect(self) -> Iterator[Metric]:
        """All metric families; none if the agent does not answer in time."""
        try:
            agent = self._snapshot()
        except (TimeoutError, RuntimeError, OSError, CancelledError):
            return  # the agent stops or is overloaded; the metrics of its own process are still served
        yield _gauge("clonos_agent_slots", "Maximum number of drivers at the same time.", agent.slots)
        yield _gauge("clonos_agent_pool_drivers", "Warm drivers without a job.", agent.pool_drivers)
        text = "Seconds since the last response of the control plane."
        yield _gauge("clonos_agent_unanswered_seconds", text, agent.unanswered_s)
        labels = ["job_name", "run", "role"]
        state = GaugeMetricFamily("clonos_driver_state", "1 for the current state of a run.", labels=[*labels, "state"])
        started = CounterMetricFamily("clonos_driver_starts", "Processes started for a run.", labels=labels)
        cpu = CounterMetricFamily(
            "clonos_driver_cpu_seconds", "CPU time of a driver with its JVM and workers.", labels=labels
        )
        memory = GaugeMetricFamily("clonos_driver_memory_bytes", "Resident memory of these processes.", labels=labels)
        current = {(driver.run, driver.pid) for driver in agent.drivers}
        exited = self._cpu_s.keys() - current
        for driver in agent.drivers:
            values = [driver.job, driver.run, driver.role]
            state.add_metric([*values, driver.state], 1)
            started.add_metric(values, driver.attempts)
            usage = _usage(driver.pid) if driver.pid else None
            if usage is not None:
                key = (driver.run, driver.pid)
                self._cpu_s[key] = max(usage[0], self._cpu_s.get(key, 0.0))
                memory.add_metric(values, usage[1])
            cpu.add_metric(values, sum(seconds for (run, _), seconds in self._cpu_s.items() if run == driver.run))
        runs = {driver.run for driver in agent.drivers}
        for run, pid in exited:
            if run not in runs:
                del self._cpu_s[run, pid]
        yield from (state, started, cpu, memory)


def _usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes of a process and its descendants; None if it has exited."""
    cpu_s, resident_bytes = 0.0, 0
    try:
        root = psutil.Process(pid)
        # Children first: the CPU time of a child that exits during the loop is then in its parent's figures.
        processes = [*reversed(root.children(recursive=True)), root]
    except psutil.Error:
        return None
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # The children's times are the times of exited workers.
            cpu_s += times.user + times.system + times.children_user + times.children_system
            resident_bytes += process.memory_info().rss
    return cpu_s, resident_bytes


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
