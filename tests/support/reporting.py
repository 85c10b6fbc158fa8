"""The report at the end of each test run, and of `make test`: the backends used, missing and skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Backends by name (`Kafka`, `PostgreSQL`): descriptions of those used, reasons for those missing.
USED = pytest.StashKey[dict[str, set[str]]]()
MISSING = pytest.StashKey[dict[str, str]]()
# Durations and sizes by name, for the reader.
MEASURED = pytest.StashKey[dict[str, str]]()
# Number of deselected tests by mark.
LEFT_OUT = pytest.StashKey[dict[str, int]]()
# Characters of a failure's traceback in the summary.
REASON_CHARS = 1500


def used(config: pytest.Config, what: str, description: str) -> None:
    """Record that tests ran on a cluster or server."""
    config.stash.setdefault(USED, {}).setdefault(what, set()).add(description)


def measured(config: pytest.Config, what: str, seconds: float) -> None:
    """Record a duration."""
    config.stash.setdefault(MEASURED, {})[what] = f"{seconds:.1f} s"


def weighed(config: pytest.Config, what: str, size_bytes: float) -> None:
    """Record a size."""
    config.stash.setdefault(MEASURED, {})[what] = f"{size_bytes / 1000:.1f} KB"


def missing(config: pytest.Config, what: str, reason: str) -> None:
    """Skip a test whose backend is missing, or fail it if ``CLONOS_TESTS`` is ``all`` or ``ci``."""
    if os.environ.get("CLONOS_TESTS") in ("all", "ci"):
        pytest.fail(reason, pytrace=False)
    config.stash.setdefault(MISSING, {})[what] = reason
    pytest.skip(reason)


def program(config: pytest.Config, name: str) -> str:
    """Path of a program that no script of the repository installs. Without it, skip the test and say so at the end."""
    path = shutil.which(name)
    if path is None:
        reason = "It is not installed."
        config.stash.setdefault(MISSING, {})[name] = reason
        pytest.skip(f"{name}: {reason}")
    return path


def left_out(config: pytest.Config, mark: str, number: int) -> None:
    """Record the number of deselected tests of a mark."""
    config.stash.setdefault(LEFT_OUT, {})[mark] = number


def summarise(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report, and append it to the file that ``CLONOS_TEST_SUMMARY`` names, if it is set.

    The file gets one line, and one more for each failure: a log of CI is often read from its end.
    """
    lines = [
        f"{backend}: {description}"
        for backend, descriptions in sorted(config.stash.setdefault(USED, {}).items())
        for description in sorted(descriptions)
    ]
    lines += [
        f"{backend}: not run. {reason}" for backend, reason in sorted(config.stash.setdefault(MISSING, {}).items())
    ]
    lines += [f"{what}: {text}" for what, text in config.stash.setdefault(MEASURED, {}).items()]
    for line in lines:
        reporter.write_line(line)
    file = os.environ.get("CLONOS_TEST_SUMMARY")
    if not file or config.option.collectonly:
        return
    paths = " ".join(sorted({argument.removeprefix("tests/").partition("::")[0] for argument in config.args}))
    numbers = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    numbers |= {f"left out ({mark})": number for mark, number in config.stash.setdefault(LEFT_OUT, {}).items()}
    counts = ", ".join(f"{count} {kind}" for kind, count in numbers.items() if count)
    with Path(file).open("a") as out:
        out.write("; ".join([f"{paths}: {counts or 'nothing ran'}", *lines]) + "\n")
        for report in [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]:
            out.write(f"  {report.outcome}: {report.nodeid} ({report.when}): {_reason(report)}\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The last lines of a failure's traceback, in one line."""
    text = report.longreprtext.strip()[-REASON_CHARS:]
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
