"""``clonos lint``: what in a job's code makes a replay differ."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.lint import Report


class Output(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="JOB…", help="Job files (.py), specifications (.yaml) or folders.")
    ],
    output: Annotated[Output, typer.Option("--output", "-o", help="How findings are printed.")] = Output.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
) -> None:
    """Name calls that make a replay differ, and what to use instead. The code is read, not run.

    Exit code 1 if there are errors, 11 if a file cannot be read.
    """
    from clonos.lint import lint as scan

    report = scan([_job_file(path) for path in paths])
    if output is Output.JSON:
        typer.echo(json.dumps(report.as_json()))
    else:
        _print(report)
    if report.errors or (strict and report.warnings):
        raise typer.Exit(1)


def _job_file(path: Path) -> Path:
    if path.suffix not in {".yaml", ".yml"}:
        return path
    from clonos.spec import read_spec

    main = path.parent / (read_spec(path).spec.main or "job.py")
    if not main.is_file():
        raise SpecError(f"{path} names {main.name} as its job file, which is not there.")
    return main


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.text import Text

    from clonos.lint import Severity

    # Soft wrap and no markup: the lines are also read by editors.
    console = Console(highlight=False, soft_wrap=True)
    for one in report.findings:
        style = "bold red" if one.severity is Severity.ERROR else "bold yellow"
        place = f"{one.file}:{one.line}:{one.column}"
        console.print(Text.assemble((place, "bold"), " ", (one.code, style), " ", one.message))
        console.print(Text.assemble("    ", ("use ", "dim"), one.instead))
    console.print(Text(report.summary(), "" if report.findings else "green"))
