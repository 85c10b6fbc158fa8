"""How long readers wait when something dies: standbys, whole hosts and cold restarts, on the real platform.

``python -m bench.recovery --json``; ``--kills N`` of each kind, ``--parts``. What ``clonos up`` starts runs (Kafka, the
control plane, two agents that stand for two hosts), one job works on 200 records a second, and something is killed from
outside (SIGKILL). The gap is what a read_committed reader sees: from the kill to the first record that it gets after
it. At the end all of the output is compared with the input: duplicates, lost records, order within each key, and the
counts that a stateful job keeps. Some records are sent twice to a job that keeps what it has seen: what it forgot comes
out as a duplicate.

``--mixed``: one job under kills of every kind at random moments instead, some of them before the platform has got over
the one before; afterwards no transaction is open and no process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.outages import cost, mixed
from bench.outages.platform import Platform, platform
from bench.outages.takeovers import Part, measure

PARTS: Final = ("standby", "state", "processor", "host", "cold", "pool", "cost", "throughput")
_WRONG: Final = ("duplicates", "lost", "order_breaks", "state_breaks")
# Of the kills that are asked for; a cold restart takes long and is always the same.
_COLD_SHARE: Final = 0.1


def main() -> int:
    """Measure, print; 1 if anything is wrong."""
    given = _arguments()
    # Whoever stops us does not want the platform to go on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if given.keep is None:
        with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
            found = _run(given, Path(folder))
    else:
        given.keep.mkdir(parents=True)
        found = _run(given, given.keep.absolute())
    print(json.dumps(found) if given.json else json.dumps(found, indent=1))
    return 1 if found["wrong"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--kills", type=int, default=30, help="of each kind; cold ones a tenth, three at least")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--state-mb", type=int, nargs="+", default=[100, 1000], help="sizes of state")
    parser.add_argument("--mixed", action="store_true", help="kills of every kind on one job, and nothing else")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the mixed kills")
    parser.add_argument("--idle-s", type=float, default=60.0, help="for so long a standby's cost is measured")
    parser.add_argument("--records", type=int, default=12_000_000, help="input of the throughput part")
    parser.add_argument("--keep", type=Path, help="a new folder that is left behind with all logs")
    return parser.parse_args()


def _run(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with platform(home) as where:
        if given.mixed:
            found |= mixed.measure(given.kills, given.seed, where)
        else:
            found |= _parts(given, where)
    if "pool" in given.parts and not given.mixed:
        # Spares would be in the way of the other parts.
        with platform(home / "pool", spares=1) as where:
            found["pool"] = measure("pool", Part("driver", standbys=0, pool=True), _few(given.kills), where)
    found |= _totals(found)
    found["left_after_down"] = mixed.outlived(home) + mixed.outlived(home / "pool")
    found["wrong"] = _wrong(found, mixed=given.mixed)
    return found


def _parts(given: argparse.Namespace, where: Platform) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in _chosen(given).items():
        found[name] = measure(name, part, given.kills if part.standbys else _few(given.kills), where)
    if "cost" in given.parts:
        found["standby_cost"] = cost.idle(where, given.idle_s)
    if "throughput" in given.parts:
        found["throughput"] = cost.throughput(where, given.records)
    return found


def _few(kills: int) -> int:
    return max(3, round(kills * _COLD_SHARE))


def _totals(found: dict[str, Any]) -> dict[str, Any]:
    parts = [one for one in found.values() if isinstance(one, dict) and "records" in one]
    totals: dict[str, Any] = {name: sum(part[name] for part in parts) for name in _WRONG} if parts else {}
    if {"standby", "cold"} <= set(found):
        totals["times_faster"] = round(found["cold"]["p50_s"] / found["standby"]["p50_s"], 1)
    return totals


def _chosen(given: argparse.Namespace) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in given.parts:
        match name:
            case "standby":
                parts[name] = Part("driver")
            case "state":
                parts |= {f"standby_state_{_size(mb)}": Part("driver", state_mb=mb) for mb in given.state_mb}
            case "processor":
                parts[name] = Part("driver", state_mb=given.state_mb[0], processor=True)
            case "host":
                parts[name] = Part("host")
            case "cold":
                parts[name] = Part("driver", standbys=0)
    return parts


def _size(megabytes: int) -> str:
    return f"{megabytes // 1000}gb" if megabytes % 1000 == 0 else f"{megabytes}mb"


def _wrong(found: dict[str, Any], *, mixed: bool) -> list[str]:
    names = [*_WRONG, *(("dangling_transactions", "orphans") if mixed else ()), "left_after_down"]
    return [name for name in names if found.get(name)]


if __name__ == "__main__":
    sys.exit(main())
