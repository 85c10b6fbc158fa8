"""The linter's report: findings, their numbers, and their JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from clonos.lint.rules import RULES, Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One finding of the linter: code that may make a replay compute another result."""

    file: str  # path of the file; relative if the file is below the working directory
    line: int  # the line, from 1
    column: int  # the column, from 1
    code: str  # code of the rule
    severity: Severity  # ``error`` or ``warning``
    call: str  # the call as written
    runs: str  # the stage in which the code runs: ``rows``, ``job`` or ``start``
    why: str  # the reason why a replay may differ
    instead: str  # the recommended replacement

    @property
    def message(self) -> str:
        """The finding as one line of text, without position and code."""
        return f"{RULES[self.code].name}: {self.call}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run of the linter on a job's files."""

    findings: tuple[Finding, ...]  # the findings, sorted by file, line and column
    files: tuple[Path, ...]  # the files that belong to the job

    @property
    def errors(self) -> int:
        """Number of findings with the severity ``error``."""
        return sum(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def warnings(self) -> int:
        """Number of findings with the severity ``warning``."""
        return len(self.findings) - self.errors

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON: the stable keys ``findings``, ``files``, ``errors`` and ``warnings``."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "files": len(self.files),
            "errors": self.errors,
            "warnings": self.warnings,
        }

    def summary(self) -> str:
        """Return the last line of the linter's output, with the numbers of errors and warnings."""
        counts = f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"
        return f"{counts} in {_count(len(self.files), 'file')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
