"""What Prometheus reads of an agent, if it is asked to tell (`AgentSettings.metrics`): its drivers as processes.

What jobs read and publish, the control plane tells; this is what only the host can see.
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

_PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Driver:
    """A run on this host.

    Attributes:
        role: ``driver`` or ``standby``.
        state: Of the run (`RunState`).
        attempts: Processes that were started for it.
    """

    job: str
    run: str
    role: str
    state: str
    attempts: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the agent knows at one moment.

    Attributes:
        silent_s: Since the control plane answered last.
    """

    drivers: tuple[Driver, ...]
    slots: int
    spares: int
    silent_s: float


@contextlib.contextmanager
def exposed(address: str, look: Callable[[], Seen]) -> Iterator[str]:
    """Serve ``/metrics`` meanwhile; who may read it is a question of the address.

    Args:
        address: ``host:port``; port 0: any that is free.
        look: Called in the loop of whoever called this.

    Yields:
        The address.

    Raises:
        SpecError: Nothing can listen there.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()

    async def asked() -> Seen:
        return look()

    registry = CollectorRegistry()
    registry.register(_Collector(lambda: asyncio.run_coroutine_threadsafe(asked(), loop).result(_PATIENCE_S)))
    ProcessCollector(namespace="eos_agent", registry=registry)
    try:
        server, _ = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError) as error:
        raise SpecError(f"Nothing can listen at {address!r}: {error}.", hint="--metrics takes HOST:PORT.") from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        # In half a second, when it looks; whoever ends does not wait for that.
        threading.Thread(target=_end, args=(server,), daemon=True).start()


def _end(server: socketserver.BaseServer) -> None:
    server.shutdown()
    server.server_close()


class _Collector:
    """Looks when it is asked."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        # A counter must not go down: what ended between two looks, reaped by nobody, would be missing.
        self._used: dict[tuple[str, int | None], float] = {}

    def collect(self) -> Iterator[Metric]:
        try:
            seen = self._look()
        except (TimeoutError, RuntimeError, OSError, CancelledError):
            return  # the agent ends, or is busier than it should be; what its process costs is told all the same
        yield _one("eos_agent_slots", "Drivers that the agent may run at once.", seen.slots)
        yield _one("eos_agent_spares", "Warm drivers without a job.", seen.spares)
        yield _one("eos_agent_silent_seconds", "Since the control plane answered last.", seen.silent_s)
        labels = ["job_name", "run", "role"]
        state = GaugeMetricFamily("eos_driver_state", "1 for the state that a run is in.", labels=[*labels, "state"])
        started = CounterMetricFamily("eos_driver_starts", "Processes that were started for a run.", labels=labels)
        cpu = CounterMetricFamily("eos_driver_cpu_seconds", "CPU of a driver with its JVM and workers.", labels=labels)
        memory = GaugeMetricFamily("eos_driver_memory_bytes", "Resident memory of the same.", labels=labels)
        living = {(one.run, one.pid) for one in seen.drivers}
        ended = self._used.keys() - living
        for one in seen.drivers:
            about = [one.job, one.run, one.role]
            state.add_metric([*about, one.state], 1)
            started.add_metric(about, one.attempts)
            used = _used(one.pid) if one.pid else None
            if used is not None:
                key = (one.run, one.pid)
                self._used[key] = max(used[0], self._used.get(key, 0.0))
                memory.add_metric(about, used[1])
            cpu.add_metric(about, sum(spent for (run, _), spent in self._used.items() if run == one.run))
        runs = {one.run for one in seen.drivers}
        for run, pid in ended:
            if run not in runs:
                del self._used[run, pid]
        yield from (state, started, cpu, memory)


def _used(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes of a process and all below it; None: it is gone."""
    seconds, resident = 0.0, 0
    try:
        root = psutil.Process(pid)
        processes = [*reversed(root.children(recursive=True)), root]  # who ends meanwhile is in its parent's figures
    except psutil.Error:
        return None
    for one in processes:
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            # Workers that have ended are their parent's children.
            seconds += times.user + times.system + times.children_user + times.children_system
            resident += one.memory_info().rss
    return seconds, resident


def _one(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
