"""Commands put together, and the one mapping from errors to exit codes.

Modules of commands import what they do only when they do it: PySpark, Kafka clients and HTTP take seconds.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from clonos.cli import (
    access,
    agent,
    checkpoint,
    connector,
    db,
    demo,
    doctor,
    events,
    host,
    job,
    kafka,
    lint,
    local,
    log,
    recovery,
    report,
    run,
    submit,
)
from clonos.errors import ClonosError, SpecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Exactly-once PySpark: Kafka to your own code to Kafka.",
)

_HERE = "This machine"
_SERVICE = "Jobs on a control plane"
_RUNNING = "The service itself"

app.command("up", rich_help_panel=_HERE)(local.up)
app.command("down", rich_help_panel=_HERE)(local.down)
app.command("doctor", rich_help_panel=_HERE)(doctor.doctor)
app.command("demo", rich_help_panel=_HERE)(demo.demo)
app.command("report", rich_help_panel=_HERE)(report.report)
app.command("run", rich_help_panel=_HERE)(run.run)
app.command("spare", hidden=True)(run.spare)
app.command("lint", rich_help_panel=_HERE)(lint.lint)
app.add_typer(kafka.app, name="kafka", rich_help_panel=_HERE)
app.add_typer(log.app, name="log", rich_help_panel=_HERE)
app.command("submit", rich_help_panel=_SERVICE)(submit.submit)
app.add_typer(job.app, name="job", rich_help_panel=_SERVICE)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=_SERVICE)
app.add_typer(checkpoint.savepoints, name="savepoint", rich_help_panel=_SERVICE)
app.add_typer(recovery.app, name="recovery", rich_help_panel=_SERVICE)
app.add_typer(connector.app, name="connector", rich_help_panel=_SERVICE)
app.command("events", rich_help_panel=_SERVICE)(events.events)
app.command("agent", rich_help_panel=_RUNNING)(agent.agent)
app.add_typer(host.app, name="host", rich_help_panel=_RUNNING)
app.add_typer(host.standbys, name="standby", rich_help_panel=_RUNNING)
app.add_typer(access.app, name="token", rich_help_panel=_RUNNING)
app.command("audit", rich_help_panel=_RUNNING)(access.audit)
app.add_typer(db.app, name="db", rich_help_panel=_RUNNING)


def main() -> None:
    """Run the command; a `ClonosError` becomes a message on stderr and its exit code."""
    try:
        app()
    except ClonosError as error:
        _fail(error)
    except ValueError as error:
        wrong = _settings_error(error)
        if wrong is None:
            raise
        _fail(wrong)


def _settings_error(error: ValueError) -> SpecError | None:
    """What is wrong in the environment, if that is what the error is about."""
    from pydantic import ValidationError

    from clonos.settings import Settings

    if not isinstance(error, ValidationError) or error.title != Settings.__name__:
        return None
    named = "; ".join(f"CLONOS_{'__'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors())
    return SpecError(f"The environment is not usable: {named}.", hint="correct or unset it.")


def _fail(error: ClonosError) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(f"[bold red]{error.slug}[/]: ", end="")
    console.print(str(error), markup=False, soft_wrap=True)
    sys.exit(error.exit_code)
