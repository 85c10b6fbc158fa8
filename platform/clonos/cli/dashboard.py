"""``clonos open``: the dashboard in a browser, by a link that signs in once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Api, Context, Token, connect, echo
from clonos.errors import NotFound


def open_dashboard(
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
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Open the dashboard in the browser, signed in by a link that works once, within a minute.

    The session has the rights of your token. The first user of the link is signed in: do not share it.
    """
    import webbrowser
    from urllib.parse import quote, urlencode, urlsplit

    with connect(api, token, context) as client:
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
    """A file that only this user can read, and that sends a browser to `link`.

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
