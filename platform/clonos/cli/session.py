"""``clonos session``: the browsers that are signed in to the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from clonos.cli.options import Api, Context, Limit, Listing, Lists, Token, connect, echo
from clonos.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="List and end the sessions of the dashboard.")


@app.command("ls")
def list_sessions(
    subject: Annotated[str | None, typer.Option(help="Only sessions of this subject.")] = None,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the browsers that are signed in, newest first. `by` is their API token, or oidc."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.sessions.list(subject=subject, limit=limit)
    show.show_list(
        page,
        output,
        {
            "id": lambda row: row.id,
            "subject": lambda row: row.subject,
            "role": lambda row: str(row.role),
            "by": lambda row: row.session_of,
            "begun": lambda row: show.clock(row.created_at),
            "until": lambda row: show.clock(row.expires_at),
            "used": lambda row: show.clock(row.last_used_at),
        },
        lambda row: row.id,
        none="Nobody is signed in.",
    )


@app.command()
def revoke(
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION…", help="Ids of sessions.", show_default=False)
    ] = None,
    subject: Annotated[str | None, typer.Option(help="End all sessions of this subject.")] = None,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """End sessions immediately. API tokens remain valid, and can open new sessions."""
    if bool(sessions) == bool(subject):
        raise SpecError(
            "Name either sessions or a subject.",
            kept="no session was ended.",
            hint="`clonos session ls` lists the ids; --subject ends all sessions of a subject.",
        )
    with connect(api, token, context) as client:
        if subject:
            echo(f"Ended sessions of {subject}: {client.sessions.revoke_all(subject)}")
        for id in sessions or []:
            client.sessions.revoke(id)
            echo(f"{id} is ended.")
