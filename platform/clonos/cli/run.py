"""``clonos run``: one job on this machine, without a control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clonos.errors import SpecError
from clonos.job import load_job


def run(
    job: Annotated[Path, typer.Argument(help="The job file (.py), its specification (.yaml), or their folder.")],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark configuration: key=value.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint location (path or URI).")] = None,
    events: Annotated[Path | None, typer.Option(help="Append what happens to this file, as JSON lines.")] = None,
    new_lineage: Annotated[
        bool, typer.Option(help="Start a new lineage: what older runs published does not count any more.")
    ] = False,
    accept_new_code: Annotated[bool, typer.Option(help="Replay an epoch in doubt with the code as it is now.")] = False,
    lint: Annotated[bool, typer.Option(help="Log what the linter finds in the job's code.")] = True,
) -> None:
    """Run a job until it is stopped (SIGTERM, Ctrl-C)."""
    from clonos.runner.process import run_job

    loaded = load_job(job)
    run_job(
        loaded,
        params=_pairs(param or [], "--param"),
        conf=_pairs(conf or [], "--conf"),
        checkpoint=checkpoint,
        events=events,
        new_lineage=new_lineage,
        accept_new_code=accept_new_code,
        advice=lint,
    )


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"{option} {text!r} is not name=value.")
        pairs[key] = value
    return pairs
