"""What a run of the linter found, for programs and for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from clonos.lint.rules import RULES, Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place that may compute something else in a replay.

    Attributes:
        file: The file, relative to the working directory where it is below it.
        line: From 1.
        column: From 1.
        code: The rule.
        severity: ``error`` or ``warning``.
        call: The call as written.
        runs: Where this code runs: ``rows``, ``job`` or ``start``.
        why: What makes a replay differ.
        instead: What to use.
    """

    file: str
    line: int
    column: int
    code: str
    severity: Severity
    call: str
    runs: str
    why: str
    instead: str

    @property
    def message(self) -> str:
        """One line, without the place and the code."""
        return f"{RULES[self.code].name}: {self.call}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings in a job's files.

    Attributes:
        findings: By file, line and column.
        files: The files that belong to the job.
    """

    findings: tuple[Finding, ...]
    files: tuple[Path, ...]

    @property
    def errors(self) -> int:
        """How many findings break the promise."""
        return sum(one.severity is Severity.ERROR for one in self.findings)

    @property
    def warnings(self) -> int:
        """How many findings may break it."""
        return len(self.findings) - self.errors

    def as_json(self) -> dict[str, object]:
        """The stable form for programs: ``findings``, ``files``, ``errors``, ``warnings``."""
        return {
            "findings": [asdict(one) for one in self.findings],
            "files": len(self.files),
            "errors": self.errors,
            "warnings": self.warnings,
        }

    def summary(self) -> str:
        """The last line."""
        counts = f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"
        return f"{counts} in {_count(len(self.files), 'file')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
