"""``clonos token``, ``session`` and ``audit``: API tokens, sessions of the dashboard, and the log of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import show
from clonos.cli.options import Limit, Listed, Lists, before_now, chosen, echo, seconds, valid
from clonos.cli.remote import Call, remote
from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.resources.service import Token, TokenCreated

app = typer.Typer(no_args_is_help=True, help="Manage API tokens.")
sessions = typer.Typer(no_args_is_help=True, help="List and end the sessions of the dashboard.")

ROLES = ("viewer", "operator", "admin", "agent")


@app.command()
@remote(output=Listed)
def create(
    call: Call,
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
) -> None:
    """Create a token. Its secret is printed on stdout once and never shown again."""
    from clonos.resources.service import Role, TokenCreate

    kind = Role(chosen(role, "--role", ROLES))
    expires_in_s = None if expires == "never" else seconds(expires, "--expires")
    with valid("Invalid token request"):
        request = TokenCreate(name=name, role=kind, subject=subject, host=host, expires_in_s=expires_in_s)
    call.show(call.client.tokens.create(request), _shown_once)


def _shown_once(token: TokenCreated) -> str:
    """Return the secret, for stdout; what it is goes to stderr."""
    echo(f"Token {token.id} ({token.role} for {token.subject}), {_validity(token)}. Shown once:", err=True)
    return token.token


def _validity(token: Token) -> str:
    return f"valid until {show.clock(token.expires_at)}" if token.expires_at else "without an expiry"


@app.command("ls")
@remote(output=Lists)
def list_tokens(call: Call, limit: Limit = None) -> None:
    """List tokens, without their secrets."""
    call.show_list(
        call.client.tokens.list(limit=limit),
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
        none="There are no tokens.",
    )


@app.command()
@remote()
def revoke(call: Call, tokens: Annotated[list[str], typer.Argument(metavar="TOKEN…", help="Ids of tokens.")]) -> None:
    """Revoke API tokens immediately."""
    for token in tokens:
        call.client.tokens.revoke(token)
        echo(f"{token} is revoked.")


@app.command()
@remote()
def rotate(
    call: Call,
    overlap: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Keep the old token valid for this time, such as 1h. Default: revoke it."),
    ] = None,
) -> None:
    """Replace your token by a new one with the same rights and lifetime. It is printed on stdout once."""
    overlap_s = seconds(overlap, "--overlap") if overlap else 0
    created = call.client.tokens.rotate_self(overlap_s=overlap_s)
    until = f"expires in {overlap}" if overlap_s else "is revoked"
    echo(f"Token {created.id} replaces yours, which {until}; {_validity(created)}. Set CLONOS_TOKEN to it:", err=True)
    echo(created.token)


@app.command("show")
@remote(output=Listed)
def show_self(call: Call) -> None:
    """Show your token: subject, role and expiry."""
    call.show(
        call.client.tokens.self(),
        lambda own: f"{own.subject} ({own.role}) at {call.client.api}\ntoken {own.id} ({own.name}), {_validity(own)}",
    )


@sessions.command("ls")
@remote(output=Lists)
def list_sessions(
    call: Call,
    subject: Annotated[str | None, typer.Option(help="Only sessions of this subject.")] = None,
    limit: Limit = None,
) -> None:
    """List the browsers that are signed in, newest first. `by` is their API token, or oidc."""
    call.show_list(
        call.client.sessions.list(subject=subject, limit=limit),
        {
            "id": lambda row: row.id,
            "subject": lambda row: row.subject,
            "role": lambda row: str(row.role),
            "by": lambda row: row.session_of,
            "begun": lambda row: show.clock(row.created_at),
            "until": lambda row: show.clock(row.expires_at),
            "used": lambda row: show.clock(row.last_used_at),
        },
        none="Nobody is signed in.",
    )


@sessions.command("revoke")
@remote()
def end_sessions(
    call: Call,
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION…", help="Ids of sessions.", show_default=False)
    ] = None,
    subject: Annotated[str | None, typer.Option(help="End all sessions of this subject.")] = None,
) -> None:
    """End sessions immediately. API tokens remain valid, and can open new sessions."""
    if bool(sessions) == bool(subject):
        raise SpecError(
            "Name either sessions or a subject.",
            kept="no session was ended.",
            hint="`clonos session ls` lists the ids; --subject ends all sessions of a subject.",
        )
    if subject:
        echo(f"Ended sessions of {subject}: {call.client.sessions.revoke_all(subject)}")
    for id in sessions or []:
        call.client.sessions.revoke(id)
        echo(f"{id} is ended.")


@remote(output=Lists)
def audit(
    call: Call,
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
) -> None:
    """List changes and denied requests with their subjects, newest first."""
    call.show_list(
        call.client.audit.list(
            subject=subject,
            action=action,
            outcome="denied" if denied else None,
            since=before_now(since, "--since"),
            until=before_now(until, "--until"),
            limit=limit,
        ),
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
        none="The audit log is empty.",
    )
