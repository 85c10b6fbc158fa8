"""One job under a steady load, with a kill of its driver each minute: whether anything grows.

``python -m bench.endurance --json``; ``--minutes``, ``--rate``, ``--interval-ms``. ``clonos up`` starts Kafka, the
control plane and two agents; the job has a standby. Before each kill the benchmark samples, for each part of the
platform, memory (PSS), threads and open files, and further the latency of the last ten seconds, the longest pause of
the output since the last takeover, the bytes of the causal log and of Kafka's log of transactions, and the number of
transactional ids.

``slopes`` has the growth of each figure per hour by linear regression, in its unit and as a share of its mean, without
the first quarter of the samples: JVMs and caches grow until then. At the end all output is compared with the input.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench.outages.cost import parts_of
from bench.outages.flow import RATE, Load, Reader, Row, verdict
from bench.outages.mixed import surviving_processes
from bench.outages.subject import Platform, platform
from bench.outages.takeovers import ON_ITS_WAY_S, quantiles
from bench.outages.transactions import transactions
from bench.outages.usage import cpu_s, memory_mb
from bench.outages.victims import killed
from bench.progress import exit_on_sigterm, log_progress
from bench.subjects import make_topic

_PERIOD_S: Final = 60.0
_LATENCY_S: Final = 10.0
_WARM_UP_SHARE: Final = 0.25
_FEWEST_SAMPLES: Final = 3
_WRONG: Final = ("duplicates", "lost", "order_breaks", "left_after_down")


@dataclass(frozen=True)
class Sample:
    """The platform in one moment.

    Attributes:
        at_s: Seconds since the beginning.
        figures: By name; names with a dot have the part of the platform first.
    """

    at_s: float
    figures: dict[str, float]


def measure(deployment: Platform, *, minutes: int, rate: float, interval_ms: int) -> dict[str, Any]:
    """Run the job, and kill its driver each minute.

    Args:
        deployment: The platform.
        minutes: Number of kills.
        rate: Records per second.
        interval_ms: Minimum time between the starts of two epochs.

    Returns:
        ``gaps``, ``kills_without_standby``, ``busy_share`` of the machine's cores, ``slopes``, ``samples`` and the
        verdict about the output.
    """
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    deployment.submit("subject.py", params, standbys=1, interval_ms=interval_ms)
    deployment.job.await_driver()
    deployment.job.await_standby()
    load, reader = Load(deployment.kafka, source, rate=rate), Reader(deployment.kafka, output)
    began = time.monotonic()
    samples: list[Sample] = []
    gaps: list[float] = []
    without_standby = 0
    returned_at = began
    psutil.cpu_percent()  # the next call has the mean since this one
    try:
        for minute in range(1, minutes + 1):
            time.sleep(max(0.0, began + minute * _PERIOD_S - time.monotonic()))
            deployment.job.await_driver()
            without_standby += deployment.job.ready_standby() is None
            pause = {"longest_pause_ms": _longest_pause_ms(reader.rows, returned_at)}
            samples.append(Sample(round(time.monotonic() - began, 1), _figures(deployment, load, reader) | pause))
            with killed("driver", deployment) as moment:
                assert moment is not None
                returned_at = reader.after(moment + ON_ITS_WAY_S)
                gaps.append(returned_at - moment)
            log_progress(f"minute {minute} of {minutes}: {gaps[-1] * 1000:.0f} ms, {samples[-1].figures}")
        load.close()
        deployment.job.until(lambda: len(reader.numbers) >= load.sent, "all records are published")
        deployment.stop_job(gracefully=True)
        time.sleep(1.0)  # a second publication would arrive in this time
    finally:
        load.close()
        reader.close()
    return {
        "minutes": minutes,
        "rate": rate,
        "gaps": quantiles(gaps),
        "kills_without_standby": without_standby,
        "busy_share": round(statistics.mean(sample.figures["busy_share"] for sample in samples), 3),
        "slopes": slopes(samples),
        "samples": [asdict(sample) for sample in samples],
        **verdict(reader.rows, load.sent),
    }


def _figures(deployment: Platform, load: Load, reader: Reader) -> dict[str, float]:
    figures: dict[str, float] = {"busy_share": round(psutil.cpu_percent() / 100, 3)}
    parts = parts_of(deployment, deployment.job.driver(), deployment.standby())
    for part, processes in parts.items():
        figures[f"{part}.pss_mb"] = sum(memory_mb(processes).values())
        figures[f"{part}.threads"] = _total(processes, "num_threads")
        figures[f"{part}.files"] = _total(processes, "num_fds")
    recent = [row for row in reader.rows[-round(20 * _LATENCY_S * RATE) :] if row.at > time.monotonic() - _LATENCY_S]
    figures |= _latency_ms(recent, load.sent_at)
    logs = deployment.home / "kafka"
    figures["causal_log_mb"] = megabytes(logs, f"clonos.{deployment.job.name}.log-")
    figures["transaction_log_mb"] = megabytes(logs, "__transaction_state-")
    figures["transactional_ids"] = len(transactions(deployment.kafka))
    figures["cpu_s"] = round(sum(sum(cpu_s(processes).values()) for processes in parts.values()), 1)
    return figures


def _longest_pause_ms(rows: list[Row], since: float) -> float:
    """The longest time between two records that arrived after `since`."""
    arrivals = [row.at for row in rows if row.at >= since]
    return round(max((later - at for at, later in itertools.pairwise(arrivals)), default=0.0) * 1000, 1)


def _total(processes: Iterable[psutil.Process], count: str) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += getattr(process, count)()
    return total


def _latency_ms(rows: list[Row], sent_at: list[float]) -> dict[str, float]:
    """Median and 99th percentile of the time from a record's production to its arrival."""
    if not rows:
        return {}
    ranked = sorted((row.at - sent_at[row.number]) * 1000 for row in rows)
    return {
        "latency_p50_ms": round(statistics.median(ranked), 1),
        "latency_p99_ms": round(ranked[-len(ranked) // 100], 1),
    }


def megabytes(folder: Path, prefix: str) -> float:
    """The size of the ``.log`` files of a topic's partitions below a broker's directory."""
    size = 0
    for directory in folder.rglob(f"{prefix}[0-9]*"):
        for file in directory.glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                size += file.stat().st_size
    return round(size / 1e6, 3)


def slopes(samples: list[Sample]) -> dict[str, dict[str, float]]:
    """The growth of each figure per hour, in its unit (``per_hour``) and as a share of its ``mean`` (``share``)."""
    settled = samples[round(len(samples) * _WARM_UP_SHARE) :]
    names = sorted(set.intersection(*(set(sample.figures) for sample in settled))) if settled else []
    if len(settled) < _FEWEST_SAMPLES:
        return {}
    hours = [sample.at_s / 3600 for sample in settled]
    results = {}
    for name in names:
        values = [sample.figures[name] for sample in settled]
        growth, mean = statistics.linear_regression(hours, values).slope, statistics.mean(values)
        results[name] = {
            "per_hour": round(growth, 2),
            "mean": round(mean, 2),
            "share": round(growth / mean, 3) if mean else 0.0,
        }
    return results


def main() -> int:
    """Run the benchmark and print the results; returns 1 after a wrong output or a remaining process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--minutes", type=int, default=60, help="duration; the driver is killed once in each minute")
    parser.add_argument("--rate", type=float, default=RATE, help="records per second")
    parser.add_argument("--interval-ms", type=int, default=0, help="minimum time between the starts of two epochs")
    parser.add_argument("--keep", type=Path, help="new folder that keeps all logs")
    arguments = parser.parse_args()
    exit_on_sigterm()
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as stack:
        home = arguments.keep
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clonos-bench-")))
        home.mkdir(parents=True, exist_ok=True)
        with platform(home.absolute()) as deployment:
            results |= measure(
                deployment, minutes=arguments.minutes, rate=arguments.rate, interval_ms=arguments.interval_ms
            )
        results["left_after_down"] = surviving_processes(home.absolute())
    results["violations"] = [name for name in _WRONG if results.get(name)]
    print(json.dumps(results) if arguments.json else json.dumps(results, indent=1))
    return 1 if results["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
