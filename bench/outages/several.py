"""Several jobs on one machine, each with a standby, and failures of their drivers in turn."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.outages.flow import Load, Reader, verdict
from bench.outages.subject import RARE_POLL_S, Platform
from bench.outages.takeovers import ON_ITS_WAY_S, quantiles, waterfall
from bench.progress import log_progress
from bench.subjects import make_topic
from clonos.testing.harness import PlatformJob

JOBS: Final = 3
# Records per second of each job. Three jobs at 200 take more than two cores have.
RATE: Final = 50
_WINDOW_S: Final = 30.0
_SETTLE_S: Final = 3.0
# All standbys warm up at the same time.
_READY_S: Final = 600.0


@dataclass(frozen=True)
class _LoadedJob:
    """A job with its input and the reader of its output."""

    job: PlatformJob
    load: Load
    reader: Reader

    def complete(self) -> bool:
        """Whether the reader has as many records as were sent."""
        return len(self.reader.numbers) >= self.load.sent


def measure(kills: int, deployment: Platform) -> dict[str, Any]:
    """Run `JOBS` jobs with a standby each, and kill their drivers in turn, `kills` times altogether.

    Returns:
        The waits of readers of the job whose driver was killed, ``ready_s``: from the submission until all standbys
        are READY, ``epoch_ms``: median and 99th percentile of the durations of all jobs' epochs before the first kill,
        ``phases_ms``, and the verdict about all outputs.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        loaded_jobs = [_start(deployment, stack) for _ in range(JOBS)]
        _await_standbys(loaded_jobs)
        ready_s = round(time.monotonic() - began, 1)
        log_progress(f"all standbys are READY after {ready_s} s")
        time.sleep(_WINDOW_S)
        durations_ms = [duration for each in loaded_jobs for duration in _epoch_durations_ms(deployment, each.job)]
        gaps: list[float] = []
        for number in range(kills):
            victim = loaded_jobs[number % JOBS]
            time.sleep(_SETTLE_S)
            moment = victim.job.await_driver().kill().at
            gaps.append(victim.reader.after(moment + ON_ITS_WAY_S) - moment)
            log_progress(f"several jobs, {number + 1} of {kills}: {gaps[-1] * 1000:.0f} ms")
            _await_standbys(loaded_jobs)
        totals: dict[str, int] = {}
        for each in loaded_jobs:
            each.load.close()
            each.job.until(each.complete, "all records are published")
        time.sleep(1.0)  # a second publication would arrive in this time
        phases = waterfall([recovery for each in loaded_jobs for recovery in each.job.recoveries()])
        for each in loaded_jobs:
            for name, count in verdict(each.reader.rows, each.load.sent).items():
                totals[name] = totals.get(name, 0) + count
    figures = {"jobs": JOBS, "rate": RATE, "ready_s": ready_s, "epoch_ms": _quantiles_ms(durations_ms)}
    return {**figures, **quantiles(gaps), "phases_ms": phases, **totals}


def _start(deployment: Platform, stack: contextlib.ExitStack) -> _LoadedJob:
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    job = deployment.submit("subject.py", params, standbys=1)
    stack.callback(_cancel, job)
    job.await_driver()
    load, reader = Load(deployment.kafka, source, rate=RATE), Reader(deployment.kafka, output)
    stack.callback(reader.close)
    stack.callback(load.close)
    return _LoadedJob(job, load, reader)


def _cancel(job: PlatformJob) -> None:
    job.client.jobs.cancel(job.name)
    job.until(lambda: job.get().state == "CANCELED", "the job ended")


def _await_standbys(loaded_jobs: list[_LoadedJob]) -> None:
    for each in loaded_jobs:
        each.job.until(each.job.ready_standby, "a standby is READY", _READY_S, poll_s=RARE_POLL_S)


def _epoch_durations_ms(deployment: Platform, job: PlatformJob) -> list[float]:
    """The durations of the epochs that the job's driver finished in the last `_WINDOW_S`."""
    current = job.get()
    assert current.host is not None
    assert current.run is not None
    file = deployment.home / "agent" / current.host / "runs" / current.run / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines() if '"event":"epoch"' in line]
    return [event["duration_ms"] for event in events if event["at"] > time.time() - _WINDOW_S]


def _quantiles_ms(durations_ms: list[float]) -> dict[str, float]:
    ranked = sorted(durations_ms)
    return {"p50": round(statistics.median(ranked)), "p99": round(ranked[-len(ranked) // 100]), "n": len(ranked)}
