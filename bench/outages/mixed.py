"""Kills of all kinds in random order, also in a row; afterwards output, transactions and processes are checked."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.outages.flow import Load, Reader, verdict
from bench.outages.subject import Platform
from bench.outages.takeovers import ON_ITS_WAY_S, quantiles, waterfall
from bench.outages.transactions import SETTLED, transactions
from bench.outages.victims import MIXTURE, killed
from bench.progress import log_progress
from bench.subjects import make_topic
from clonos.testing.harness import eventually, processes_of_home
from clonos.testing.harness.processes import describe

T = TypeVar("T")
# Share of the kills that do not wait until the platform has recovered from the previous kill.
_IN_A_ROW: Final = 0.2
_PAUSE_S: Final = 3.0
# A driver without a pause between epochs leaves a warming standby little of two cores: it took 50 s to warm up.
_INTERVAL_MS: Final = 250
_END_S: Final = 20.0


def measure(kills: int, seed: int, deployment: Platform) -> dict[str, Any]:
    """Run one job under `kills` kills; return its verdict."""
    draw, began = random.Random(seed), time.monotonic()
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    deployment.submit("subject.py", params, standbys=1, interval_ms=_INTERVAL_MS)
    deployment.job.await_driver()
    load, reader = Load(deployment.kafka, source), Reader(deployment.kafka, output)
    gaps: dict[str, list[float]] = {}
    killed_kinds: list[str] = []
    orphans: dict[int, str] = {}
    try:
        reader.after(0.0)
        while len(killed_kinds) < kills:
            in_a_row = bool(killed_kinds) and draw.random() < _IN_A_ROW
            if not in_a_row:
                deployment.job.await_driver()
                deployment.job.await_standby()
                orphans |= _orphans(deployment)
            time.sleep(draw.random() * _PAUSE_S)
            kind = draw.choices(list(MIXTURE), list(MIXTURE.values()))[0]
            with killed(kind, deployment) as moment:
                if moment is None:
                    continue  # the victim has already exited: draw another kill
                killed_kinds.append(f"{kind}{' in a row' if in_a_row else ''}")
                # In a row: the next kill comes before the platform has recovered from this kill.
                gap = reader.after(moment + ON_ITS_WAY_S) - moment if not in_a_row else 0.0
            if gap:
                gaps.setdefault(kind, []).append(gap)
            result = f"{gap * 1000:.0f} ms" if gap else "not measured"
            log_progress(f"{len(killed_kinds)} of {kills}, {killed_kinds[-1]}: {result}")
        deployment.job.await_driver()
        load.close()
        deployment.job.until(lambda: len(reader.numbers) >= load.sent, "all records are published")
        phases = waterfall(deployment.job.recoveries())
        deployment.stop_job(gracefully=True)
        time.sleep(1.0)  # a second publication would arrive in this time
    finally:
        load.close()
        reader.close()
    orphans |= _remaining_drivers(deployment.home)
    known, dangling = _transactions(deployment)
    return {
        "kills": len(killed_kinds),
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "killed": dict(Counter(killed_kinds)),
        "gaps": {kind: quantiles(spent) for kind, spent in sorted(gaps.items())},
        "phases_ms": phases,
        **verdict(reader.rows, load.sent),
        "transactional_ids": known,
        "dangling_transactions": len(dangling),
        "dangling": dangling,
        "orphans": len(orphans),
        "orphan_processes": sorted(orphans.values()),
    }


def surviving_processes(home: Path) -> list[str]:
    """Remaining processes of a stopped platform."""
    return [describe(process) for process, _run in processes_of_home(home)]


def _settled(current: Callable[[], dict[T, str]]) -> dict[T, str]:
    """Poll until `current` returns nothing; after 20 s return the remainder."""
    with contextlib.suppress(TimeoutError):
        eventually(lambda: not current(), "nothing is left", timeout_s=_END_S, poll_s=0.2)
    return current()


def _orphans(deployment: Platform) -> dict[int, str]:
    """Processes of ended runs, while the job runs normally."""

    def current() -> dict[int, str]:
        ended = {run.id for run in deployment.job.runs() if run.ended_at is not None}
        return {process.pid: describe(process) for process, run in processes_of_home(deployment.home) if run in ended}

    return _settled(current)


def _remaining_drivers(home: Path) -> dict[int, str]:
    """Remaining drivers and their child processes after their job was stopped."""
    return _settled(lambda: {process.pid: describe(process) for process, run in processes_of_home(home) if run})


def _transactions(deployment: Platform) -> tuple[int, dict[str, str]]:
    """The number of transactional ids, and the state of those whose transaction stays open until its timeout."""

    def dangling() -> dict[str, str]:
        return {name: state for name, state in transactions(deployment.kafka).items() if state not in SETTLED}

    open_transactions = _settled(dangling)
    return len(transactions(deployment.kafka)), open_transactions
