"""``clonos up``, ``down`` and ``doctor``: the local platform on this machine, and a diagnosis of the machine."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clonos.cli import show
from clonos.cli.options import Api, Context, Listed, Output, Token, echo
from clonos.errors import DirectoryInUse
from clonos.signals import stop_on_signals

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from clonos.doctor import Diagnosis
    from clonos.local.plan import Plan
    from clonos.local.state import State


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the platform is ready; stop it with `clonos down`.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the API (default: the first free port from 8484).")
    ] = None,
    agents: Annotated[int, typer.Option(min=0, max=20, help="Number of agents; each acts as one host.")] = 2,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of concurrent drivers per agent (default: what fits, 2 to 8)."),
    ] = None,
    pool_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of warm drivers without a job per agent, for recoveries and standbys "
            "(default: 1 if memory allows; 0 with --spark-workers).",
        ),
    ] = None,
    spark_workers: Annotated[
        int, typer.Option(min=0, max=20, help="Number of workers of a Spark cluster for jobs with cluster: local.")
    ] = 0,
    output: Listed = Output.TABLE,
) -> None:
    """Start Kafka, the control plane and agents on this machine, and a Spark cluster if --spark-workers is set.

    CLONOS_KAFKA__BOOTSTRAP_SERVERS selects an existing Kafka. All files are below CLONOS_HOME.
    """
    from clonos.local.plan import Plan, room_for
    from clonos.local.state import State
    from clonos.settings import Settings

    settings = Settings()
    room = room_for(agents, slots, spark_workers=spark_workers)
    plan = Plan(
        home=settings.home.absolute(),
        port=port,
        agents=agents,
        slots=room.slots,
        pool_size=room.pool_size if pool_size is None else pool_size,
        spark_workers=spark_workers,
    )
    existing = State.read(plan.folder)
    if existing is not None and existing.ready:
        _show(existing, plan.home, output, already=True)
        return
    if existing is not None and existing.supervised and existing.status != "failed":
        raise DirectoryInUse(
            f"Another `clonos up` is {existing.status} in {plan.home}.",
            kept="it keeps running.",
            hint="wait for it, stop it with `clonos down`, or choose another CLONOS_HOME.",
        )
    if room.note:
        echo(room.note, err=True)
    if not settings.kafka.bootstrap_servers:
        from clonos.embedded.jars import ensure_jars

        ensure_jars(settings)  # in the foreground, so that its progress is visible
    if detach:
        from clonos.local.background import start

        _show(start(plan, lambda line: echo(line, err=True)), plan.home, output)
    else:
        _foreground(plan, output)


def _foreground(plan: Plan, output: Output) -> None:
    from clonos.local.stack import Stack

    stop = threading.Event()
    stop_on_signals(stop.set, signal.SIGHUP)

    def ready(state: State) -> None:
        _show(state, plan.home, output)
        echo("Ctrl-C stops everything.", err=True)

    Stack(plan, lambda line: echo(line, err=True), stop).run(ready)
    echo("Everything has stopped; data stays.", err=True)


def down(output: Listed = Output.TABLE) -> None:
    """Stop the platform of `clonos up` and its jobs. Data stays, and jobs continue with the next `clonos up`."""
    from clonos.local.stack import down as stop
    from clonos.settings import Settings

    stopped = stop(Settings().home.absolute())
    ending = "Everything has stopped; data stays." if stopped else "Nothing is running."
    show.show({"ended": stopped}, lambda _: ending, as_json=output is Output.JSON)


def _show(state: State, home: Path, output: Output, *, already: bool = False) -> None:
    from clonos.client.credentials import Credentials
    from clonos.local.state import Folder

    credentials, logs = Credentials.file(home), Folder.of(home).logs
    if output is Output.JSON:
        body: dict[str, Any] = {
            "api": state.api,
            "kafka": state.kafka,
            "hosts": list(state.agents),
            "spark": {"master": state.spark_master, "ui": state.spark_ui} if state.spark_master else None,
            "credentials": str(credentials),
            "logs": str(logs),
            "already": already,
        }
        show.show_json(body)
        return
    echo("Clonos is already running." if already else "Clonos is running.")
    for name, value in {
        "API": state.api,
        "Kafka": state.kafka,
        "hosts": ", ".join(state.agents) or "none",
        **({"Spark": f"{state.spark_master} (cluster: local; {state.spark_ui})"} if state.spark_master else {}),
        "your token": f"{credentials} (used by `clonos`; readable by you only)",
        "logs": str(logs),
    }.items():
        echo(f"  {name:<18} {value}")
    current = _other_context(home)
    if current is not None:
        echo(f"  Commands use the context {current}. For this platform: clonos context use local")
    echo("Next steps:")
    for command, why in {
        "clonos submit PATH --watch": "run a job",
        "clonos open": "open the dashboard, signed in",
        "clonos status": "see what needs attention",
        "clonos doctor": "check this machine",
        "clonos down": "stop everything",
    }.items():
        echo(f"  {command:<28} {why}")


def _other_context(home: Path) -> str | None:
    """Return the current context, if commands reach it and not the platform below `home`."""
    from clonos.client.contexts import Contexts, resolve
    from clonos.client.credentials import Credentials
    from clonos.settings import Settings

    own = Credentials.read(home)
    return None if own is None or resolve(Settings()).api == own.api else Contexts.read().current


def doctor(output: Listed = Output.TABLE, api: Api = None, token: Token = None, context: Context = None) -> None:
    """Check this machine, Kafka and the control plane, and explain how to fix each problem.

    Exit code 1 if a check fails; warnings do not count.
    """
    from clonos.doctor import diagnose
    from clonos.settings import Settings

    diagnosis = diagnose(Settings(), api=api, token=token, context=context)
    show.show(diagnosis, _report, as_json=output is Output.JSON)
    if diagnosis.status == "fail":
        raise typer.Exit(1)


def _report(diagnosis: Diagnosis) -> Text:
    from rich.text import Text

    width = max(len(check.name) for check in diagnosis.checks)
    lines = []
    for check in diagnosis.checks:
        gap = " " * (6 - len(check.status))
        lines.append(Text.assemble(show.state(check.status), gap, f"{check.name:<{width}}  ", check.what))
        if check.status != "ok":
            for title, text in (("", check.meaning), ("fix it: ", check.fix)):
                if text:
                    lines.append(Text.assemble(" " * (8 + width), (title, "bold"), (text, "" if title else "dim")))
    counts = {status: sum(check.status == status for check in diagnosis.checks) for status in ("fail", "warn", "ok")}
    lines.append(Text(", ".join(f"{count} {status}" for status, count in counts.items()), "dim"))
    return Text("\n").join(lines)
