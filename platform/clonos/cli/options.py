"""Options that several commands share, such as ``--api``, and the REST client that these options configure."""

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
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"


class TextOutput(StrEnum):
    """Output format of a command whose lines are no table."""

    TEXT = "text"
    JSON = "json"


class Listing(StrEnum):
    """Output format of a list; ``name`` prints one name per line, for scripts."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Listed = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
Lists = Annotated[Listing, typer.Option("--output", "-o", help="Output format.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of results (default: all).")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the operation is complete.")]
AllowLint = Annotated[bool, typer.Option("--allow-lint", help="Accept code that a replay may contradict.")]
JobPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="The job file (.py), its specification (.yaml), or their folder.")
]
Params = Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")]
JobName = Annotated[str | None, typer.Option("--name", help="Name of the job (default: the specification's).")]
StandbyCount = Annotated[
    int | None,
    typer.Option("--standbys", min=0, max=8, help="Number of standbys (`standby.replicas`).", show_default=False),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", help="Name of a Spark cluster, in place of the specified master or cluster."),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name or id of the job.")]

_PANEL = "Control plane"
Api = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_API",
        help="Address of the control plane (default: the one started by `clonos up`).",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_TOKEN",
        help="API token (default: credentials.json in CLONOS_HOME). Other users can read the command line: "
        "prefer the variable.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


@contextmanager
def connect(api: str | None, token: str | None, *, patience_s: float = 5.0) -> Iterator[Client]:
    """Yield a client for the control plane that the options, the environment or the credentials file name.

    While the control plane is unavailable or busy, the client retries a request for `patience_s` seconds.
    """
    from stamina.instrumentation import set_on_retry_hooks

    from clonos.client import Client
    from clonos.client.credentials import resolve
    from clonos.settings import Settings

    # The default hook logs to stdout, between the lines of the output. A timeout raises an error anyway.
    set_on_retry_hooks([])
    credentials = resolve(Settings().home, api, token)
    authorities = os.environ.get("CLONOS_API_CA")
    ca = Path(authorities) if authorities else None
    with Client(credentials.api, credentials.token, patience_s=patience_s, ca=ca) as client:
        try:
            yield client
        except Unauthenticated as error:
            hint = "set CLONOS_TOKEN (or --token) to a valid token; `clonos up` writes one for its own control plane."
            raise Unauthenticated(f"{credentials.api}: {error.what}", kept=error.kept, hint=hint) from error


@contextmanager
def until_interrupted() -> Iterator[None]:
    """A context that ends on Ctrl-C or SIGTERM without an error."""

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
    """Parse the ``name=value`` texts of the command line option `option`: name → value."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"{option} {text!r} is not name=value.")
        values[key] = value
    return values


def seconds(text: str, option: str) -> int:
    """Parse the value of the command line option `option`, a duration such as 90s, 10m, 12h or 30d, in seconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise SpecError(f"{option} {text} is not a duration.", hint="use a number with s, m, h or d, such as 12h.")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]
