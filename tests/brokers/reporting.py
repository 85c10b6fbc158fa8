"""Which Kafka the tests ran on: said at the end of each run, and of `make test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

USED = pytest.StashKey[set[str]]()


def used(config: pytest.Config, description: str) -> None:
    """Remember that tests ran on a cluster."""
    config.stash.setdefault(USED, set()).add(description)


def summarise(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it, and add a line to the file ``CLONOS_TEST_SUMMARY`` if the environment names one."""
    clusters = sorted(config.stash.setdefault(USED, set()))
    for description in clusters:
        reporter.write_line(f"Kafka: {description}")
    file = os.environ.get("CLONOS_TEST_SUMMARY")
    if not file:
        return
    what = " ".join(sorted({argument.removeprefix("tests/").partition("::")[0] for argument in config.args}))
    found = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    counts = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    with Path(file).open("a") as out:
        out.write("; Kafka: ".join([f"{what}: {counts or 'nothing ran'}", *clusters]) + "\n")
