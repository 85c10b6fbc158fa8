"""Which tests ran, and on which Kafka: said at the end of each run, and of `make test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

USED = pytest.StashKey[set[str]]()
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def used(config: pytest.Config, description: str) -> None:
    """Remember that tests ran on a cluster."""
    config.stash.setdefault(USED, set()).add(description)


def left_out(config: pytest.Config, mark: str, number: int) -> None:
    """Remember that tests were left out."""
    config.stash.setdefault(LEFT_OUT, {})[mark] = number


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
    found |= {f"left out ({mark})": number for mark, number in config.stash.setdefault(LEFT_OUT, {}).items()}
    counts = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    with Path(file).open("a") as out:
        out.write("; Kafka: ".join([f"{what}: {counts or 'nothing ran'}", *clusters]) + "\n")
