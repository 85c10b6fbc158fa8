"""Clonos against plain Spark and its built-in Kafka sink, in one run on one machine.

``python -m bench.engine --json``; ``--quick`` for a look. What is compared:

- latency, producer to read_committed reader: one record at a time, and under 200 records/s;
- rows per second of a job that copies and of one with a pandas UDF (plain Spark: its defaults, at-least-once);
- what causal logging costs: clock, random number and id per row against Python's own, and a service with 1 %
  distinct arguments against a UDF that keeps the answers itself;
- the most memory that the driver's processes held.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import latency
from bench.subjects import say
from bench.throughput import Rate, preload, rate
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings


def measure(kafka: KafkaSettings, home: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All figures, by the keys of `bench/README.md`."""
    quick = given.quick
    records, per_epoch, rounds = (600_000, 200_000, 1) if quick else (2_000_000, 400_000, 2)
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "records": records, "rounds": rounds}
    if "latency" in given.parts:
        found |= latency.measure(kafka, home, singles=50 if quick else 200, seconds=10 if quick else 30)
    if {"throughput", "overhead"} & set(given.parts):
        source = preload(kafka, records)

        def best(subject: Any, kind: str, depth: str = "full") -> list[Rate]:
            return [rate(subject, kafka, home, source, records, kind=kind, per_epoch=per_epoch, depth=depth)]

        if "throughput" in given.parts:
            found |= _throughput(best, rounds)
        if "overhead" in given.parts:
            found |= _overhead(best, rounds)
    return found


def _throughput(run: Any, rounds: int) -> dict[str, Any]:
    rates: dict[tuple[str, str], list[Rate]] = {}
    for _ in range(rounds):  # interleaved, so that a slow minute of the machine hits both
        for kind in ("identity", "udf"):
            for subject in ("spark_default", "clonos"):
                rates.setdefault((kind, subject), []).extend(run(subject, kind))

    def mid(kind: str, subject: str, name: str) -> float:
        return round(median(getattr(one, name) for one in rates[kind, subject]), 2)

    pairs = (("clonos", "clonos"), ("spark", "spark_default"))
    return {
        "rows_per_s": {
            kind: {key: round(mid(kind, subject, "rows_per_s")) for key, subject in pairs}
            for kind in ("identity", "udf")
        },
        "cpu_us_per_row": {
            kind: {key: mid(kind, subject, "cpu_us_per_row") for key, subject in pairs} for kind in ("identity", "udf")
        },
        "peak_rss_mb": {
            key: round(max(one.peak_rss_mb for kind in ("identity", "udf") for one in rates[kind, subject]))
            for key, subject in pairs
        },
    }


def _overhead(run: Any, rounds: int) -> dict[str, Any]:
    pairs = {
        "derived": ("raw", "derived", "full"),
        "service": ("cached", "service", "full"),
        "service_log": ("service:0", "service", "full"),
    }
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind, depth in (
            ("raw", "full"),
            ("derived", "full"),
            ("cached", "full"),
            ("service", "0"),
            ("service", "full"),
        ):
            name = kind if depth == "full" else f"{kind}:{depth}"
            rates.setdefault(name, []).extend(one.rows_per_s for one in run("clonos", kind, depth))
    mid = {name: median(found) for name, found in rates.items()}
    return {
        "causal_overhead": {key: round(mid[without] / mid[with_] - 1, 4) for key, (without, with_, _) in pairs.items()},
        "causal_rows_per_s": {name: round(value) for name, value in mid.items()},
    }


def main() -> None:
    """Start a broker, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object last (always; for symmetry)")
    parser.add_argument("--quick", action="store_true", help="fewer records and one round")
    parser.add_argument("--parts", nargs="+", default=["latency", "throughput", "overhead"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        say("starting a broker")
        with EmbeddedKafka(place / "kafka", jars=ensure_jars(Settings())) as cluster:
            print(json.dumps(measure(cluster.kafka, place, given)), flush=True)


if __name__ == "__main__":
    main()
