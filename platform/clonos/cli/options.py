"""Options that many commands have, and the client that they make."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.errors import SpecError, Unauthenticated

if TYPE_CHECKING:
    from clonos.client import Client


_TIME = re.compile(r"(\d{1,6})([smhd])")


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


class Listing(StrEnum):
    """How a list is printed; ``name``: one name a line, for scripts."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Listed = Annotated[Output, typer.Option("--output", "-o", help="How to print it.")]
Lists = Annotated[Listing, typer.Option("--output", "-o", help="How to print it.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="So many at the most (default: all).")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name or id of the job.")]

_PANEL = "Control plane"
Api = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_API",
        help="Address of the control plane (default: the one that `clonos up` started).",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_TOKEN",
        help="Who you are (default: credentials.json in CLONOS_HOME). Others can read your command line: "
        "prefer the variable.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


@contextmanager
def connect(api: str | None, token: str | None, *, patience_s: float = 5.0) -> Iterator[Client]:
    """The client for what the options, the environment or the credentials file name."""
    from stamina.instrumentation import set_on_retry_hooks

    from clonos.client import Client
    from clonos.client.credentials import resolve
    from clonos.settings import Settings

    # It would log to stdout, between the lines of an answer; who waits too long gets an error that says why.
    set_on_retry_hooks([])
    found = resolve(Settings().home, api, token)
    authorities = os.environ.get("CLONOS_API_CA")
    with Client(found.api, found.token, patience_s=patience_s, ca=Path(authorities) if authorities else None) as client:
        try:
            yield client
        except Unauthenticated as error:
            hint = "set CLONOS_TOKEN (or --token) to a valid one; `clonos up` writes one for its own control plane."
            raise Unauthenticated(f"{found.api}: {error.what}", kept=error.kept, hint=hint) from error


@contextmanager
def until_interrupted() -> Iterator[None]:
    """What goes on until Ctrl-C or SIGTERM, and is no failure then."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``name=value`` options.

    Raises:
        SpecError: One is something else.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"{option} {text!r} is not name=value.")
        found[key] = value
    return found


def seconds(text: str, option: str) -> int:
    """A time as people write it: 90s, 10m, 12h, 30d.

    Raises:
        SpecError: It is none.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise SpecError(f"{option} {text} is not a time.", hint="use a number with s, m, h or d, such as 12h.")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[found[2]]
