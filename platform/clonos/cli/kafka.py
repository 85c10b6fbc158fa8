"""``clonos kafka``: the embedded Kafka of this machine."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import records
from clonos.cli.options import Listed, Output, echo
from clonos.errors import DirectoryInUse
from clonos.signals import stop_on_signals

if TYPE_CHECKING:
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.cluster import ClusterStatus

app = typer.Typer(no_args_is_help=True, help="Manage the embedded Kafka; create topics, produce and consume records.")
app.command()(records.create)
app.command()(records.produce)
app.command()(records.consume)

_POLL_S = 0.5

Directory = Annotated[
    Path | None, typer.Option("--directory", help="Data directory of Kafka (default: kafka in CLONOS_HOME).")
]


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of brokers (default: the previous number, else 1).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the first broker; the others use the next ones (default: free ports)."
        ),
    ] = None,
    directory: Directory = None,
    detach: Annotated[
        bool, typer.Option("--detach/--foreground", help="Run in the background, or until this command stops.")
    ] = True,
) -> None:
    """Start Kafka and print its address."""
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings

    settings = Settings()
    home = directory or settings.home / "kafka"
    count = brokers or len(EmbeddedKafka(home).status().brokers) or 1
    cluster = EmbeddedKafka(
        home,
        brokers=brokers,
        ports=[port + offset for offset in range(count)] if port else None,
        jars=ensure_jars(settings),
    )
    cluster.start()
    status = cluster.status()
    echo(f"Kafka is running at {status.bootstrap_servers}")
    for broker in status.brokers:
        echo(f"  log of broker {broker.node}: {broker.log}")
    if detach:
        option = f" --directory {directory}" if directory else ""
        echo(f"Stop it with: clonos kafka stop{option}")
        return
    echo("Stop it with Ctrl-C.")
    try:
        _wait(cluster)
    finally:
        cluster.stop()
        echo("Kafka has stopped; its data stays.")


@app.command()
def stop(
    directory: Directory = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, although a platform uses this Kafka.")] = False,
) -> None:
    """Stop Kafka; its data stays. Asks if the platform of `clonos up` uses it."""
    cluster = _kafka(directory)
    servers = cluster.status().bootstrap_servers
    if not cluster.status().running:
        echo("Kafka is not running.")
        return
    if not yes:
        _confirm_stop(servers)
    cluster.stop()
    echo("Kafka has stopped; its data stays.")


def _confirm_stop(servers: str) -> None:
    """Ask before the Kafka of a running platform is stopped.

    Raises:
        DirectoryInUse: There is no terminal to ask on.
    """
    from clonos.local.state import Folder, State
    from clonos.settings import Settings

    state = State.read(Folder.of(Settings().home))
    if state is None or not state.supervised or state.kafka != servers:
        return
    used = "The platform of `clonos up` uses this Kafka: its jobs would wait, and it starts Kafka again."
    if not sys.stdin.isatty():
        raise DirectoryInUse(
            used,
            kept="Kafka is running.",
            hint="stop both with `clonos down`, or repeat the command with --yes.",
        )
    typer.confirm(f"{used} Stop Kafka?", abort=True, err=True)


@app.command()
def status(
    directory: Directory = None,
    output: Listed = Output.TABLE,
) -> None:
    """Show whether Kafka runs, and its address."""
    cluster = _kafka(directory).status()
    if output is Output.JSON:
        echo(json.dumps({"running": cluster.running, **asdict(cluster)}, default=str))
        return
    _print(cluster)


def _print(cluster: ClusterStatus) -> None:
    if not cluster.brokers:
        echo(f"There is no Kafka in {cluster.directory}. Start one with: clonos kafka start")
        return
    echo(f"Kafka is running at {cluster.bootstrap_servers}" if cluster.running else "Kafka is not running.")
    from rich.table import Table

    from clonos.telemetry.printable import console

    table = Table("broker", "state", "address", "pid", "log", box=None, pad_edge=False)
    for broker in cluster.brokers:
        table.add_row(str(broker.node), broker.state, broker.address, str(broker.pid or "-"), str(broker.log))
    console(soft_wrap=True).print(table)


def _wait(cluster: EmbeddedKafka) -> None:
    """Wait for SIGINT, SIGTERM or the exit of all brokers."""
    stopping = threading.Event()
    stop_on_signals(stopping.set)
    while not stopping.wait(_POLL_S) and cluster.status().running:
        pass


def _kafka(directory: Path | None) -> EmbeddedKafka:
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.settings import Settings

    return EmbeddedKafka(directory or Settings().home / "kafka")
