"""Failures of the example job ``wordcount``: two queries, a stateful one behind one with an external service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.outages.takeovers import quantiles


def measure(kills: int, home: Path) -> dict[str, Any]:
    """Kill the job's driver `kills` times with a READY standby, and as often without one, with ``clonos demo``.

    Args:
        kills: Number of takeovers.
        home: ``CLONOS_HOME`` of the demo.

    Returns:
        The waiting times of a reader with a standby, those without as ``cold``, and the verdict. A record that
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
    return {
        **quantiles(waited_s["standby"]),
        "cold": quantiles(waited_s["cold"]),
        "determinants_replayed": example["determinants_replayed"],
        "skipped_lanes": example["skipped_lanes"],
        "records": example["expected"],
        "duplicates": example["duplicates"],
        "lost": example["lost"],
        "order_breaks": example["order_breaks"],
        "state_breaks": example["contradictions"],
    }
