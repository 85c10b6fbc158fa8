"""``clonos job exceptions`` and ``generations``: what the store has of the past of a job."""

from __future__ import annotations

from clonos.cli.options import Api, Context, JobArgument, Limit, Listing, Lists, Token, connect


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
