"""A job on a Spark standalone cluster against the same job on a local master, and against plain Spark on the cluster.

``python -m bench.cluster --json``; ``--quick`` for a first impression; ``--parts``. All processes run on this machine:
a master, two workers with one executor of one core each, and for comparison a local master with two task slots. The
benchmark compares:

- deliveries on the cluster: ``exactly-once``, with a lane for each partition, and ``atomic-epoch``, which the driver
  publishes;
- latency from producer to read_committed reader: one record at a time, and at 200 records/s;
- rows per second of a copying job and of a job with a pandas UDF;
- the waiting time of readers after an executor was killed, and after the driver was killed with a standby that holds
  all executors (``--kills`` of each kind);
- epochs with 4, 64 and 256 partitions (``--lanes``): latency and duration, the size of their plans, and the duration
  of a claim.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import latency
from bench.outages.subject import platform
from bench.outages.takeovers import Part, measure
from bench.progress import exit_on_sigterm, log_progress
from bench.spark_cluster import BenchCluster, bench_cluster
from bench.subjects import Subject
from bench.throughput import Rate, preload, rate
from bench.width import LANES, measure_lanes
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings

PARTS: Final = ("latency", "throughput", "lanes", "gaps")
_WORKERS: Final = 2
_SUBJECTS: Final[tuple[Subject, ...]] = ("clonos_local", "clonos_cluster", "clonos_atomic", "spark_cluster")
_ON_CLUSTER: Final[tuple[Subject, ...]] = ("clonos_cluster", "clonos_atomic")


def _throughput(kafka: KafkaSettings, home: Path, cluster: BenchCluster, *, quick: bool) -> dict[str, Any]:
    records, per_epoch, rounds = (400_000, 100_000, 1) if quick else (1_200_000, 200_000, 2)
    source = preload(kafka, records)
    rates: dict[str, dict[str, list[Rate]]] = {}
    for _ in range(rounds):  # interleaved, so that a slow minute of the machine affects all
        for kind in ("identity", "udf"):
            for subject in _SUBJECTS:
                measured = rate(subject, kafka, home, source, records, kind=kind, per_epoch=per_epoch, cluster=cluster)
                rates.setdefault(kind, {}).setdefault(subject, []).append(measured)
    return {
        "rows_per_s": {
            kind: {subject: round(median(run.rows_per_s for run in runs)) for subject, runs in subjects.items()}
            for kind, subjects in rates.items()
        }
    }


def _gaps(home: Path, kills: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with platform(home, pool_size=0, spark_workers=_WORKERS) as deployment:
        for victim, standbys in (("executor", 0), ("driver", 1)):
            part = Part(victim, standbys=standbys, executors=_WORKERS)
            results[victim] = measure(victim, part, kills, deployment)
    return {"gaps": results}


def _ratios(figures: dict[str, Any]) -> dict[str, dict[str, float]]:
    """For each delivery, the cluster's figures divided by the local master's; for rates the reverse: above 1 is
    slower.
    """
    ratios: dict[str, dict[str, float]] = {subject: {} for subject in _ON_CLUSTER}
    for subject in _ON_CLUSTER:
        for key in ("latency_ms", "latency_load_ms"):
            if key in figures:
                both = [figures[key][each] for each in (subject, "clonos_local")]
                if key == "latency_load_ms":
                    both = [each[latency.RATE] for each in both]
                for name in ("p50", "p99"):
                    ratio = both[0][name] / both[1][name]
                    ratios[subject][f"{key}.{name}"] = round(ratio, 2)
        for kind, rates in figures.get("rows_per_s", {}).items():
            ratios[subject][f"rows_per_s.{kind}"] = round(rates["clonos_local"] / rates[subject], 2)
    return ratios


def main() -> None:
    """Start a broker and a cluster, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object last (always; for symmetry)")
    parser.add_argument("--quick", action="store_true", help="fewer records and one round")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lanes", nargs="+", type=int, default=list(LANES), help="numbers of lanes of the part lanes")
    parser.add_argument("--kills", type=int, default=10, help="kills of each kind")
    arguments = parser.parse_args()
    exit_on_sigterm()
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        home = Path(folder)
        if set(arguments.parts) - {"gaps"}:
            log_progress("starting a broker and a Spark cluster")
            with (
                EmbeddedKafka(home / "kafka", jars=ensure_jars(Settings())) as broker,
                bench_cluster(home / "cluster", workers=_WORKERS) as cluster,
            ):
                if "latency" in arguments.parts:
                    singles, seconds = (50, 10.0) if arguments.quick else (200, 30.0)
                    figures |= latency.measure(
                        broker.kafka, home, singles=singles, seconds=seconds, subjects=_SUBJECTS, cluster=cluster
                    )
                if "throughput" in arguments.parts:
                    figures |= _throughput(broker.kafka, home, cluster, quick=arguments.quick)
                if "lanes" in arguments.parts:
                    figures |= measure_lanes(
                        broker.kafka, home, cluster, lanes=arguments.lanes, bursts=10 if arguments.quick else 50
                    )
        if "gaps" in arguments.parts:
            figures |= _gaps(home / "platform", arguments.kills)
    print(json.dumps({**figures, "ratios": _ratios(figures)}), flush=True)


if __name__ == "__main__":
    main()
