"""``clonos kafka``: the embedded Kafka, started, asked and stopped from anywhere on this machine."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import records
from clonos.cli.options import Listed, Output

if TYPE_CHECKING:
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.cluster import ClusterStatus

app = typer.Typer(no_args_is_help=True, help="The embedded Kafka of this machine; topics and records by hand.")
app.command()(records.create)
app.command()(records.produce)
app.command()(records.consume)

_LOOK_S = 0.5

Directory = Annotated[
    Path | None, typer.Option("--directory", help="Where it keeps its data (default: kafka in CLONOS_HOME).")
]


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=9, help="How many brokers (default: as many as last time, else 1).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the first broker, the others follow (default: free ones)."),
    ] = None,
    directory: Directory = None,
    detach: Annotated[
        bool, typer.Option("--detach/--foreground", help="Go on in the background, or stop with this command.")
    ] = True,
) -> None:
    """Start Kafka and say where it is."""
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings

    settings = Settings()
    home = directory or settings.home / "kafka"
    found = EmbeddedKafka(home).status()
    count = brokers or len(found.brokers) or 1
    cluster = EmbeddedKafka(
        home,
        brokers=brokers,
        ports=[port + each for each in range(count)] if port else None,
        jars=ensure_jars(settings),
    )
    cluster.start()
    status = cluster.status()
    typer.echo(f"Kafka is running at {status.bootstrap_servers}")
    for broker in status.brokers:
        typer.echo(f"  log of broker {broker.node}: {broker.log}")
    if detach:
        typer.echo(f"Stop it with: clonos kafka stop{_option(directory)}")
        return
    typer.echo("Stop it with Ctrl-C.")
    try:
        _wait(cluster)
    finally:
        cluster.stop()
        typer.echo("Kafka has stopped; its data is kept.")


@app.command()
def stop(directory: Directory = None) -> None:
    """Stop Kafka; its data stays."""
    cluster = _kafka(directory)
    if not cluster.status().running:
        typer.echo("Kafka is not running.")
        return
    cluster.stop()
    typer.echo("Kafka has stopped; its data is kept.")


@app.command()
def status(
    directory: Directory = None,
    output: Listed = Output.TABLE,
) -> None:
    """Say whether Kafka runs, and where."""
    found = _kafka(directory).status()
    if output is Output.JSON:
        typer.echo(json.dumps({"running": found.running, **asdict(found)}, default=str))
        return
    _print(found)


def _print(found: ClusterStatus) -> None:
    if not found.brokers:
        typer.echo(f"There is no Kafka in {found.directory}. Start one with: clonos kafka start")
        return
    typer.echo(f"Kafka is running at {found.bootstrap_servers}" if found.running else "Kafka is not running.")
    from rich.console import Console
    from rich.table import Table

    table = Table("broker", "state", "address", "pid", "log", box=None, pad_edge=False)
    for broker in found.brokers:
        table.add_row(str(broker.node), broker.state, broker.address, str(broker.pid or "-"), str(broker.log))
    Console(highlight=False, soft_wrap=True).print(table)


def _wait(cluster: EmbeddedKafka) -> None:
    """Until someone asks us to stop, or no broker is left."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    while not asked.wait(_LOOK_S) and cluster.status().running:
        pass


def _kafka(directory: Path | None) -> EmbeddedKafka:
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.settings import Settings

    return EmbeddedKafka(directory or Settings().home / "kafka")


def _option(directory: Path | None) -> str:
    return f" --directory {directory}" if directory else ""
