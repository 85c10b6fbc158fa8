"""``clonos login``, ``logout``, ``context`` and ``open``: the control planes that this user's commands reach."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clonos.cli import completion, show
from clonos.cli.options import Listed, Listing, Lists, Output, echo
from clonos.cli.remote import Call, remote
from clonos.errors import ApiError, ControlPlaneUnavailable, NotFound, SpecError, Unauthenticated

if TYPE_CHECKING:
    from clonos.client.credentials import Credentials
    from clonos.resources.service import Token

app = typer.Typer(no_args_is_help=True, help="Choose between the control planes of `clonos login`.")

_STDIN: Final = "-"

ContextName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=completion.contexts)
]


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the control plane, such as https://HOST:8484.")],
    token: Annotated[
        str | None,
        typer.Option(
            envvar="CLONOS_TOKEN",
            help="API token; -: read it from standard input (default: ask for it). Other users can read the command "
            "line: prefer -.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="Name of the context (default: host name and port).", show_default=False
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="PEM file with the authorities to trust.")
    ] = None,
) -> None:
    """Check a token for a control plane and store it; commands use this control plane from now on.

    The file has mode 0600 and is below the folder of the user's settings (XDG_CONFIG_HOME).
    """
    from clonos.client.contexts import Contexts, check_name
    from clonos.client.credentials import Credentials

    api = _address(url)
    name = check_name(context or _name_of(api))
    credentials = Credentials(api, _secret(token), ca.absolute() if ca is not None else None)
    own = _own_token(credentials)
    with Contexts.changing() as contexts:
        contexts.stored[name], contexts.current = credentials, name
    echo(f"Logged in to {api} as {own.subject} ({own.role}); the context is {name}.")
    echo(f"The token is in {Contexts.file()}, which only you can read.", err=True)


def logout(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            envvar="CLONOS_CONTEXT",
            help="Name of the context (default: the current one).",
            show_default=False,
            autocompletion=completion.contexts,
        ),
    ] = None,
) -> None:
    """Remove the token of a context from this machine. It stays valid: this revokes nothing."""
    from clonos.client.contexts import Contexts
    from clonos.client.credentials import Credentials

    with Contexts.changing() as contexts:
        name = _stored_name(context or contexts.current)
        entry = contexts.get(name)
        contexts.stored[name] = Credentials(entry.api, None, entry.ca)
    if entry.token is None:
        echo(f"The context {name} has no token.")
        return
    echo(f"The token of {name} is removed from this machine.")
    echo(f"It stays valid. An administrator revokes it with: clonos token revoke {_id_of(entry.token)}", err=True)


@app.command("ls")
def list_contexts(output: Lists = Listing.TABLE) -> None:
    """List the contexts; `*` marks the current one."""
    from rich.table import Table

    from clonos.client.contexts import Contexts

    contexts = Contexts.read()
    entries = {**_local(), **contexts.stored}
    if output is Listing.JSON:
        show.show_json(
            {"data": [_described(name, entry, current=name == contexts.current) for name, entry in entries.items()]}
        )
    elif output is Listing.NAME:
        for name in entries:
            echo(name)
    elif not entries:
        echo("There are no contexts. Log in with: clonos login URL", err=True)
    else:
        table = Table("", "name", "address", "token", box=None, pad_edge=False, header_style="dim")
        for name, entry in entries.items():
            current = "*" if name == contexts.current else ""
            table.add_row(current, name, entry.api, _id_of(entry.token) if entry.token else "-")
        show.console().print(table)


@app.command()
def use(name: ContextName) -> None:
    """Make a context the current one; `local` is the platform of `clonos up`."""
    from clonos.client.contexts import LOCAL, Contexts

    with Contexts.changing() as contexts:
        if name != LOCAL:
            contexts.get(name)
        contexts.current = name
    echo(f"Commands use the context {name}.")


@app.command("rm")
def remove(name: ContextName) -> None:
    """Remove a context with its token. The token stays valid."""
    from clonos.client.contexts import LOCAL, Contexts

    with Contexts.changing() as contexts:
        entry = contexts.get(_stored_name(name))
        del contexts.stored[name]
        if contexts.current == name:
            contexts.current = LOCAL
    echo(f"The context {name} is removed." + (" Its token stays valid." if entry.token else ""))


@app.command("show")
def show_current(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the context (default: the one that commands use).",
            show_default=False,
            envvar="CLONOS_CONTEXT",
            autocompletion=completion.contexts,
        ),
    ] = None,
    output: Listed = Output.TABLE,
) -> None:
    """Show a context: its address, its certificate authorities and the id of its token."""
    from clonos.client.contexts import LOCAL, Contexts

    contexts = Contexts.read()
    shown = name or contexts.current
    if shown == LOCAL:
        entry = _local().get(LOCAL)
        if entry is None:
            raise SpecError(
                "There is no current context, and no platform of `clonos up`.",
                kept="nothing was sent.",
                hint="log in with `clonos login URL`, or start a platform with `clonos up`.",
            )
    else:
        entry = contexts.get(shown)
    described = _described(shown, entry, current=shown == contexts.current)
    show.show(described, _text_of, as_json=output is Output.JSON)


def _text_of(described: dict[str, str | bool | None]) -> str:
    words: dict[object, str] = {True: "yes", False: "no"}
    return "\n".join(
        f"{title:<8} {words.get(value, value)}" for title, value in described.items() if value not in (None, "")
    )


def _described(name: str, entry: Credentials, *, current: bool) -> dict[str, str | bool | None]:
    return {
        "name": name,
        "current": current,
        "api": entry.api,
        "token": _id_of(entry.token) if entry.token else None,
        "ca": str(entry.ca) if entry.ca else None,
    }


def _local() -> dict[str, Credentials]:
    from clonos.client.contexts import LOCAL
    from clonos.client.credentials import Credentials
    from clonos.settings import Settings

    entry = Credentials.read(Settings().home)
    return {LOCAL: entry} if entry is not None else {}


def _stored_name(name: str) -> str:
    from clonos.client.contexts import LOCAL

    if name == LOCAL:
        raise SpecError(
            "The context local is the platform of `clonos up`; its token is in CLONOS_HOME.",
            kept="nothing was changed.",
            hint="name another context: `clonos context ls` lists them.",
        )
    return name


def _address(url: str) -> str:
    """Return the address of a control plane without its path; raises `SpecError` if a token must not be sent there."""
    from urllib.parse import urlsplit

    from clonos.client.responses import refuse_plain_http

    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError(
            f"{url} is not the address of a control plane.",
            kept="nothing was sent.",
            hint="use https://HOST:PORT, or http://127.0.0.1:PORT for one on this machine.",
        )
    refuse_plain_http(url)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")


def _name_of(api: str) -> str:
    """Return the default name of a context: host name and port, in the characters of a name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", api.partition("://")[2]).strip("-.")


