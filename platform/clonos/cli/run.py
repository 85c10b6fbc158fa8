"""``clonos run``: one job on this machine, without a control plane."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import pairs

if TYPE_CHECKING:
    from clonos.runner.events import Teller


class Output(StrEnum):
    """How the job's progress is told."""

    TEXT = "text"
    JSON = "json"


def run(
    ctx: typer.Context,
    job: Annotated[Path, typer.Argument(help="The job file (.py), its specification (.yaml), or their folder.")],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark configuration: key=value.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint location (path or URI).")] = None,
    events: Annotated[Path | None, typer.Option(help="Append what happens to this file, as JSON lines.")] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="json: what happens as JSON lines on stdout.")
    ] = Output.TEXT,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines only, on a terminal too.")] = False,
    new_lineage: Annotated[
        bool, typer.Option(help="Start a new lineage: what older runs published does not count any more.")
    ] = False,
    wish: Annotated[
        str, typer.Option(help="Key of that word: a start that repeats it goes on in the lineage that it made.")
    ] = "",
    accept_new_code: Annotated[bool, typer.Option(help="Replay an epoch in doubt with the code as it is now.")] = False,
    standby: Annotated[
        Path | None, typer.Option(help="Only warm up, until this named pipe (made here) says to take over.")
    ] = None,
    lint: Annotated[bool, typer.Option(help="Log what the linter finds in the job's code.")] = True,
) -> None:
    """Run a job until it is stopped (SIGTERM, Ctrl-C)."""
    from clonos.engine.session import Session
    from clonos.job import load_job
    from clonos.logs import configure_logs
    from clonos.runner.process import run_job
    from clonos.settings import Settings
    from clonos.standby.waiting import at_pipe

    settings = Settings()
    configure_logs(settings.log_format, settings.log_level)
    with _stdout_kept(output) as write_line:
        loaded = load_job(job)
        with _telling(
            loaded.spec.name, output, write_line, live=not plain and settings.log_format == "console"
        ) as tell:
            run_job(
                loaded,
                params=pairs(param or [], "--param"),
                conf=pairs(conf or [], "--conf"),
                checkpoint=checkpoint,
                events=events,
                tellers=[tell],
                new_lineage=new_lineage,
                wish=wish,
                accept_new_code=accept_new_code,
                advice=lint,
                session=ctx.find_object(Session),
                first=None
                if standby is None
                else at_pipe(standby, loaded.spec.name, loaded.spec.spec.standby.alone_after_s),
            )


def spare(
    folder: Annotated[Path, typer.Argument(help="Its own; the agent that starts it has made it.")],
    agent: Annotated[int, typer.Option(help="That agent's process: it ends with it.")],
) -> None:
    """Warm up without a job, and run the one that an agent gives (`clonos agent --spares`)."""
    from clonos.cli.app import app
    from clonos.standby.spare import Spare

    one = Spare(folder, agent)
    with one.warm() as session:
        given = one.wait(session)
        if given is not None:
            one.become(given)
            app(given.arguments, obj=session, standalone_mode=False)


@contextlib.contextmanager
def _stdout_kept(output: Output) -> Iterator[Teller]:
    """With JSON lines on stdout, what the job prints goes to stderr."""
    from clonos.runner.events import as_line

    out = sys.stdout

    def write_line(event: dict[str, object]) -> None:
        out.write(as_line(event) + "\n")
        out.flush()

    if output is Output.JSON:
        with contextlib.redirect_stdout(sys.stderr):
            yield write_line
    else:
        yield write_line


@contextlib.contextmanager
def _telling(job: str, output: Output, write_line: Teller, *, live: bool) -> Iterator[Teller]:
    from rich.console import Console

    from clonos.runner.events import log_event

    console = Console(stderr=True)
    if output is Output.JSON:
        yield write_line
    elif live and console.is_terminal and not console.is_dumb_terminal:
        from clonos.cli.live import LiveView

        with LiveView(job) as view:
            yield view.tell
    else:
        yield log_event
