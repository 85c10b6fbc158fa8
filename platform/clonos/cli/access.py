"""``clonos token`` and ``clonos audit``: API tokens, and the log of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, Context, Limit, Listed, Listing, Lists, Output, Token, connect, echo, seconds
from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.resources.service import Token as TokenResource

app = typer.Typer(no_args_is_help=True, help="Manage API tokens.")

ROLES = ("viewer", "operator", "admin", "agent")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Purpose of the token.")],
    role: Annotated[
        str, typer.Option(help="viewer: read; operator: read, and change own jobs; admin: everything; agent: one host.")
    ],
    subject: Annotated[
        str | None,
        typer.Option(
            help="User that the token acts for; it owns the jobs (default: NAME, if no token or job has that subject)."
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Host name of the agent (with --role agent).")] = None,
    expires: Annotated[str, typer.Option(help="Lifetime, such as 12h or 30d, or never.")] = "30d",
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Create a token. Its secret is printed on stdout once and never shown again."""
    from pydantic import ValidationError

    from clonos.cli import show
    from clonos.documents import explain
    from clonos.resources.service import Role, TokenCreate

    if role not in ROLES:
        raise SpecError(f"--role {role} is unknown.", hint=f"use one of {', '.join(ROLES)}.")
    try:
        request = TokenCreate(name=name, role=Role(role), subject=subject, host=host, expires_in_s=_seconds(expires))
    except ValidationError as error:
        raise SpecError(f"Invalid token request: {explain(error)}.") from error
    with connect(api, token, context) as client:
        created = client.tokens.create(request)
    if output is Output.JSON:
        show.show_json(created)
        return
    echo(f"Token {created.id} ({created.role} for {created.subject}), {_validity(created)}. Shown once:", err=True)
    echo(created.token)


def _validity(token: TokenResource) -> str:
    from clonos.cli import show

    return f"valid until {show.clock(token.expires_at)}" if token.expires_at else "without an expiry"


def _seconds(text: str) -> int | None:
    return None if text == "never" else seconds(text, "--expires")


@app.command("ls")
def list_tokens(
    limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None, context: Context = None
) -> None:
    """List tokens, without their secrets."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.tokens.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "id": lambda row: row.id,
            "name": lambda row: row.name,
            "role": lambda row: str(row.role),
            "subject": lambda row: row.subject,
            "host": lambda row: row.host,
            "created": lambda row: show.clock(row.created_at),
            "until": lambda row: show.clock(row.expires_at) or "never",
            "revoked": lambda row: show.clock(row.revoked_at),
            "used": lambda row: show.clock(row.last_used_at),
        },
        lambda row: row.id,
        none="There are no tokens.",
    )


@app.command()
def revoke(
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN…", help="Ids of tokens.")],
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Revoke API tokens immediately."""
    with connect(api, token, context) as client:
        for token_id in tokens:
            client.tokens.revoke(token_id)
            echo(f"{token_id} is revoked.")


@app.command()
def rotate(
    overlap: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Keep the old token valid for this time, such as 1h. Default: revoke it."),
    ] = None,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Replace your token by a new one with the same rights and lifetime. It is printed on stdout once."""
    overlap_s = seconds(overlap, "--overlap") if overlap else 0
    with connect(api, token, context) as client:
        created = client.tokens.rotate_self(overlap_s=overlap_s)
    until = f"expires in {overlap}" if overlap_s else "is revoked"
    echo(f"Token {created.id} replaces yours, which {until}; {_validity(created)}. Set CLONOS_TOKEN to it:", err=True)
    echo(created.token)


@app.command("show")
def show_self(output: Listed = Output.TABLE, api: Api = None, token: Token = None, context: Context = None) -> None:
    """Show your token: subject, role and expiry."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        current = client.tokens.self()
        address = client.api
    if output is Output.JSON:
        show.show_json(current)
    else:
        echo(f"{current.subject} ({current.role}) at {address}")
        echo(f"token {current.id} ({current.name}), {_validity(current)}")


def audit(
    subject: Annotated[str | None, typer.Option(help="Only requests of this subject.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as job.create, or all of a kind, such as job.")
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only denied requests.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only entries younger than this: 90s, 10m, 2h, 1d.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="AGE", help="Only entries older than this.")] = None,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List changes and denied requests with their subjects, newest first."""
    from datetime import UTC, datetime, timedelta

    from clonos.cli import show

    now = datetime.now(UTC)
    with connect(api, token, context) as client:
        page = client.audit.list(
            subject=subject,
            action=action,
            outcome="denied" if denied else None,
            since=now - timedelta(seconds=seconds(since, "--since")) if since else None,
            until=now - timedelta(seconds=seconds(until, "--until")) if until else None,
            limit=limit,
        )
    show.show_list(
        page,
        output,
        {
            "#": lambda row: str(row.seq),
            "at": lambda row: show.clock(row.at),
            "subject": lambda row: row.subject,
            "token": lambda row: row.token,
            "action": lambda row: row.action,
            "target": lambda row: row.target,
            "outcome": lambda row: show.state(row.outcome),
            "detail": lambda row: show.short(" ".join(f"{key}={value}" for key, value in row.detail.items()), 100),
        },
        lambda row: str(row.seq),
        none="The audit log is empty.",
    )
