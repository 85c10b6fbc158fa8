"""The measurement of this machine and of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from clonos.agent import capacity
from clonos.agent.capacity import CapacityMeter, MeasuredProcess

MIB = 1 << 20
GROWN_S = 1000.0
HOLDS = "import sys; held = bytearray(b'x') * (64 << 20); print('held', flush=True); sys.stdin.read()"
# A parent whose child shares its pages.
FORKS = HOLDS.replace("print", "import os; os.fork() and print")


@pytest.fixture(params=[HOLDS, FORKS], ids=["one process", "forked"])
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.communicate(timeout=60)


def test_pages_that_processes_share_count_once(process: subprocess.Popen[bytes]) -> None:
    measured = CapacityMeter().measure([MeasuredProcess(standby=False, pid=process.pid, age_s=GROWN_S)])
    assert measured.driver_bytes is not None
    assert 64 * MIB < measured.driver_bytes < 110 * MIB
    assert measured.standby_bytes is None
    assert measured.cores == len(os.sched_getaffinity(0))
    assert 0 < measured.available_bytes < measured.memory_bytes == psutil.virtual_memory().total


def test_the_cost_is_kept_and_a_young_process_has_it_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {1: 900 * MIB, 2: 300 * MIB}
    monkeypatch.setattr(capacity, "_memory_bytes", memory.get)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=4000 * MIB, available=2000 * MIB))
    meter = CapacityMeter()
    driver = MeasuredProcess(standby=False, pid=1, age_s=GROWN_S)
    young = MeasuredProcess(standby=True, pid=2, age_s=5.0)
    alone = meter.measure([young])
    assert (alone.standby_bytes, alone.driver_bytes) == (None, None), "it has not loaded all yet"
    assert alone.available_bytes == 2000 * MIB
    both = meter.measure([driver, young])
    assert (both.standby_bytes, both.driver_bytes) == (None, 900 * MIB)
    assert both.available_bytes == (2000 - 600) * MIB, "a standby will take as much as a driver"
    kept = meter.measure([MeasuredProcess(standby=False, pid=3, age_s=GROWN_S)])
    assert kept.driver_bytes == 900 * MIB, "process 3 has exited"
    assert kept.available_bytes == 2000 * MIB


def test_busy_cores_are_those_since_the_last_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(0.0, 100.0), (10.0, 115.0), (20.0, 115.0)])
    monkeypatch.setattr(capacity, "_cpu_s", lambda: next(times))
    meter = CapacityMeter()
    assert [meter.measure([]).busy_cores for _ in range(2)] == [1.5, 0.0]
