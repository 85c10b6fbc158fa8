"""One kind of failure, again and again: how long readers wait each time."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.outages.flow import Load, Reader, verdict
from bench.outages.platform import Platform
from bench.outages.state import fill
from bench.outages.victims import killed
from bench.subjects import make_topic, say

# A job that has just taken over works through what piled up; then the next kill.
_SETTLE_S: Final = 3.0
# What was committed before the kill is still on its way to the reader, and not what this is about.
ON_ITS_WAY_S: Final = 0.1


@dataclass(frozen=True)
class Part:
    """What is measured.

    Attributes:
        victim: What is killed (`victims.killed`).
        standbys: How many the job has.
        state_mb: State that it has to keep; 0: a job without state.
        pool: Its drivers are spares.
        processor: It keeps that in a `transformWithState` of Python; otherwise in an operator of Spark's own.
    """

    victim: str
    standbys: int = 1
    state_mb: int = 0
    processor: bool = False
    pool: bool = False


def measure(name: str, part: Part, kills: int, where: Platform) -> dict[str, Any]:
    """One job, killed so many times in one way; its figures and its verdict."""
    source, output = make_topic(where.kafka, "in"), make_topic(where.kafka, "out")
    topics = {"input": source, "output": output}
    if part.state_mb:
        where.submit("stateful.py" if part.processor else "deduplicating.py", topics, standbys=part.standbys)
    elif part.pool:
        where.submit("subject.py", {**topics, "kind": "identity", "per_epoch": "0"}, standbys=0, mode="pool")
    else:
        where.submit("subject.py", {**topics, "kind": "identity", "per_epoch": "0"}, standbys=part.standbys)
    where.driver()
    twice = part.state_mb > 0 and not part.processor
    load, reader = Load(where.kafka, source, again=twice), Reader(where.kafka, output)
    gaps: list[float] = []
    state: dict[str, Any] = {}
    try:
        reader.after(0.0)
        if part.state_mb:
            state = fill(where, source, part.state_mb)
        for number in range(kills):
            time.sleep(_SETTLE_S + random.random())
            where.driver()
            if part.pool:
                where.await_spare()
            elif part.standbys:
                where.await_standby(warm=True, state=part.state_mb > 0)
            with killed(part.victim, where) as moment:
                assert moment is not None
                gaps.append(reader.after(moment + ON_ITS_WAY_S) - moment)
            say(f"{name} {number + 1} of {kills}: {gaps[-1] * 1000:.0f} ms")
        load.close()
        phases = waterfall(where.all("/recoveries"))
        where.until(lambda: len(reader.numbers) >= load.sent, "all of it is published")
        time.sleep(1.0)  # and nothing twice
    finally:
        load.close()
        reader.close()
    where.end()
    return {**quantiles(gaps), **state, "phases_ms": phases, **verdict(reader.rows, load.sent)}


def quantiles(seconds: list[float]) -> dict[str, Any]:
    """Median and 99th percentile, with all that they are made of."""
    ranked = sorted(seconds)
    return {
        "p50_s": round(statistics.median(ranked), 3),
        "p99_s": round(ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))], 3),
        "n": len(ranked),
        "samples": [round(one, 3) for one in seconds],
    }


def waterfall(recoveries: list[dict[str, Any]]) -> dict[str, int]:
    """Phase → its median over all recoveries, in the order in which they come."""
    found: dict[str, list[float]] = {}
    for one in recoveries:
        for phase in one["phases"]:
            found.setdefault(phase["name"], []).append(phase["duration_ms"])
    return {name: round(statistics.median(spent)) for name, spent in found.items()}
