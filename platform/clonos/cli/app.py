"""The command tree, and the only mapping from errors to exit codes.

Command modules import their dependencies inside functions: PySpark, Kafka clients and HTTP take seconds to load.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from clonos.cli import (
    access,
    causal_log,
    checkpoint,
    cluster,
    control_plane,
    examples,
    host,
    job,
    job_history,
    kafka,
    lint,
    local,
    login,
    logs,
    run,
    status,
    submit,
)
from clonos.cli.options import echo
from clonos.errors import ClonosError, SpecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Exactly-once PySpark jobs from Kafka to Kafka.",
)

_HERE = "This machine"
_SERVICE = "Jobs on a control plane"
_RUNNING = "Control plane administration"

app.command("up", rich_help_panel=_HERE)(local.up)
app.command("down", rich_help_panel=_HERE)(local.down)
app.command("doctor", rich_help_panel=_HERE)(local.doctor)
for installed in entry_points(group="clonos.commands"):  # the demo is a package beside the examples
    app.command(installed.name, rich_help_panel=_HERE)(installed.load())
app.command("run", rich_help_panel=_HERE)(run.run)
app.command("pool-driver", hidden=True)(run.pool_driver)
app.command("lint", rich_help_panel=_HERE)(lint.lint)
app.add_typer(kafka.app, name="kafka", rich_help_panel=_HERE)
app.add_typer(causal_log.app, name="causal-log", rich_help_panel=_HERE)
app.command("verify", rich_help_panel=_HERE)(causal_log.verify)
app.add_typer(kafka.transactions, name="transactions", rich_help_panel=_HERE)
app.command("login", rich_help_panel=_SERVICE)(login.login)
app.command("logout", rich_help_panel=_SERVICE)(login.logout)
app.add_typer(login.app, name="context", rich_help_panel=_SERVICE)
app.command("open", rich_help_panel=_SERVICE)(login.open_dashboard)
app.command("apply", rich_help_panel=_SERVICE)(submit.apply)
app.command("submit", rich_help_panel=_SERVICE)(submit.submit)
job.app.command("exceptions")(job_history.exceptions)
job.app.command("generations")(job_history.generations)
job.app.command("versions")(job_history.versions)
app.add_typer(job.app, name="job", rich_help_panel=_SERVICE)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=_SERVICE)
app.add_typer(checkpoint.savepoints, name="savepoint", rich_help_panel=_SERVICE)
app.add_typer(job_history.recovery, name="recovery", rich_help_panel=_SERVICE)
app.add_typer(cluster.connectors, name="connector", rich_help_panel=_SERVICE)
app.command("status", rich_help_panel=_SERVICE)(status.status)
app.command("ps", rich_help_panel=_SERVICE)(job.list_jobs)
app.command("logs", rich_help_panel=_SERVICE, help=logs.HELP)(logs.logs)
app.command("events", rich_help_panel=_SERVICE)(logs.events)
app.command("agent", rich_help_panel=_RUNNING)(control_plane.agent)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_RUNNING)
app.add_typer(host.app, name="host", rich_help_panel=_RUNNING)
app.add_typer(host.standbys, name="standby", rich_help_panel=_RUNNING)
app.add_typer(access.app, name="token", rich_help_panel=_RUNNING)
app.add_typer(access.sessions, name="session", rich_help_panel=_RUNNING)
app.command("audit", rich_help_panel=_RUNNING)(access.audit)
app.add_typer(control_plane.db, name="db", rich_help_panel=_RUNNING)
app.add_typer(control_plane.backup, name="backup", rich_help_panel=_RUNNING)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        echo(f"clonos {version('clonos')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the whole program."""


examples.add_examples(app)


def main() -> None:
    """Run the command; a `ClonosError` becomes a message on stderr and its exit code."""
    try:
        app()
    except ClonosError as error:
        _fail(error)
    except ValueError as error:
        invalid = _settings_error(error)
        if invalid is None:
            raise
        _fail(invalid)


def _settings_error(error: ValueError) -> SpecError | None:
    """Return the error about invalid environment variables; None if `error` has another cause."""
    from pydantic import ValidationError

    from clonos.documents import describe_problem
    from clonos.settings import Settings

    if not isinstance(error, ValidationError) or error.title != Settings.__name__:
        return None
    problems = "; ".join(
        f"CLONOS_{'__'.join(map(str, item['loc'])).upper()}: {describe_problem(item)}" for item in error.errors()
    )
    return SpecError(f"Invalid environment variables: {problems}.", hint="correct or unset them.")


def _fail(error: ClonosError) -> NoReturn:
    from rich.text import Text

    from clonos.telemetry.printable import console

    console(stderr=True, soft_wrap=True).print(Text.assemble((error.slug, "bold red"), ": ", str(error)))
    sys.exit(error.exit_code)
