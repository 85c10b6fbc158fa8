"""Repeated failures of one kind, and the waiting time of readers after each."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from bench.outages.flow import Load, Reader, verdict
from bench.outages.state import fill
from bench.outages.subject import RARE_POLL_S, Platform
from bench.outages.usage import cpu_s
from bench.outages.victims import killed
from bench.progress import log_progress
from bench.subjects import make_topic
from clonos.resources.jobs import Recovery
from clonos.testing.harness import ProcessGroup

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
        pool: Whether its drivers are pool drivers, also the first one; only without standbys.
        processor: Whether a `transformWithState` of Python has the state; otherwise an operator of Spark's own.
        live: Whether it runs live, with a function in Python; only without state.
        executors: Executors of the job and of its standby on the platform's Spark cluster; 0: a local master.
    """

    victim: str
    standbys: int = 1
    state_mb: int = 0
    processor: bool = False
    pool: bool = False
    live: bool = False
    executors: int = 0


def measure(name: str, part: Part, kills: int, deployment: Platform) -> dict[str, Any]:
    """Kill one job `kills` times in one way; return its figures and its verdict."""
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    topics = {"input": source, "output": output}
    if part.state_mb:
        deployment.submit("stateful.py" if part.processor else "deduplicating.py", topics, standbys=part.standbys)
    else:
        params = {**topics, "kind": "python" if part.live else "identity", "per_epoch": "0"}
        mode = "dedicated" if part.standbys else "pool" if part.pool else "none"
        trigger = "live" if part.live else "epochs"
        deployment.submit(
            "subject.py", params, standbys=part.standbys, mode=mode, executors=part.executors, trigger=trigger
        )
    repeats = part.state_mb > 0 and not part.processor
    gaps: list[float] = []
    warm_ups: list[WarmUp] = []
    state: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(deployment.stop_job)  # also after a failure: other parts follow
        deployment.job.await_driver()
        load = Load(deployment.kafka, source, repeats=repeats)
        stack.callback(load.close)
        reader = Reader(deployment.kafka, output)
        stack.callback(reader.close)
        reader.after(0.0)
        if part.state_mb:
            state = fill(deployment, source, part.state_mb)
        for number in range(kills):
            time.sleep(_SETTLE_S + random.random())
            deployment.job.await_driver()
            if part.standbys:
                deployment.await_rehearsed_standby(with_state=part.state_mb > 0)
            deployment.await_pool_drivers()
            standbys = standby_processes(deployment).keys()
            with killed(part.victim, deployment) as moment:
                assert moment is not None
                gaps.append(reader.after(moment + ON_ITS_WAY_S) - moment)
            log_progress(f"{name} {number + 1} of {kills}: {gaps[-1] * 1000:.0f} ms")
            if part.standbys:
                warm_ups.append(await_next_standby(deployment, standbys))
        load.close()
        phases = waterfall(deployment.job.recoveries())
        deployment.job.until(lambda: len(reader.numbers) >= load.sent, "all records are published")
        time.sleep(1.0)  # a second publication would arrive in this time
    ready = {"ready_s": quantiles([each.seconds for each in warm_ups])} if warm_ups else {}
    ready |= {"ready_cpu_s": quantiles([each.cpu_s for each in warm_ups])} if warm_ups else {}
    return {
        **quantiles(gaps),
        **ready,
        **state,
        "phases_ms": phases,
        **verdict(reader.rows, load.sent, ordered=not repeats),
    }


class WarmUp(NamedTuple):
    """From the placement of a standby, or the restart of its process on the same host, until it is READY."""

    seconds: float
    cpu_s: float  # CPU time of its processes


def standby_processes(deployment: Platform) -> dict[int, tuple[str, ProcessGroup]]:
    """The standbys of the job that have a process, by its id: standby id, process."""
    groups = ((each.id, deployment.job.process(each.id)) for each in deployment.job.standbys())
    return {group.pid: (standby, group) for standby, group in groups if group is not None}


def await_next_standby(deployment: Platform, known: Collection[int]) -> WarmUp:
    """Wait until the job has a READY standby whose process is none of the `known` ones."""
    began: dict[int, tuple[datetime, float]] = {}  # process id → when it was first seen, CPU seconds until then

    def ready() -> tuple[str, ProcessGroup, datetime] | None:
        states = {each.id: each for each in deployment.job.standbys()}
        for pid, (standby, process) in standby_processes(deployment).items():
            if pid in known:
                continue
            if pid not in began:
                began[pid] = datetime.now(UTC), sum(cpu_s(process.members()).values())
            started_at, _ = began[pid]
            # The state of a standby that restarted is READY until its agent reports the restart.
            if standby in states and states[standby].state == "READY" and states[standby].since > started_at:
                return standby, process, states[standby].since
        return None

    # A standby may be replaced before it is READY: the host that returns is a better place.
    standby, process, ready_at = deployment.job.until(ready, "a standby is READY", poll_s=RARE_POLL_S)
    before_s = began[process.pid][1]
    used_s = sum(cpu_s(process.members()).values()) - before_s
    run = deployment.client.jobs.run(deployment.job.name, standby)
    placed_at = run.created_at if run.attempts <= 1 or run.started_at is None else run.started_at
    warm_up = WarmUp((ready_at - placed_at).total_seconds(), used_s)
    log_progress(f"the next standby was READY after {warm_up.seconds:.1f} s and {warm_up.cpu_s:.1f} CPU s")
    return warm_up


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
