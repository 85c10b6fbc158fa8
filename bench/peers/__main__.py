"""Clonos beside plain Spark, PyFlink and Quix Streams: the same input, broker and cores.

``python -m bench.peers --json``; ``--quick`` for a first impression, ``--subjects`` and ``--parts`` for a selection.
Flink and Quix Streams are exactly-once, with a checkpoint or commit every 200 ms; ``flink_tuned`` and ``quix_tuned``
with one every 50 ms, and Quix Streams with a fixed transactional id and short timeouts. Plain Spark is at-least-once.
The first run installs them, each into an environment of its own.

- ``throughput``: rows per second, CPU seconds per million rows and memory (PSS) of whole jobs: a copying job, a Python
  function called for each row, and one on pandas batches;
- ``latency``: from producer to read_committed reader, one record at a time and at 200 records/s;
- ``recovery``: from a kill -9 of the whole job, which starts again at once, to the next committed record; with
  duplicates and losses. Standbys are measured by ``bench.recovery``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final, get_args

from bench import latency
from bench.peers import recovery
from bench.progress import exit_on_sigterm, log_progress
from bench.subjects import Subject
from bench.throughput import preload, rate
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings

_SUBJECTS: Final[tuple[Subject, ...]] = (
    "clonos",
    "spark_default",
    "spark_tuned",
    "flink",
    "flink_tuned",
    "quix",
    "quix_tuned",
)
_KINDS: Final = ("identity", "python", "udf")
_PARTS: Final = ("throughput", "latency", "recovery")


def measure(kafka: KafkaSettings, home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures by part; ``…samples`` are the single measurements."""
    quick = arguments.quick
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    if "throughput" in arguments.parts:
        figures |= _throughput(kafka, home, arguments.subjects, rounds=1 if quick else 3, quick=quick)
    if "latency" in arguments.parts:
        singles, seconds = (50, 10.0) if quick else (200, 30.0)
        figures |= latency.measure(kafka, home, singles=singles, seconds=seconds, subjects=arguments.subjects)
    if "recovery" in arguments.parts:
        kills = 2 if quick else 5
        figures["recovery"] = {
            subject: recovery.measure(subject, kafka, home, kills=kills) for subject in arguments.subjects
        }
    return figures


def _throughput(
    kafka: KafkaSettings, home: Path, subjects: list[Subject], *, rounds: int, quick: bool
) -> dict[str, Any]:
    records, per_epoch = (600_000, 200_000) if quick else (2_000_000, 400_000)
    source = preload(kafka, records)
    rates: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(rounds):  # interleaved, so that a slow minute of the machine affects all
        for kind in _KINDS:
            for subject in subjects:
                if subject.startswith("quix") and kind == "udf":
                    continue  # it has no functions on batches
                run = rate(subject, kafka, home, source, records, kind=kind, per_epoch=per_epoch)
                rates.setdefault(kind, {}).setdefault(subject, []).append(
                    {
                        "rows_per_s": round(run.rows_per_s),
                        "cpu_s_per_million": round(run.cpu_us_per_row, 2),
                        "peak_pss_mb": round(run.peak_pss_mb),
                    }
                )
    middle = {
        kind: {subject: sorted(runs, key=lambda run: run["rows_per_s"])[len(runs) // 2] for subject, runs in by.items()}
        for kind, by in rates.items()
    }
    return {"records": records, "throughput": middle, "throughput_samples": rates}


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object last (always; for symmetry)")
    parser.add_argument("--quick", action="store_true", help="fewer records, kills and rounds")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--subjects", nargs="+", choices=get_args(Subject), default=list(_SUBJECTS))
    arguments = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        log_progress("starting a broker")
        with EmbeddedKafka(place / "kafka", jars=ensure_jars(Settings())) as cluster:
            print(json.dumps(measure(cluster.kafka, place, arguments)), flush=True)


if __name__ == "__main__":
    main()