def _secret(token: str | None) -> str:
    """Read the token from the option, from standard input or from the user's answer."""
    if token is None and not _is_terminal():
        raise SpecError(
            "There is no token, and no terminal to ask for it.",
            kept="nothing was sent.",
            hint="send it on standard input: `clonos login URL --token - < FILE`.",
        )
    if token is None:
        token = typer.prompt("Token", hide_input=True, err=True)
    elif token == _STDIN:
        token = sys.stdin.readline()
    text = token.strip()
    if _id_of(text) == "":
        raise SpecError(
            "This is not an API token: a token begins with clonos_.",
            kept="nothing was sent.",
            hint="copy the whole line that `clonos token create` printed.",
        )
    return text


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _id_of(token: str) -> str:
    """Return the id in a token, which is not secret; empty if the text does not have the form of a token."""
    match = re.fullmatch(r"clonos_([A-Za-z0-9]{1,16})_[!-~]+", token)
    return match[1] if match else ""


def _own_token(credentials: Credentials) -> Token:
    """Ask the control plane for the subject and role of the token.

    Raises:
        CertificateUntrusted: The certificate is not trusted, or for another name.
        ControlPlaneUnavailable: Nothing answers at the address.
        ApiError: What answers there is no control plane.
        Unauthenticated: The control plane does not accept the token.
    """
    from clonos.client import Client

    api, nothing = credentials.api, "nothing was stored."
    try:
        with Client(api, credentials.token, patience_s=0, timeout_s=10.0, ca=credentials.ca) as client:
            return client.tokens.self()
    except ControlPlaneUnavailable as error:
        hint = "check the host name, the port, and whether the address begins with https or http."
        raise ControlPlaneUnavailable(error.what, kept=nothing, hint=hint) from error
    except ApiError as error:
        hint = "use the address that `clonos up` or the operator of the control plane prints, without a path."
        raise ApiError(f"{api} is not a Clonos control plane: {error.what}", kept=nothing, hint=hint) from error
    except Unauthenticated as error:
        hint = (
            "copy the whole token; it may have expired or been revoked. An administrator creates one with "
            "`clonos token create NAME --role operator`."
        )
        raise Unauthenticated(f"{api} does not accept the token.", kept=nothing, hint=hint) from error


@remote()
def open_dashboard(
    call: Call,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name or id of a job (default: the overview).",
            show_default=False,
            autocompletion=completion.jobs,
        ),
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the link, and open no browser.")] = False,
) -> None:
    """Open the dashboard in the browser, signed in by a link that works once, within a minute.

    The session has the rights of your token. The first user of the link is signed in: do not share it.
    """
    import webbrowser
    from urllib.parse import quote, urlencode, urlsplit

    client = call.client
    page = f"/jobs/{quote(client.jobs.get(job).name, safe='')}" if job is not None else "/"
    try:
        # In the fragment, which browsers do not send: the code is in no log.
        fragment = urlencode({"code": client.tokens.sign_in_code().code})
        path = urlsplit(client.api).path + page  # a proxy may publish the service below a path
        link = f"{client.api}/signin?{urlencode({'next': path})}#{fragment}"
    except NotFound:  # the control plane needs no token
        link = client.api + page
    if only_print:
        echo(link)
    elif webbrowser.open(_redirecting_file(link).as_uri()):
        echo(f"The dashboard at {client.api} opens in the browser. Press “Sign in by link” there.")
    else:
        echo("No browser could be started. Open this link within a minute; it works once:", err=True)
        echo(link)


def _redirecting_file(link: str) -> Path:
    """Write a file that only this user can read, and that sends a browser to `link`.

    Other users of the machine can read the browser's command line, and could use the link first.
    """
    from html import escape

    from clonos.private_folders import create_private, write_private
    from clonos.settings import Settings

    file = Settings().home.absolute() / "open.html"
    create_private(file.parent)
    refresh = f'<meta http-equiv="refresh" content="0; url={escape(link)}">'
    write_private(file, f'<!doctype html><title>Clonos</title><meta name="referrer" content="no-referrer">{refresh}')
    return file
