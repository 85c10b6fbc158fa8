"""``clonos job exceptions``, ``generations`` and ``versions``: what the store has of the past of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from clonos.cli.options import Api, Context, JobArgument, Limit, Listing, Lists, Token, connect, echo
from clonos.errors import SpecError


def exceptions(
    job: JobArgument,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the errors of a job's drivers, newest first."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.jobs.exceptions(job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "at": lambda row: show.clock(row.at),
            "generation#": lambda row: str(row.generation),
            "error": lambda row: row.failure.error,
            "retried": lambda row: "yes" if row.failure.retry else "no",
            "what": lambda row: show.short(row.failure.what, 200),
        },
        lambda row: row.failure.error,
        none="Its drivers reported no errors.",
    )


def generations(
    job: JobArgument,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the generations of a job (claims of its causal log), newest first."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.jobs.generations(job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "generation#": lambda row: f"{row.lineage}.{row.generation}",
            "cause": lambda row: row.cause,
            "host": lambda row: row.host,
            "attempt#": lambda row: str(row.attempt),
            "claimed": lambda row: show.clock(row.claimed_at),
            "ended": lambda row: show.clock(row.ended_at),
            "epochs#": lambda row: show.number(row.epochs),
            "records#": lambda row: show.number(row.records),
        },
        lambda row: f"{row.lineage}.{row.generation}",
        none="No driver has claimed its causal log yet.",
    )


def versions(
    job: JobArgument,
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="VERSION…", min=1, help="With --diff: two versions, or one (with the present)."),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show what differs in specification and code.")] = False,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the versions of a job, newest first, or show what differs between two of them.

    Without VERSION, --diff compares the version that runs with the one that the next start runs; if they are the same,
    with the newest other one.
    """
    from clonos.cli import show

    chosen = numbers or []
    if len(chosen) > 2 or (chosen and not diff):
        raise SpecError("A comparison needs --diff and at most two versions.")
    with connect(api, token, context) as client:
        current = client.jobs.get(job)
        page = client.jobs.versions(job, limit=limit)
        if diff:
            runs = current.observed_version or current.version
            if not chosen:
                others = [row.version for row in page.data if row.version != current.version]
                chosen = [runs if runs != current.version else others[0]] if others else [current.version]
            compared = client.jobs.compare_versions(job, *chosen)
            if output is Listing.JSON:
                show.show_json(compared)
                return
            lines = [*compared.spec, *compared.code]
            echo(f"Version {compared.before} and version {compared.after}:", err=True)
            for line in lines:
                show.console().print(line, markup=False, highlight=False, soft_wrap=True)
            if not lines:
                echo("No differences.")
            return
    marks = {current.observed_version: "the newest driver", current.version: "the next start"}
    if current.observed_version == current.version:
        marks[current.version] = "the newest driver, and the next start"
    show.show_list(
        page,
        output,
        {
            "version#": lambda row: str(row.version),
            "runs in": lambda row: marks.get(row.version, ""),
            "created": lambda row: show.clock(row.created_at),
            "created by": lambda row: row.created_by,
            "code": lambda row: row.artifact[:12],
        },
        lambda row: str(row.version),
        none="It has no versions.",
    )
