"""``clonos checkpoint`` and ``clonos savepoint``: the finished epochs of a job, and named copies to start from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion, show
from clonos.cli.options import JobArgument, Limit, Listed, Lists, echo, valid
from clonos.cli.progress import completed
from clonos.cli.remote import Call, remote
from clonos.errors import NotFound, SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from clonos.client import Client
    from clonos.resources.checkpoints import Checkpoints, EpochCheckpoint, Savepoint
    from clonos.resources.jobs import StartFrom

app = typer.Typer(no_args_is_help=True, help="Show a job's checkpoints: one per committed epoch.")
savepoints = typer.Typer(no_args_is_help=True, help="Manage savepoints: named copies of a job's checkpoint.")


@app.command("ls")
@remote(output=Lists)
def list_checkpoints(call: Call, job: JobArgument, limit: Limit = 20) -> None:
    """List the newest checkpoints, with totals and durations."""
    from clonos.resources.base import Page

    checkpoints = call.client.checkpoints.get(job, limit=limit)
    if call.as_json:
        show.show_json(checkpoints)
        return
    if call.output == "table":
        show.console().print(_summary(checkpoints))
    call.show_list(
        Page(data=checkpoints.history),
        {
            "epoch#": lambda row: str(row.epoch),
            "query": lambda row: row.query,
            "status": lambda row: show.state(row.status),
            "trigger": _trigger,
            "generation#": lambda row: str(row.generation),
            "completed": lambda row: show.clock(row.completed_at),
            "took#": lambda row: show.duration(row.duration_ms),
            "in#": lambda row: show.number(row.records_in),
            "out#": lambda row: show.number(row.records_out),
            "size#": lambda row: show.size(row.size_bytes),
            "retained": lambda row: "yes" if row.retained else "no",
        },
        none="No epoch is committed yet.",
    )


def _trigger(checkpoint: EpochCheckpoint) -> str:
    return f"live, {show.number(checkpoint.steps)} steps" if checkpoint.live else checkpoint.trigger.lower()


def _summary(checkpoints: Checkpoints) -> str:
    counts, of = checkpoints.counts, checkpoints.summary.duration_ms
    totals = (
        f"{counts.completed} completed, {counts.failed} failed, {counts.restored} restored, {counts.retained} retained"
    )
    durations = ", ".join(f"{name} {show.duration(value)}" for name, value in of.items())
    return totals + (f"; duration: {durations}" if durations else "")


@app.command("inspect")
@remote(output=Listed)
def inspect(
    call: Call,
    job: JobArgument,
    epoch: Annotated[int, typer.Argument(min=0, help="Number of the epoch.")],
    query: Annotated[str | None, typer.Option(help="Query (sink), if the job has several.")] = None,
) -> None:
    """Show one checkpoint: its offsets and the duration of each step."""
    call.show(call.client.checkpoints.of_epoch(job, epoch, query=query), _details)


def _details(checkpoint: EpochCheckpoint) -> Table:
    table = show.facts(
        {
            "epoch": f"{checkpoint.epoch} of {checkpoint.query}",
            "status": show.state(checkpoint.status),
            "trigger": _trigger(checkpoint),
            "generation": str(checkpoint.generation),
            "completed": show.clock(checkpoint.completed_at),
            "took": show.duration(checkpoint.duration_ms),
            "records": f"{show.number(checkpoint.records_in)} in, {show.number(checkpoint.records_out)} out",
            "size": show.size(checkpoint.size_bytes),
            "retained": "yes, the job can start from it" if checkpoint.retained else "no",
        }
    )
    for topic, partitions in sorted(checkpoint.offsets.items()):
        ends = sorted(partitions.items(), key=lambda item: int(item[0]))
        table.add_row(f"end offsets of {topic}", ", ".join(f"{partition}: {offset}" for partition, offset in ends))
    for span in checkpoint.spans:
        share = round(20 * span.duration_ms / checkpoint.duration_ms) if checkpoint.duration_ms else 0
        table.add_row(span.name, f"{show.duration(span.duration_ms):>8} {'█' * min(share, 20)}")
    return table


@savepoints.command("create")
@remote(waits=True, output=Listed)
def create(
    call: Call,
    job: JobArgument,
    name: Annotated[str | None, typer.Option(help="Unique name within the job (default: job, epoch and time).")] = None,
    location: Annotated[str | None, typer.Option(help="Parent directory (path or URI) of the savepoint.")] = None,
) -> None:
    """Take a savepoint of a running or stopped job."""
    from clonos.resources.checkpoints import SavepointCreate

    with valid("Invalid savepoint"):
        request = SavepointCreate(name=name, location=location)
    operation = call.client.savepoints.create(job, request)
    if call.wait:
        operation = completed(call, operation, job)
    first = "The savepoint is complete." if call.wait else f"The operation is {operation.id}."
    call.show(operation, lambda of: "\n".join([first, *(f"{key}: {value}" for key, value in of.result.items())]))


@savepoints.command("ls")
@remote(output=Lists)
def list_savepoints(
    call: Call,
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
) -> None:
    """List savepoints, also of deleted jobs."""
    call.show_list(
        call.client.savepoints.list(job=job, limit=limit),
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
@remote(waits=True)
def remove(
    call: Call,
    names: Annotated[
        list[str], typer.Argument(metavar="SAVEPOINT…", help="Ids or names.", autocompletion=completion.savepoints)
    ],
    job: Annotated[
        str | None,
        typer.Option(help="Job of the savepoints, if their names are not unique.", autocompletion=completion.jobs),
    ] = None,
) -> None:
    """Delete savepoints and their files."""
    for name in names:
        operation = call.client.savepoints.delete(find_savepoint(call.client, job, name).id)
        if call.wait:
            completed(call, operation, name)
        echo(f"{name} is deleted." if call.wait else f"{name} is being deleted.")


def find_savepoint(client: Client, job: str | None, name: str) -> Savepoint:
    """Return the one savepoint of `job` (None: of any job) with this id or name; `NotFound` for none or several."""
    savepoints = [row for row in client.savepoints.list(job=job).data if name in (row.id, row.name)]
    if len(savepoints) > 1:
        raise NotFound(
            f"{len(savepoints)} savepoints are named {name!r}.", hint="use the id of one: `clonos savepoint ls`."
        )
    if not savepoints:
        where = f"The job {job} has" if job is not None else "There is"
        raise NotFound(f"{where} no savepoint {name!r}.", hint="list them with `clonos savepoint ls`.")
    return savepoints[0]


def starting_point(client: Client, job: str | None, text: str | None, *, publish_again: bool) -> StartFrom | None:
    """Return the starting point of ``--from TEXT``: an epoch, or a savepoint of `job` (None: of any job)."""
    from clonos.resources.jobs import StartFrom

    if text is None:
        if publish_again:
            raise SpecError("--publish-again needs --from.")
        return None
    if text.isdigit():
        return StartFrom(epoch=int(text), publish_again=publish_again)
    return StartFrom(savepoint=find_savepoint(client, job, text).id, publish_again=publish_again)
