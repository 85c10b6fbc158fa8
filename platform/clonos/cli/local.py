"""``clonos up`` and ``clonos down``: everything on this machine."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clonos.cli.options import Listed, Output
from clonos.errors import DirectoryTaken

if TYPE_CHECKING:
    from pathlib import Path

    from clonos.local.plan import Plan
    from clonos.local.state import State


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when everything answers; `clonos down` ends it.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Of the API (default: the first free one from 8484 on)."),
    ] = None,
    agents: Annotated[int, typer.Option(min=0, max=20, help="How many hosts to stand for.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="Jobs that each of them may run at once.")] = 2,
    spares: Annotated[
        int, typer.Option(min=0, help="Warm drivers without a job on each of them, for jobs with standby mode pool.")
    ] = 0,
    output: Listed = Output.TABLE,
) -> None:
    """Start Kafka, the control plane and agents on this machine.

    With CLONOS_KAFKA__BOOTSTRAP_SERVERS that Kafka is used. Everything that is written is below CLONOS_HOME.
    """
    from clonos.local.plan import Plan
    from clonos.local.state import State
    from clonos.settings import Settings

    settings = Settings()
    plan = Plan(home=settings.home.absolute(), port=port, agents=agents, slots=slots, spares=spares)
    found = State.read(plan.folder)
    if found is not None and found.ready:
        _show(found, plan.home, output, already=True)
        return
    if found is not None and found.supervised and found.status != "failed":
        raise DirectoryTaken(
            f"Another `clonos up` is {found.status} in {plan.home}.",
            kept="it was left alone.",
            hint="wait for it, end it with `clonos down`, or choose another CLONOS_HOME.",
        )
    if not settings.kafka.bootstrap_servers:
        from clonos.embedded.jars import ensure_jars

        ensure_jars(settings)  # here, where one can see how it goes on
    if detach:
        from clonos.local.background import start

        _show(start(plan, lambda line: typer.echo(line, err=True)), plan.home, output)
    else:
        _foreground(plan, output)


def _foreground(plan: Plan, output: Output) -> None:
    from clonos.local.stack import Stack

    stop = threading.Event()

    def leave(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)

    def ready(state: State) -> None:
        _show(state, plan.home, output)
        typer.echo("Ctrl-C ends it all.", err=True)

    Stack(plan, lambda line: typer.echo(line, err=True), stop).run(ready)
    typer.echo("Everything has ended; data is kept.", err=True)


def down(output: Listed = Output.TABLE) -> None:
    """End what `clonos up` started, jobs included; data is kept, and jobs go on with the next `clonos up`."""
    from clonos.cli.show import show_json
    from clonos.local.stack import down as end
    from clonos.settings import Settings

    ended = end(Settings().home.absolute())
    if output is Output.JSON:
        show_json({"ended": ended})
    else:
        typer.echo("Everything has ended; data is kept." if ended else "Nothing is up.")


def _show(state: State, home: Path, output: Output, *, already: bool = False) -> None:
    from clonos.client.credentials import Credentials
    from clonos.local.state import Folder

    credentials, logs = Credentials.file(home), Folder.of(home).logs
    if output is Output.JSON:
        from clonos.cli.show import show_json

        told: dict[str, Any] = {
            "api": state.api,
            "kafka": state.kafka,
            "hosts": list(state.agents),
            "credentials": str(credentials),
            "logs": str(logs),
            "already": already,
        }
        show_json(told)
        return
    typer.echo("Clonos is up already." if already else "Clonos is up.")
    for name, value in {
        "API": state.api,
        "Kafka": state.kafka,
        "hosts": ", ".join(state.agents) or "none",
        "your token": f"{credentials} (`clonos` finds it; nobody else can read it)",
        "logs": str(logs),
    }.items():
        typer.echo(f"  {name:<18} {value}")
    typer.echo("What to do next:")
    for command, why in {
        "clonos submit PATH --watch": "run a job",
        "clonos job ls": "see what runs",
        "clonos doctor": "see whether all is well",
        "clonos down": "end everything",
    }.items():
        typer.echo(f"  {command:<28} {why}")
