"""Clonos against plain Spark and its built-in Kafka sink, in one run on one machine.

``python -m bench.engine --json``; ``--quick`` for a first impression. The benchmark compares:

- latency from producer to read_committed reader: one record at a time, and at 200 records/s (``--rates``);
- rows per second of a copying job and of a job with a pandas UDF (plain Spark: default settings, at-least-once);
- cost of causal logging: clock, random number and id per row compared with Python's functions, and a service with
  1 % distinct arguments compared with a UDF that caches the results itself;
- peak memory of the driver's processes;
- CPU time per epoch and its parts (``--parts cost``);
- epochs with many partitions (``--parts width``).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import cost, latency, width
from bench.progress import exit_on_sigterm, log_progress
from bench.subjects import SUBJECTS, Subject
from bench.throughput import Rate, preload, rate
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings


def measure(kafka: KafkaSettings, home: Path, brokers: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures, by the keys of `bench/README.md`; `brokers` are the process ids of the brokers."""
    quick = arguments.quick
    records, per_epoch, rounds = (600_000, 200_000, 1) if quick else (2_000_000, 400_000, 2)
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "records": records, "rounds": rounds}
    if "latency" in arguments.parts:
        singles, seconds = (50, 10.0) if quick else (200, 30.0)
        figures |= latency.measure(
            kafka,
            home,
            singles=singles,
            seconds=seconds,
            subjects=arguments.subjects,
            kind=arguments.kind,
            rates=arguments.rates,
            brokers=brokers,
        )
    if "cost" in arguments.parts:
        figures |= cost.measure(kafka, home, brokers, seconds=15 if quick else 60, subjects=arguments.subjects)
    if "width" in arguments.parts:
        own: list[Subject] = [subject for subject in arguments.subjects if subject.startswith("clonos")]
        figures |= width.measure(kafka, home, bursts=20 if quick else 100, subjects=own)
    if {"throughput", "overhead"} & set(arguments.parts):
        source = preload(kafka, records)

        def best(subject: Any, kind: str, depth: str = "full") -> list[Rate]:
            return [rate(subject, kafka, home, source, records, kind=kind, per_epoch=per_epoch, depth=depth)]

        if "throughput" in arguments.parts:
            figures |= _throughput(
                best, rounds, [subject for subject in arguments.subjects if subject != "spark_tuned"]
            )
        if "overhead" in arguments.parts:
            figures |= _overhead(best, rounds)
    return figures


def _throughput(run: Any, rounds: int, subjects: list[Subject]) -> dict[str, Any]:
    rates: dict[tuple[str, str], list[Rate]] = {}
    for _ in range(rounds):  # interleaved, so that a slow minute of the machine affects both
        for kind in ("identity", "udf"):
            for subject in subjects:
                rates.setdefault((kind, subject), []).extend(run(subject, kind))

    def mid(kind: str, subject: str, name: str) -> float:
        return float(round(median(getattr(rate, name) for rate in rates[kind, subject]), 2))

    pairs = [("spark" if subject == "spark_default" else subject, subject) for subject in subjects]
    return {
        "rows_per_s": {
            kind: {key: round(mid(kind, subject, "rows_per_s")) for key, subject in pairs}
            for kind in ("identity", "udf")
        },
        "cpu_us_per_row": {
            kind: {key: mid(kind, subject, "cpu_us_per_row") for key, subject in pairs} for kind in ("identity", "udf")
        },
        "peak_pss_mb": {
            key: round(max(rate.peak_pss_mb for kind in ("identity", "udf") for rate in rates[kind, subject]))
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
            rates.setdefault(name, []).extend(rate.rows_per_s for rate in run("clonos", kind, depth))
    mid = {name: median(values) for name, values in rates.items()}
    return {
        "causal_overhead": {key: round(mid[without] / mid[with_] - 1, 4) for key, (without, with_, _) in pairs.items()},
        "causal_rows_per_s": {name: round(value) for name, value in mid.items()},
    }


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object last (always; for symmetry)")
    parser.add_argument("--quick", action="store_true", help="fewer records and one round")
    parser.add_argument("--parts", nargs="+", default=["latency", "throughput", "overhead"])
    parser.add_argument("--kind", default="identity", help="the job of the part latency: identity, udf, python")
    parser.add_argument(
        "--rates", nargs="+", type=int, default=[latency.RATE], help="loads of the part latency, a second"
    )
    parser.add_argument("--subjects", nargs="+", help="of all parts but overhead")
    arguments = parser.parse_args()
    exit_on_sigterm()
    arguments.subjects = tuple(arguments.subjects or ("clonos_live", *SUBJECTS))
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        log_progress("starting a broker")
        with EmbeddedKafka(place / "kafka", jars=ensure_jars(Settings())) as cluster:
            brokers = [broker.pid for broker in cluster.status().brokers if broker.pid is not None]
            print(json.dumps(measure(cluster.kafka, place, brokers, arguments)), flush=True)


if __name__ == "__main__":
    main()
