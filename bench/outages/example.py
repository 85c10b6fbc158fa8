"""Failures of the example job ``wordcount``: two queries, a stateful one behind one with an external service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.outages.takeovers import quantiles, waterfall
from clonos.resources.jobs import Recovery


def measure(kills: int, home: Path) -> dict[str, Any]:
    """Kill the job's driver `kills` times with a rehearsed standby, and as often without one, with ``clonos demo``.

    Args:
        kills: Number of takeovers.
        home: ``CLONOS_HOME`` of the demo.

    Returns:
        The waiting times of a reader of the topic ``words`` with a standby, and those without as ``cold``; ``queries``:
        the downtimes of each query with a standby; ``phases_ms`` with a standby; and the verdict. A record that
        contradicts a recorded answer counts as one of the ``state_breaks``.

    Raises:
        RuntimeError: The demo ended without a result; its reason is on stderr.
    """
    demo = [sys.executable, "-m", "clonos", "demo", "--example", "wordcount", "--no-plain", "--json"]
    process = subprocess.run(
        [*demo, "--kills", str(2 * kills)],
        env={**os.environ, "CLONOS_HOME": str(home)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if not process.stdout:
        raise RuntimeError(f"clonos demo ended with exit code {process.returncode} and without a result")
    results = json.loads(process.stdout.splitlines()[-1])
    waited_s = {kind: results["gaps"][kind]["raw_s"] for kind in ("standby", "cold")}
    example = results["examples"]["wordcount"]
    takeovers = [each for each in map(Recovery.model_validate, example["recoveries"]) if each.standby is not None]
    return {
        **quantiles(waited_s["standby"]),
        "cold": quantiles(waited_s["cold"]),
        "queries": {query: quantiles(downtimes) for query, downtimes in _downtimes_s(takeovers).items()},
        "phases_ms": waterfall(takeovers),
        "determinants_replayed": example["determinants_replayed"],
        "skipped_lanes": example["skipped_lanes"],
        "records": example["expected"],
        "duplicates": example["duplicates"],
        "lost": example["lost"],
        "order_breaks": example["order_breaks"],
        "state_breaks": example["contradictions"],
    }


def _downtimes_s(recoveries: list[Recovery]) -> dict[str, list[float]]:
    downtimes: dict[str, list[float]] = {}
    for recovery in recoveries:
        for query, returned in recovery.returned.items():
            if returned.downtime_ms is not None:
                downtimes.setdefault(query, []).append(returned.downtime_ms / 1000)
    return downtimes
