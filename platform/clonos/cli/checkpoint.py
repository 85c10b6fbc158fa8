"""``clonos checkpoint`` and ``clonos savepoint``: points from which a job can be started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, JobArgument, Limit, Listed, Listing, Lists, Output, Token, Wait, connect
from clonos.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from clonos.client import Client
    from clonos.resources.checkpoints import Checkpoint, Checkpoints, Savepoint

app = typer.Typer(no_args_is_help=True, help="A job's checkpoints: one for each finished epoch.")
savepoints = typer.Typer(no_args_is_help=True, help="Copies of a job's checkpoint that are kept by name.")


@app.command("ls")
def list_checkpoints(
    job: JobArgument,
    limit: Limit = 20,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """The newest checkpoints, how many there were, and how long they took."""
    from clonos.cli import show
    from clonos.resources.base import Page

    with connect(api, token) as client:
        found = client.checkpoints.get(job, limit=limit)
    if output is Listing.JSON:
        show.show_json(found)
        return
    if output is Listing.TABLE:
        show.console().print(_summary(found))
    show.show_list(
        Page(data=found.history),
        output,
        {
            "epoch#": lambda one: str(one.epoch),
            "query": lambda one: one.query,
            "status": lambda one: show.state(one.status),
            "trigger": lambda one: one.trigger.lower(),
            "generation#": lambda one: str(one.generation),
            "completed": lambda one: show.clock(one.completed_at),
            "took#": lambda one: show.duration(one.duration_ms),
            "in#": lambda one: show.number(one.records_in),
            "out#": lambda one: show.number(one.records_out),
            "size#": lambda one: show.size(one.size_bytes),
            "retained": lambda one: "yes" if one.retained else "no",
        },
        lambda one: str(one.epoch),
        none="No epoch has finished yet.",
    )


def _summary(found: Checkpoints) -> str:
    from clonos.cli.show import duration

    counts = found.counts
    told = f"{counts.completed} completed, {counts.failed} failed, {counts.restored} restored, "
    took = ", ".join(f"{name} {duration(value)}" for name, value in found.summary.duration_ms.items())
    return told + f"{counts.retained} retained" + (f"; they took: {took}" if took else "")


@app.command("inspect")
def inspect(
    job: JobArgument,
    epoch: Annotated[int, typer.Argument(min=0, help="Number of the epoch.")],
    query: Annotated[str | None, typer.Option(help="Query (sink) of a job that has several.")] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """One checkpoint: its offsets, and what it spent its time with."""
    from clonos.cli import show

    with connect(api, token) as client:
        found = client.checkpoints.one(job, epoch, query=query)
    if output is Output.JSON:
        show.show_json(found)
    else:
        show.console().print(_facts(found))


def _facts(found: Checkpoint) -> RenderableType:
    from rich.table import Table

    from clonos.cli import show

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    rows: dict[str, str | Text | None] = {
        "epoch": f"{found.epoch} of {found.query}",
        "status": show.state(found.status),
        "trigger": found.trigger.lower(),
        "generation": str(found.generation),
        "completed": show.clock(found.completed_at),
        "took": show.duration(found.duration_ms),
        "records": f"{show.number(found.records_in)} in, {show.number(found.records_out)} out",
        "size": show.size(found.size_bytes),
        "retained": "yes, a job can be started from it" if found.retained else "no",
    }
    for name, value in rows.items():
        table.add_row(name, value if value is not None else "-")
    for topic, partitions in sorted(found.offsets.items()):
        ends = sorted(partitions.items(), key=lambda one: int(one[0]))
        table.add_row(f"up to in {topic}", ", ".join(f"{partition}: {offset}" for partition, offset in ends))
    for span in found.spans:
        share = round(20 * span.duration_ms / found.duration_ms) if found.duration_ms else 0
        table.add_row(span.name, f"{show.duration(span.duration_ms):>8} {'█' * min(share, 20)}")
    return table


@savepoints.command("create")
def create(
    job: JobArgument,
    name: Annotated[str | None, typer.Option(help="Unique within the job (default: job, epoch and time).")] = None,
    location: Annotated[str | None, typer.Option(help="Folder (path or URI) to write it below.")] = None,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Take a savepoint of a job, whether it runs or not."""
    from pydantic import ValidationError

    from clonos.cli import show
    from clonos.errors import SpecError
    from clonos.resources.checkpoints import SavepointCreate
    from clonos.spec import explain

    try:
        wish = SavepointCreate(name=name, location=location)
    except ValidationError as error:
        raise SpecError(f"The savepoint cannot be named so: {explain(error)}.") from error
    with connect(api, token) as client:
        operation = client.savepoints.create(job, wish)
        if wait:
            operation = client.operations.wait(operation)
    if output is Output.JSON:
        show.show_json(operation)
        return
    typer.echo("The savepoint is taken." if wait else f"The operation is {operation.id}.")
    for key, value in operation.result.items():
        typer.echo(f"{key}: {value}")


@savepoints.command("ls")
def list_savepoints(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of this job only.", show_default=False)] = None,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """All savepoints; they outlive their jobs."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.savepoints.list(job=job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda one: one.name,
            "id": lambda one: one.id,
            "job": lambda one: one.job_name,
            "state": lambda one: show.state(one.state),
            "epochs": lambda one: ", ".join(f"{query} {epoch}" for query, epoch in sorted(one.epochs.items())),
            "size#": lambda one: show.size(one.size_bytes),
            "version#": lambda one: str(one.version),
            "created": lambda one: show.clock(one.created_at),
            "location": lambda one: one.location,
        },
        lambda one: one.id,
        none="There are no savepoints.",
    )


@savepoints.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="SAVEPOINT…", help="Ids or names.")],
    job: Annotated[str | None, typer.Option(help="Whose, where names are not unique.")] = None,
    wait: Wait = True,
    api: Api = None,
    token: Token = None,
) -> None:
    """Delete savepoints with their files."""
    with connect(api, token) as client:
        for name in names:
            operation = client.savepoints.delete(_find(client, job, name).id)
            if wait:
                client.operations.wait(operation)
            typer.echo(f"{name} is deleted." if wait else f"{name} is being deleted.")


def _find(client: Client, job: str | None, name: str) -> Savepoint:
    found = [one for one in client.savepoints.list(job=job).data if name in (one.id, one.name)]
    if len(found) != 1:
        what = f"{len(found)} savepoints are" if found else "No savepoint is"
        raise NotFound(f"{what} named {name!r}.", hint="name it by its id: `clonos savepoint ls`.")
    return found[0]
