"""What Prometheus reads of an agent, if it is asked to tell (`AgentSettings.metrics`): its drivers as processes.

What jobs read and publish, the control plane tells; this is what only the host can see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
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
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError) as error:
        raise SpecError(f"Nothing can listen at {address!r}: {error}.", hint="--metrics takes HOST:PORT.") from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE_S)


class _Collector:
    """Looks when it is asked."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        try:
            seen = self._look()
        except (TimeoutError, RuntimeError):
            return  # the agent ends, or is busier than it should be; what its process costs is told all the same
        yield _one("eos_agent_slots", "Drivers that the agent may run at once.", seen.slots)
        yield _one("eos_agent_spares", "Warm drivers without a job.", seen.spares)
        yield _one("eos_agent_silent_seconds", "Since the control plane answered last.", seen.silent_s)
        labels = ["job_name", "run", "role"]
        state = GaugeMetricFamily("eos_driver_state", "1 for the state that a run is in.", labels=[*labels, "state"])
        started = CounterMetricFamily("eos_driver_starts", "Processes that were started for a run.", labels=labels)
        cpu = CounterMetricFamily("eos_driver_cpu_seconds", "CPU of a driver with its JVM and workers.", labels=labels)
        memory = GaugeMetricFamily("eos_driver_memory_bytes", "Resident memory of the same.", labels=labels)
        for one in seen.drivers:
            about = [one.job, one.run, one.role]
            state.add_metric([*about, one.state], 1)
            started.add_metric(about, one.attempts)
            used = _used(one.pid) if one.pid else None
            if used is not None:
                cpu.add_metric(about, used[0])
                memory.add_metric(about, used[1])
        yield from (state, started, cpu, memory)


def _used(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes of a process and all below it; None: it is gone."""
    seconds, resident = 0.0, 0
    try:
        processes = [root := psutil.Process(pid), *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            # Workers that have ended are their parent's children.
            seconds += times.user + times.system + times.children_user + times.children_system
            resident += one.memory_info().rss
    return seconds, resident


def _one(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
