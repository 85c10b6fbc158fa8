"""``clonos lint``: find code that makes a replay differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import TextOutput, echo
from clonos.errors import CodeNotRepeatable, SpecError

if TYPE_CHECKING:
    from clonos.lint import Report


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="JOB…", help="Job files (.py), specifications (.yaml) or folders.")
    ],
    output: Annotated[TextOutput, typer.Option("--output", "-o", help="Output format.")] = TextOutput.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 for warnings too.")] = False,
) -> None:
    """Find calls that make a replay differ, and suggest replacements. The code is parsed, not executed.

    Exit code 1 if there are errors, 11 if a file cannot be read.
    """
    from clonos.lint import lint as scan

    report = scan([_job_file(path) for path in paths])
    if output is TextOutput.JSON:
        echo(json.dumps(report.as_json()))
    else:
        _print(report)
    if report.errors or (strict and report.warnings):
        raise typer.Exit(1)


def require_repeatable(file: Path, *, allowed: bool) -> None:
    """Print the linter's findings in a job file on stderr; `CodeNotRepeatable` for errors that are not `allowed`."""
    from clonos.lint import lint as scan

    report = scan([file])
    if report.findings:
        _print(report, stderr=True)
    if report.errors and not allowed:
        raise CodeNotRepeatable(f"A replay of {file.name} would differ: {report.summary()}.")


def _job_file(path: Path) -> Path:
    if path.suffix not in {".yaml", ".yml"}:
        return path
    from clonos.jobs.loading import job_file
    from clonos.jobs.spec import read_spec

    main = job_file(path, read_spec(path))
    if not main.is_file():
        raise SpecError(f"{path} names the job file {main.name}, which does not exist.")
    return main


def _print(report: Report, *, stderr: bool = False) -> None:
    from rich.text import Text

    from clonos.lint import Severity
    from clonos.telemetry.printable import console as terminal

    # Editors parse these lines, so they are neither wrapped nor marked up.
    console = terminal(soft_wrap=True, stderr=stderr)
    for finding in report.findings:
        style = "bold red" if finding.severity is Severity.ERROR else "bold yellow"
        location = f"{finding.file}:{finding.line}:{finding.column}"
        console.print(Text.assemble((location, "bold"), " ", (finding.code, style), " ", finding.message))
        console.print(Text.assemble("    ", ("use ", "dim"), finding.instead))
    console.print(Text(report.summary(), "" if report.findings else "green"))
