"""``clonos log``: the causal logs of this Kafka, for human eyes. It only reads, and no job notices."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from clonos.cli.options import Listed, Output

app = typer.Typer(no_args_is_help=True, help="Read causal logs.")

KINDS = ("claim", "allot", "plan", "determinants", "marker", "end", "resolution", "foreign")
_WIDE = 1_000


@app.command("ls")
def list_jobs(output: Listed = Output.TABLE) -> None:
    """All jobs that have a causal log in this Kafka."""
    import msgspec
    from rich.console import Console

    from clonos.cli.causal import overview_json, overview_table
    from clonos.embedded.reachable import reachable_kafka
    from clonos.log.survey import survey
    from clonos.settings import Settings

    found = survey(reachable_kafka(Settings()))
    if output is Output.JSON:
        for job in found:
            typer.echo(msgspec.json.encode(overview_json(job)))
    elif not found:
        typer.echo("No job has a causal log in this Kafka.")
    else:
        # Wide enough for every figure: a narrow terminal wraps lines, a pipe has no edge.
        Console(highlight=False, width=_WIDE).print(overview_table(found))


@app.command()
def cat(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    epoch: Annotated[str | None, typer.Option(help="One epoch (12) or a range (10..12).")] = None,
    query: Annotated[str | None, typer.Option(help="Records of this query only.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Log partition; may be repeated.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"Some of {', '.join(KINDS)}; several with commas.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="The last so many records only.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    entries: Annotated[int, typer.Option(min=0, help="So many answers of one record at the most (text only).")] = 10,
    output: Annotated[Output, typer.Option("--output", "-o", help="Lines to read, or JSON lines.")] = Output.TABLE,
) -> None:
    """The records of a job's causal log, in order of time."""
    from clonos.cli.causal import printer, wanted
    from clonos.embedded.reachable import reachable_kafka
    from clonos.log.history import History
    from clonos.settings import Settings

    keep = wanted(epoch, query, partition, kind)
    history = History(reachable_kafka(Settings()), job)
    stop = threading.Event()
    if follow:
        _on_signals(stop)
    show = printer(job, output, entries)
    try:
        for entered in history.read(keep, last=tail):
            show(entered)
        if follow:
            for entered in history.follow(keep, stop):
                show(entered)
    finally:
        history.close()


def _on_signals(stop: threading.Event) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
