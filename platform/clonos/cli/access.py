"""``clonos token`` and ``clonos audit``: who may do what, and who did."""

from __future__ import annotations

from typing import Annotated

import typer

from clonos.cli.options import Api, Limit, Listed, Listing, Lists, Output, Token, connect, seconds
from clonos.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="Tokens: who may do what.")

ROLES = ("viewer", "operator", "admin", "agent")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    role: Annotated[
        str, typer.Option(help="viewer: read; operator: and its own jobs; admin: anything; agent: a host.")
    ],
    subject: Annotated[str | None, typer.Option(help="Whose it is; jobs belong to subjects (default: yours).")] = None,
    agent: Annotated[str | None, typer.Option(help="With --role agent: the only host name that it may use.")] = None,
    expires: Annotated[str, typer.Option(help="After so long, such as 12h or 30d; never: not at all.")] = "30d",
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Make a token. Its secret is printed on stdout, this once."""
    from pydantic import ValidationError

    from clonos.cli import show
    from clonos.resources.service import Role, TokenCreate
    from clonos.spec import explain

    if role not in ROLES:
        raise SpecError(f"--role {role} is not known.", hint=f"use one of {', '.join(ROLES)}.")
    try:
        wish = TokenCreate(name=name, role=Role(role), subject=subject, agent=agent, expires_in_s=_seconds(expires))
    except ValidationError as error:
        raise SpecError(f"There is no such token: {explain(error)}.") from error
    with connect(api, token) as client:
        made = client.tokens.create(wish)
    if output is Output.JSON:
        show.show_json(made)
        return
    until = show.clock(made.expires_at) or "it is revoked"
    typer.echo(f"Token {made.id} ({made.role} for {made.subject}), until {until}. It is not shown again:", err=True)
    typer.echo(made.token)


def _seconds(text: str) -> int | None:
    return None if text == "never" else seconds(text, "--expires")


@app.command("ls")
def list_tokens(limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None) -> None:
    """All tokens, without their secrets."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.tokens.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "id": lambda one: one.id,
            "name": lambda one: one.name,
            "role": lambda one: str(one.role),
            "subject": lambda one: one.subject,
            "host": lambda one: one.agent,
            "created": lambda one: show.clock(one.created_at),
            "until": lambda one: show.clock(one.expires_at) or "for ever",
            "revoked": lambda one: show.clock(one.revoked_at),
            "used": lambda one: show.clock(one.last_used_at),
        },
        lambda one: one.id,
        none="There are no tokens.",
    )


@app.command()
def revoke(
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN…", help="Ids of tokens.")],
    api: Api = None,
    token: Token = None,
) -> None:
    """End tokens at once."""
    with connect(api, token) as client:
        for one in tokens:
            client.tokens.revoke(one)
            typer.echo(f"{one} is revoked.")


@app.command("show")
def show_self(output: Listed = Output.TABLE, api: Api = None, token: Token = None) -> None:
    """Who you are for the control plane."""
    from clonos.cli import show

    with connect(api, token) as client:
        found = client.tokens.self()
        address = client.api
    if output is Output.JSON:
        show.show_json(found)
    else:
        until = show.clock(found.expires_at) or "it is revoked"
        typer.echo(f"{found.subject} ({found.role}) at {address}, with token {found.id} ({found.name}) until {until}")


def audit(limit: Limit = 50, output: Lists = Listing.TABLE, api: Api = None, token: Token = None) -> None:
    """Who did what, or was refused, newest first."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.audit.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "#": lambda one: str(one.seq),
            "at": lambda one: show.clock(one.at),
            "subject": lambda one: one.subject,
            "token": lambda one: one.token,
            "action": lambda one: one.action,
            "target": lambda one: one.target,
            "outcome": lambda one: show.state(one.outcome),
            "detail": lambda one: show.short(" ".join(f"{key}={value}" for key, value in one.detail.items()), 100),
        },
        lambda one: str(one.seq),
        none="Nothing was audited yet.",
    )
