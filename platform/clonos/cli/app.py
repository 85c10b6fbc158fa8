"""Commands put together, and the one mapping from errors to exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from clonos.cli import agent, demo, kafka, lint, log, run
from clonos.errors import ClonosError, SpecError
from clonos.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(kafka.app, name="kafka")
app.add_typer(log.app, name="log")
app.command("run")(run.run)
app.command("lint")(lint.lint)
app.command("demo")(demo.demo)
app.command("agent")(agent.agent)


def main() -> None:
    """Run the command; a `ClonosError` becomes a message on stderr and its exit code."""
    try:
        app()
    except ClonosError as error:
        _fail(error)
    except ValidationError as error:
        if error.title != Settings.__name__:
            raise
        named = "; ".join(f"CLONOS_{'__'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors())
        _fail(SpecError(f"The environment is not usable: {named}.", hint="correct or unset it."))


def _fail(error: ClonosError) -> NoReturn:
    console = Console(stderr=True, highlight=False)
    console.print(f"[bold red]{error.slug}[/]: ", end="")
    console.print(str(error), markup=False, soft_wrap=True)
    sys.exit(error.exit_code)
