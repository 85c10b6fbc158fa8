"""Which tests ran, and on which Kafka and database: said at the end of each run, and of `make test`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# What tests ran on, and what was not there, by its name (`Kafka`, `PostgreSQL`).
USED = pytest.StashKey[dict[str, set[str]]]()
MISSING = pytest.StashKey[dict[str, str]]()
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def used(config: pytest.Config, what: str, description: str) -> None:
    """Remember that tests ran on a cluster or server."""
    config.stash.setdefault(USED, {}).setdefault(what, set()).add(description)


def missing(config: pytest.Config, what: str, reason: str) -> None:
    """Tests need what is not there: with ``CLONOS_TESTS`` (``all`` or ``ci``) they fail, without they are skipped."""
    if os.environ.get("CLONOS_TESTS") in ("all", "ci"):
        pytest.fail(reason, pytrace=False)
    config.stash.setdefault(MISSING, {})[what] = reason
    pytest.skip(reason)


def left_out(config: pytest.Config, mark: str, number: int) -> None:
    """Remember that tests were left out."""
    config.stash.setdefault(LEFT_OUT, {})[mark] = number


def summarise(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it, and add a line to the file ``CLONOS_TEST_SUMMARY`` if the environment names one."""
    told = [
        f"{what}: {description}"
        for what, found in sorted(config.stash.setdefault(USED, {}).items())
        for description in sorted(found)
    ]
    told += [f"{what}: not run. {reason}" for what, reason in sorted(config.stash.setdefault(MISSING, {}).items())]
    for line in told:
        reporter.write_line(line)
    file = os.environ.get("CLONOS_TEST_SUMMARY")
    if not file:
        return
    what = " ".join(sorted({argument.removeprefix("tests/").partition("::")[0] for argument in config.args}))
    found = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    found |= {f"left out ({mark})": number for mark, number in config.stash.setdefault(LEFT_OUT, {}).items()}
    counts = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    with Path(file).open("a") as out:
        out.write("; ".join([f"{what}: {counts or 'nothing ran'}", *told]) + "\n")
