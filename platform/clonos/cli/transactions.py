"""``clonos transactions``: open transactions of a Kafka cluster, and the jobs that own them."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from clonos.cli import show
from clonos.cli.options import Listing, Lists, Yes, confirm, echo, kafka_of_jobs
from clonos.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="Show and abort open transactions of Kafka.")


@app.command("ls")
def list_transactions(
    everything: Annotated[
        bool, typer.Option("--all", help="Also transactional ids without an open transaction.")
    ] = False,
    job: Annotated[str | None, typer.Option(help="Show the transactions of this job only.")] = None,
    output: Lists = Listing.TABLE,
) -> None:
    """List open transactions, the oldest first, with the job that owns each: read_committed readers wait for them."""
    import msgspec
    from rich.table import Table

    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings
    from clonos.spark.transactions import transactions

    rows = [
        row
        for row in transactions(kafka_of_jobs(), ensure_jars(Settings()))
        if (everything or row.is_open) and job in (None, row.job)
    ]
    if output is Listing.JSON:
        data = [msgspec.to_builtins(row) | {"job": row.job} for row in rows]
        echo(msgspec.json.encode({"data": data, "has_more": False, "next": None}))
    elif output is Listing.NAME:
        for row in rows:
            echo(row.id)
    elif not rows:
        echo("No transaction is open.", err=True)
    else:
        table = Table("transactional id", "job", "state", "since", "timeout", "topics", box=None, header_style="dim")
        for row in rows:
            since = show.clock(dt.datetime.fromtimestamp(row.started_ms / 1000, dt.UTC)) if row.started_ms > 0 else "-"
            topics = ", ".join(row.topics) or "-"
            table.add_row(row.id, row.job or "-", row.state, since, f"{row.timeout_ms / 1000:g} s", topics)
        show.console().print(table)


@app.command()
def abort(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Transactional ids.")] = None,
    job: Annotated[str | None, typer.Option(help="Abort all open transactions of this job.")] = None,
    yes: Yes = False,
) -> None:
    """Abort open transactions, and fence their producers. A running job replays its epoch; nothing is lost."""
    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings
    from clonos.spark import transactions

    if bool(ids) == (job is not None):
        raise SpecError("Name transactional ids, or a job with --job.", hint="`clonos transactions ls` lists both.")
    kafka, jars = kafka_of_jobs(), ensure_jars(Settings())
    listed = transactions.transactions(kafka, jars)
    unknown = sorted(set(ids or ()) - {row.id for row in listed})
    if unknown:
        raise SpecError(
            f"Kafka knows no transactional id {unknown[0]!r}.", hint="`clonos transactions ls --all` lists them."
        )
    due = [row.id for row in listed if row.is_open and (row.job == job if job is not None else row.id in (ids or ()))]
    if not due:
        echo("None of them has an open transaction.", err=True)
        return
    if not yes:
        confirm(f"Abort {len(due)} open transactions: {', '.join(due)}?")
    transactions.abort(kafka, jars, due)
    for name in due:
        echo(name)
