"""The measurement of this machine and of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from clonos.agent import capacity
from clonos.agent.capacity import CapacityMeter, MeasuredProcess

MIB = 1 << 20
HOLDS = "import sys; held = bytearray(b'x') * (64 << 20); print('held', flush=True); sys.stdin.read()"
# A parent whose child shares its pages.
FORKS = HOLDS.replace("print", "import os; os.fork(); print")


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
    measured = CapacityMeter().measure([MeasuredProcess(standby=False, pid=process.pid)])
    assert measured.driver_bytes is not None
    assert 64 * MIB < measured.driver_bytes < 110 * MIB
    assert measured.standby_bytes is None
    assert measured.cores == len(os.sched_getaffinity(0))
    assert 0 < measured.available_bytes < measured.memory_bytes == psutil.virtual_memory().total


def test_the_cost_is_kept_and_a_young_process_has_it_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {1: (900 * MIB, 500.0), 2: (300 * MIB, 5.0)}
    monkeypatch.setattr(capacity, "_memory", memory.get)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("", (), {"total": 4000 * MIB, "available": 2000 * MIB}))
    meter = CapacityMeter()
    first = MeasuredProcess(standby=True, pid=1)
    assert meter.measure([first]).standby_bytes == 900 * MIB
    both = meter.measure([first, MeasuredProcess(standby=True, pid=2)])
    assert both.standby_bytes == 900 * MIB, "a young process has not loaded all yet"
    assert both.available_bytes == (2000 - 600) * MIB, "it will take 600 MiB more"
    kept = meter.measure([MeasuredProcess(standby=True, pid=3)])
    assert (kept.standby_bytes, kept.driver_bytes) == (900 * MIB, None), "process 3 has exited"
    assert kept.available_bytes == 2000 * MIB


def test_busy_cores_are_those_since_the_last_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(0.0, 100.0), (10.0, 115.0), (20.0, 115.0)])
    monkeypatch.setattr(capacity, "_cpu_s", lambda: next(times))
    meter = CapacityMeter()
    assert [meter.measure([]).busy_cores for _ in range(2)] == [1.5, 0.0]
