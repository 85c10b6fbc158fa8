"""Everything is killed, in any order and also twice in a row; afterwards nothing is wrong, open or left over."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil

from bench.outages.flow import Load, Reader, verdict
from bench.outages.platform import Platform
from bench.outages.processes import of_home, shown
from bench.outages.takeovers import ON_ITS_WAY_S, quantiles, waterfall
from bench.outages.transactions import SETTLED, transactions
from bench.outages.victims import MIXTURE, killed
from bench.subjects import make_topic, say

# So many of the kills do not wait until the platform has got over the one before.
_IN_A_ROW: Final = 0.2
_PAUSE_S: Final = 3.0
# A driver that takes what it gets leaves little of two cores for the next standby to warm up with: that took 50 s.
_INTERVAL_MS: Final = 250
_END_S: Final = 20.0


def measure(kills: int, seed: int, where: Platform) -> dict[str, Any]:
    """One job under so many kills; its verdict."""
    draw, began = random.Random(seed), time.monotonic()
    source, output = make_topic(where.kafka, "in"), make_topic(where.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    where.submit("subject.py", params, standbys=1, interval_ms=_INTERVAL_MS)
    where.driver()
    load, reader = Load(where.kafka, source), Reader(where.kafka, output)
    gaps: dict[str, list[float]] = {}
    order: list[str] = []
    strays: dict[int, str] = {}
    try:
        reader.after(0.0)
        while len(order) < kills:
            in_a_row = bool(order) and draw.random() < _IN_A_ROW
            if not in_a_row:
                where.driver()
                where.await_standby()
                strays |= _strays(where)
            time.sleep(draw.random() * _PAUSE_S)
            kind = draw.choices(list(MIXTURE), list(MIXTURE.values()))[0]
            with killed(kind, where) as moment:
                if moment is None:
                    continue  # it was dead already: another one
                order.append(f"{kind}{' in a row' if in_a_row else ''}")
                # Twice in a row: the next one comes before anybody has got over this one.
                gap = reader.after(moment + ON_ITS_WAY_S) - moment if not in_a_row else 0.0
            if gap:
                gaps.setdefault(kind, []).append(gap)
            say(f"{len(order)} of {kills}, {order[-1]}: {f'{gap * 1000:.0f} ms' if gap else 'not waited for'}")
        where.driver()
        load.close()
        where.until(lambda: len(reader.numbers) >= load.sent, "all of it is published")
        phases = waterfall(where.all("/recoveries"))
        where.end(gracefully=True)
        time.sleep(1.0)  # and nothing is published twice
    finally:
        load.close()
        reader.close()
    strays |= {process.pid: shown(process) for process in _left(where.home)}
    known, dangling = _transactions(where)
    return {
        "kills": len(order),
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "killed": dict(Counter(order)),
        "gaps": {kind: quantiles(spent) for kind, spent in sorted(gaps.items())},
        "phases_ms": phases,
        **verdict(reader.rows, load.sent),
        "transactional_ids": known,
        "dangling_transactions": len(dangling),
        "dangling": dangling,
        "orphans": len(strays),
        "orphan_processes": sorted(strays.values()),
    }


def outlived(home: Path) -> list[str]:
    """Processes that are left of a platform that was ended."""
    return [shown(process) for process, _ in of_home(home)]


def _strays(where: Platform) -> dict[int, str]:
    """Processes of runs that are over, while everything is well: those that are not about to go."""
    deadline = time.monotonic() + _END_S
    while True:
        over = {one["id"] for one in where.get("/runs?limit=200")["data"] if one["ended_at"] is not None}
        found = [process for process, run in of_home(where.home) if run in over]
        if not found or time.monotonic() > deadline:
            return {process.pid: shown(process) for process in found}
        time.sleep(0.2)


def _left(home: Path) -> list[psutil.Process]:
    """Drivers and what they have started, after their job was stopped."""
    deadline = time.monotonic() + _END_S
    while (found := [process for process, run in of_home(home) if run]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _transactions(where: Platform) -> tuple[int, dict[str, str]]:
    """How many transactional ids there are, and those whose transaction nobody but its timeout will end."""
    deadline = time.monotonic() + _END_S
    while True:
        known = transactions(where.kafka)
        found = {name: state for name, state in known.items() if state not in SETTLED}
        if not found or time.monotonic() > deadline:
            return len(known), found
        time.sleep(0.2)
