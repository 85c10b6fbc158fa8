"""``clonos checkpoint`` and ``clonos savepoint``: the finished epochs of a job, and named copies to start from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import (
    Api,
    Context,
    JobArgument,
    Limit,
    Listed,
    Listing,
    Lists,
    Output,
    Token,
    Wait,
    connect,
    echo,
)
from clonos.cli.progress import Quiet, completed
from clonos.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from clonos.client import Client
    from clonos.resources.checkpoints import Checkpoints, EpochCheckpoint, Savepoint

app = typer.Typer(no_args_is_help=True, help="Show a job's checkpoints: one per committed epoch.")
savepoints = typer.Typer(no_args_is_help=True, help="Manage savepoints: named copies of a job's checkpoint.")


@app.command("ls")
def list_checkpoints(
    job: JobArgument,
    limit: Limit = 20,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the newest checkpoints, with totals and durations."""
    from clonos.cli import show
    from clonos.resources.base import Page

    with connect(api, token, context) as client:
        checkpoints = client.checkpoints.get(job, limit=limit)
    if output is Listing.JSON:
        show.show_json(checkpoints)
        return
    if output is Listing.TABLE:
        show.console().print(_summary(checkpoints))
    show.show_list(
        Page(data=checkpoints.history),
        output,
        {
            "epoch#": lambda row: str(row.epoch),
            "query": lambda row: row.query,
            "status": lambda row: show.state(row.status),
            "trigger": lambda row: row.trigger.lower(),
            "generation#": lambda row: str(row.generation),
            "completed": lambda row: show.clock(row.completed_at),
            "took#": lambda row: show.duration(row.duration_ms),
            "in#": lambda row: show.number(row.records_in),
            "out#": lambda row: show.number(row.records_out),
            "size#": lambda row: show.size(row.size_bytes),
            "retained": lambda row: "yes" if row.retained else "no",
        },
        lambda row: str(row.epoch),
        none="No epoch is committed yet.",
    )


def _summary(checkpoints: Checkpoints) -> str:
    from clonos.cli.show import duration

    counts = checkpoints.counts
    totals = (
        f"{counts.completed} completed, {counts.failed} failed, {counts.restored} restored, {counts.retained} retained"
    )
    durations = ", ".join(f"{name} {duration(value)}" for name, value in checkpoints.summary.duration_ms.items())
    return totals + (f"; duration: {durations}" if durations else "")


@app.command("inspect")
def inspect(
    job: JobArgument,
    epoch: Annotated[int, typer.Argument(min=0, help="Number of the epoch.")],
    query: Annotated[str | None, typer.Option(help="Query (sink), if the job has several.")] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Show one checkpoint: its offsets and the duration of each step."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        checkpoint = client.checkpoints.of_epoch(job, epoch, query=query)
    if output is Output.JSON:
        show.show_json(checkpoint)
    else:
        show.console().print(_details(checkpoint))


def _details(checkpoint: EpochCheckpoint) -> RenderableType:
    from rich.table import Table

    from clonos.cli import show

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    rows: dict[str, str | Text | None] = {
        "epoch": f"{checkpoint.epoch} of {checkpoint.query}",
        "status": show.state(checkpoint.status),
        "trigger": checkpoint.trigger.lower(),
        "generation": str(checkpoint.generation),
        "completed": show.clock(checkpoint.completed_at),
        "took": show.duration(checkpoint.duration_ms),
        "records": f"{show.number(checkpoint.records_in)} in, {show.number(checkpoint.records_out)} out",
        "size": show.size(checkpoint.size_bytes),
        "retained": "yes, the job can start from it" if checkpoint.retained else "no",
    }
    for name, value in rows.items():
        table.add_row(name, value if value is not None else "-")
    for topic, partitions in sorted(checkpoint.offsets.items()):
        ends = sorted(partitions.items(), key=lambda item: int(item[0]))
        table.add_row(f"end offsets of {topic}", ", ".join(f"{partition}: {offset}" for partition, offset in ends))
    for span in checkpoint.spans:
        share = round(20 * span.duration_ms / checkpoint.duration_ms) if checkpoint.duration_ms else 0
        table.add_row(span.name, f"{show.duration(span.duration_ms):>8} {'█' * min(share, 20)}")
    return table


@savepoints.command("create")
def create(
    job: JobArgument,
    name: Annotated[str | None, typer.Option(help="Unique name within the job (default: job, epoch and time).")] = None,
    location: Annotated[str | None, typer.Option(help="Parent directory (path or URI) of the savepoint.")] = None,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Take a savepoint of a running or stopped job."""
    from pydantic import ValidationError

    from clonos.cli import show
    from clonos.documents import explain
    from clonos.errors import SpecError
    from clonos.resources.checkpoints import SavepointCreate

    try:
        request = SavepointCreate(name=name, location=location)
    except ValidationError as error:
        raise SpecError(f"Invalid savepoint: {explain(error)}.") from error
    with connect(api, token, context) as client:
        operation = client.savepoints.create(job, request)
        if wait:
            operation = completed(client, operation, job, quiet=quiet, output=output)
    if output is Output.JSON:
        show.show_json(operation)
        return
    echo("The savepoint is complete." if wait else f"The operation is {operation.id}.")
    for key, value in operation.result.items():
        echo(f"{key}: {value}")


@savepoints.command("ls")
def list_savepoints(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Show savepoints of this job only.",
            show_default=False,
            autocompletion=completion.jobs,
        ),
    ] = None,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List savepoints, including those of deleted jobs."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.savepoints.list(job=job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda row: row.name,
            "id": lambda row: row.id,
            "job": lambda row: row.job_name,
            "state": lambda row: show.state(row.state),
            "epochs": lambda row: ", ".join(f"{query} {epoch}" for query, epoch in sorted(row.epochs.items())),
            "size#": lambda row: show.size(row.size_bytes),
            "version#": lambda row: str(row.version),
            "created": lambda row: show.clock(row.created_at),
            "location": lambda row: row.location,
        },
        lambda row: row.id,
        none="There are no savepoints.",
    )


@savepoints.command("rm")
def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="SAVEPOINT…", help="Ids or names.", autocompletion=completion.savepoints)
    ],
    job: Annotated[
        str | None,
        typer.Option(help="Job of the savepoints, if their names are not unique.", autocompletion=completion.jobs),
    ] = None,
    wait: Wait = True,
    quiet: Quiet = False,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Delete savepoints and their files."""
    with connect(api, token, context) as client:
        for name in names:
            operation = client.savepoints.delete(find_savepoint(client, job, name).id)
            if wait:
                completed(client, operation, name, quiet=quiet)
            echo(f"{name} is deleted." if wait else f"{name} is being deleted.")


def find_savepoint(client: Client, job: str | None, name: str) -> Savepoint:
    """The one savepoint of `job` (None: of any job) with this id or name; raises `NotFound` for none or several."""
    savepoints = [row for row in client.savepoints.list(job=job).data if name in (row.id, row.name)]
    if len(savepoints) > 1:
        raise NotFound(
            f"{len(savepoints)} savepoints are named {name!r}.", hint="use the id of one: `clonos savepoint ls`."
        )
    if not savepoints:
        where = f"The job {job} has" if job is not None else "There is"
        raise NotFound(f"{where} no savepoint {name!r}.", hint="list them with `clonos savepoint ls`.")
    return savepoints[0]
