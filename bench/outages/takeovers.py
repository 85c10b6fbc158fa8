"""Repeated failures of one kind, and the waiting time of readers after each."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.outages.flow import Load, Reader, verdict
from bench.outages.state import fill
from bench.outages.subject import Platform
from bench.outages.victims import killed
from bench.progress import log_progress
from bench.subjects import make_topic
from clonos.resources.jobs import Recovery

# After a takeover the job processes its backlog; then the next kill follows.
_SETTLE_S: Final = 3.0
# Records committed before the kill reach the reader within this time; they do not end the gap.
ON_ITS_WAY_S: Final = 0.1


@dataclass(frozen=True)
class Part:
    """One measurement.

    Attributes:
        victim: Kind of victim (`victims.killed`).
        standbys: Number of the job's standbys.
        state_mb: Size of its state in MB; 0: a job without state.
        pool: Whether its drivers are pool drivers.
        processor: Whether a `transformWithState` of Python has the state; otherwise an operator of Spark's own.
        executors: Executors of the job and of its standby on the platform's Spark cluster; 0: a local master.
    """

    victim: str
    standbys: int = 1
    state_mb: int = 0
    processor: bool = False
    pool: bool = False
    executors: int = 0


def measure(name: str, part: Part, kills: int, deployment: Platform) -> dict[str, Any]:
    """Kill one job `kills` times in one way; return its figures and its verdict."""
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    topics = {"input": source, "output": output}
    if part.state_mb:
        deployment.submit("stateful.py" if part.processor else "deduplicating.py", topics, standbys=part.standbys)
    elif part.pool:
        deployment.submit("subject.py", {**topics, "kind": "identity", "per_epoch": "0"}, standbys=0, mode="pool")
    else:
        params = {**topics, "kind": "identity", "per_epoch": "0"}
        deployment.submit("subject.py", params, standbys=part.standbys, executors=part.executors)
    deployment.job.await_driver()
    repeats = part.state_mb > 0 and not part.processor
    load, reader = Load(deployment.kafka, source, repeats=repeats), Reader(deployment.kafka, output)
    gaps: list[float] = []
    state: dict[str, Any] = {}
    try:
        reader.after(0.0)
        if part.state_mb:
            state = fill(deployment, source, part.state_mb)
        for number in range(kills):
            time.sleep(_SETTLE_S + random.random())
            deployment.job.await_driver()
            if part.pool:
                deployment.await_pool_driver()
            elif part.standbys:
                deployment.await_rehearsed_standby(with_state=part.state_mb > 0)
            with killed(part.victim, deployment) as moment:
                assert moment is not None
                gaps.append(reader.after(moment + ON_ITS_WAY_S) - moment)
            log_progress(f"{name} {number + 1} of {kills}: {gaps[-1] * 1000:.0f} ms")
        load.close()
        phases = waterfall(deployment.job.recoveries())
        deployment.job.until(lambda: len(reader.numbers) >= load.sent, "all of it is published")
        time.sleep(1.0)  # a second publication would arrive in this time
    finally:
        load.close()
        reader.close()
    deployment.stop_job()
    return {**quantiles(gaps), **state, "phases_ms": phases, **verdict(reader.rows, load.sent)}


def quantiles(seconds: list[float]) -> dict[str, Any]:
    """Median and 99th percentile, with the samples."""
    ranked = sorted(seconds)
    return {
        "p50_s": round(statistics.median(ranked), 3),
        "p99_s": round(ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))], 3),
        "n": len(ranked),
        "samples": [round(value, 3) for value in seconds],
    }


def waterfall(recoveries: list[Recovery]) -> dict[str, int]:
    """The median duration in milliseconds of each phase over all recoveries, in the phases' order."""
    durations_ms: dict[str, list[float]] = {}
    for recovery in recoveries:
        for phase in recovery.phases:
            durations_ms.setdefault(phase.name, []).append(phase.duration_ms)
    return {name: round(statistics.median(values)) for name, values in durations_ms.items()}
