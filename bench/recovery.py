"""Waiting time of readers after a crash: standbys, whole hosts and cold restarts, on a whole platform.

``python -m bench.recovery --json``; ``--kills N`` of each kind, ``--parts``. ``clonos up`` starts Kafka, the control
plane and two agents, which represent two hosts. One job processes 200 records per second, and the benchmark kills
processes with SIGKILL. The gap of a read_committed reader lasts from the kill to the first record that it receives
after the kill. At the end all output is compared with the input: duplicates, lost records, order within each key, and
the counts of a stateful job. A deduplicating job receives some records twice: a record that is missing from its state
becomes a duplicate in the output. The part ``several`` has three jobs at 50 records per second; the part ``wordcount``
has the job of ``clonos demo``.

``--mixed``: one job under kills of every kind at random moments instead. Some kills hit before the platform has
recovered from the previous kill. Afterwards no transaction is open and no process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.outages import cost, example, mixed, several
from bench.outages.subject import Platform, platform
from bench.outages.takeovers import Part, measure
from bench.progress import exit_on_sigterm, log_progress

PARTS: Final = (
    "standby",
    "live",
    "state",
    "processor",
    "host",
    "cold",
    "pool",
    "both",
    "several",
    "wordcount",
    "cost",
    "throughput",
)
# Parts with a platform of their own; the directory of one of them.
_OTHER_PLATFORMS: Final = {"several", "wordcount"}
_SEVERAL_HOME: Final = "several"
_WRONG: Final = ("duplicates", "lost", "order_breaks", "state_breaks")
# Parts with fewer kills, and their share of `--kills`: each of these kills takes long.
_RARE_PARTS: Final = {"cold", "pool", "both"}
_RARE_SHARE: Final = 0.1


def main() -> int:
    """Run the benchmark and print the results; returns 1 after a violation or a part that failed."""
    arguments = _arguments()
    exit_on_sigterm()
    if arguments.keep is None:
        with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
            results = _run(arguments, Path(folder))
    else:
        arguments.keep.mkdir(parents=True)
        results = _run(arguments, arguments.keep.absolute())
    print(json.dumps(results) if arguments.json else json.dumps(results, indent=1))
    return 1 if results["violations"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--kills", type=int, default=30, help="kills of each kind; a tenth, but at least three, for cold, pool and both"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--state-mb", type=int, nargs="+", default=[100, 1000], help="sizes of state")
    parser.add_argument(
        "--pool-size", type=int, default=1, help="pool drivers of each host; none for wordcount and with --mixed"
    )
    parser.add_argument("--mixed", action="store_true", help="only kills of every kind on one job")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the mixed kills")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds for which a standby's cost is measured")
    parser.add_argument("--records", type=int, default=12_000_000, help="input of the throughput part")
    parser.add_argument("--keep", type=Path, help="new folder that keeps all logs and the figures")
    arguments = parser.parse_args()
    if not arguments.pool_size and "pool" in arguments.parts:
        parser.error("the part pool needs a --pool-size above 0; choose others with --parts")
    return arguments


def _run(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    results = _Results(home)
    if arguments.mixed:
        with platform(home, pool_size=0) as deployment:  # an idle pool driver would count as an orphan
            results.figures |= mixed.measure(arguments.kills, arguments.seed, deployment)
    else:
        _run_parts(arguments, home, results)
    figures = results.figures
    figures |= _totals(figures)
    homes = (home, home / _SEVERAL_HOME)
    figures["left_after_down"] = [process for each in homes for process in mixed.surviving_processes(each)]
    figures["violations"] = _violations(figures, mixed=arguments.mixed)
    return figures


class _Results:
    """The figures so far, also in ``results.json``. A part that fails does not lose the figures of the others."""

    def __init__(self, home: Path) -> None:
        self.figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
        self._file = home / "results.json"

    def add(self, part: str, measured: Callable[[], dict[str, Any]]) -> None:
        """Measure one part."""
        try:
            self.figures |= measured()
        except Exception as error:
            self.figures.setdefault("failed", {})[part] = f"{type(error).__name__}: {error}"
            log_progress(f"{part} failed:\n{traceback.format_exc()}")
        self._file.write_text(json.dumps(self.figures))


def _run_parts(arguments: argparse.Namespace, home: Path, results: _Results) -> None:
    def takeovers(name: str, part: Part, deployment: Platform) -> None:
        kills = _reduced(arguments.kills) if name in _RARE_PARTS else arguments.kills
        results.add(name, lambda: {name: measure(name, part, kills, deployment)})

    def with_one_job() -> dict[str, Any]:
        with platform(home, pool_size=arguments.pool_size) as deployment:
            for name, part in _selected_parts(arguments).items():
                takeovers(name, part, deployment)
            if "cost" in arguments.parts:
                results.add("cost", lambda: cost.idle(deployment, arguments.idle_s))
            if "throughput" in arguments.parts:
                results.add("throughput", lambda: {"throughput": cost.throughput(deployment, arguments.records)})
        return {}

    def with_several_jobs() -> dict[str, Any]:
        # One host can run the drivers of all jobs, and one more while the slot of a killed driver is not free yet.
        with platform(home / _SEVERAL_HOME, pool_size=arguments.pool_size, slots=several.JOBS + 1) as deployment:
            return {"several": several.measure(arguments.kills, deployment)}

    # A platform that does not start or stop fails alone, as a part does.
    if not _OTHER_PLATFORMS.issuperset(arguments.parts):
        results.add("platform", with_one_job)
    if "several" in arguments.parts:
        results.add("several", with_several_jobs)
    if "wordcount" in arguments.parts:
        results.add("wordcount", lambda: {"wordcount": example.measure(arguments.kills, home / "wordcount")})


def _reduced(kills: int) -> int:
    return max(3, round(kills * _RARE_SHARE))


def _totals(results: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in results.values() if isinstance(part, dict) and "records" in part]
    totals: dict[str, Any] = {name: sum(part[name] for part in parts) for name in _WRONG} if parts else {}
    if {"standby", "cold"} <= set(results):
        totals["times_faster"] = round(results["cold"]["p50_s"] / results["standby"]["p50_s"], 1)
    return totals


def _selected_parts(arguments: argparse.Namespace) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in arguments.parts:
        match name:
            case "standby":
                parts[name] = Part("driver")
            case "live":
                parts[name] = Part("driver", live=True)
            case "state":
                parts |= {f"standby_state_{_size(mb)}": Part("driver", state_mb=mb) for mb in arguments.state_mb}
            case "processor":
                parts[name] = Part("driver", state_mb=arguments.state_mb[0], processor=True)
            case "host":
                parts[name] = Part("host")
            case "cold":
                parts[name] = Part("driver", standbys=0)
            case "pool":
                parts[name] = Part("driver", standbys=0, pool=True)
            case "both":
                parts[name] = Part("both")
    return parts


def _size(megabytes: int) -> str:
    return f"{megabytes // 1000}gb" if megabytes % 1000 == 0 else f"{megabytes}mb"


def _violations(results: dict[str, Any], *, mixed: bool) -> list[str]:
    names = [*_WRONG, *(("dangling_transactions", "orphans") if mixed else ()), "left_after_down", "failed"]
    return [name for name in names if results.get(name)]


if __name__ == "__main__":
    sys.exit(main())
