"""Options that several commands share, and how commands print, ask and read their values."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.errors import SpecError
from clonos.telemetry.printable import printable, printable_json

if TYPE_CHECKING:
    from clonos.settings import KafkaSettings

_LONGEST_S = 1e10
_REPEAT_S = 0.05


def echo(text: str | bytes, *, err: bool = False, nl: bool = True) -> None:
    """Print a text without control sequences of terminals; bytes are a JSON text, whose value is unchanged."""
    shown = printable(text) if isinstance(text, str) else printable_json(text.decode())
    typer.echo(shown, err=err, nl=nl)


def confirm(question: str) -> None:
    """Ask a question on stderr; `typer.Abort` unless the answer is yes.

    Raises:
        SpecError: There is no one to ask: standard input is at its end.
    """
    try:
        agreed = typer.confirm(printable(question), err=True)
    except typer.Abort as abort:
        if not isinstance(abort.__context__, EOFError):  # Ctrl-C
            raise
        raise SpecError(f"{question} Nobody answers.", kept="nothing was changed.", hint="add --yes.") from None
    if not agreed:
        raise typer.Abort()


class Output(StrEnum):
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"


class TextOutput(StrEnum):
    """Output format of a command that does not print a table."""

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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Take over the job from another platform that has claimed its causal log.")
]
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
    typer.Option(
        "--cluster",
        help="Name of a Spark cluster, instead of the specified master or cluster.",
        autocompletion=completion.clusters,
    ),
]
PublishAgain = Annotated[
    bool,
    typer.Option("--publish-again", help="With --from: allow duplicates of the records published after that point."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(help="A topic that the job publishes to; name all of them (default: those in the causal log)."),
]
Observed = Annotated[float, typer.Option(min=0.1, help="How long to observe a running job.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Name or id of the job.", autocompletion=completion.jobs)
]

_PANEL = "Control plane"
Api = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_API",
        help="Address of the control plane (default: the context's).",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="CLONOS_TOKEN",
        help="API token (default: the context's). Other users can read the command line: prefer the variable.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="CLONOS_CONTEXT",
        help="Context of `clonos login` (default: the current one, else the platform of `clonos up`).",
        rich_help_panel=_PANEL,
        show_default=False,
        autocompletion=completion.contexts,
    ),
]


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run a block that ends on Ctrl-C or SIGTERM without an error."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:  # Python drops what a handler raises while a destructor runs
            threading.Timer(_REPEAT_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            report(dropped)

    before, report = signal.signal(signal.SIGTERM, leave), sys.unraisablehook
    sys.unraisablehook = repeat
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = report


@contextmanager
def valid(invalid: str, *, hint: str = "") -> Iterator[None]:
    """Turn a pydantic error of the block into a `SpecError`, which begins with `invalid`, such as ``Invalid token``."""
    from pydantic import ValidationError

    from clonos.documents import explain

    try:
        yield
    except ValidationError as error:
        raise SpecError(f"{invalid}: {explain(error)}.", hint=hint) from error


def chosen(text: str, option: str, values: Sequence[str]) -> str:
    """Return the value of an option, which is one of `values`; raise `SpecError` if it is not."""
    if text not in values:
        raise SpecError(f"{option} {text} is unknown.", hint=f"use one of {', '.join(values)}.")
    return text


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse the ``name=value`` texts of the command line option `option`: name → value."""
    values = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"{option} {text!r} is not name=value.")
        values[key] = value
    return values


def seconds(text: str, option: str) -> int:
    """Parse the value of the command line option `option`, a duration such as 90s, 10min, 1h30m or 30d, in seconds."""
    from clonos.units import parse_duration

    try:
        return round(min(parse_duration(text), _LONGEST_S))
    except ValueError as error:
        hint = "use a number with s, m (min), h or d, such as 12h."
        raise SpecError(f"{option} {text} is not a duration.", hint=hint) from error


def before_now(age: str | None, option: str) -> datetime | None:
    """Return the time that is as long ago as the value of the command line option `option` says."""
    return datetime.now(UTC) - timedelta(seconds=seconds(age, option)) if age else None


def kafka_of_jobs() -> KafkaSettings:
    """Return the Kafka that jobs use: the configured one, else the embedded one of this machine."""
    from clonos.embedded.reachable import reachable_kafka
    from clonos.settings import Settings

    return reachable_kafka(Settings())
