"""``clonos demo``: kills running jobs, and checks their output."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import Annotated, Literal

import typer

from clonos.cli.options import echo

Example = Literal["wordcount", "orders", "enrich", "live", "all"]


def demo(
    example: Annotated[
        Example | None,
        typer.Option(
            help="Example to play; `all`: one after the other, with the kills divided among them. "
            "Default: wordcount, with --json all.",
            show_default=False,
        ),
    ] = None,
    kills: Annotated[int, typer.Option(min=0, help="Number of SIGKILLs.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Seed of the kill times (default: random, and printed).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the verdict, as one JSON object.")] = False,
    plain: Annotated[bool, typer.Option(help="After wordcount, repeat it with plain Spark's Kafka sink.")] = True,
    direct: Annotated[
        bool, typer.Option("--direct", help="Run without a control plane; the demo restarts jobs itself.")
    ] = False,
    standby: Annotated[
        bool, typer.Option(help="Start jobs with a standby; every second kill waits until it is READY.")
    ] = True,
    spark_workers: Annotated[
        int,
        typer.Option(min=0, max=20, help="Run jobs on a Spark cluster of this size; kill executors too."),
    ] = 0,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, help="Input records per second. Default: 20, and 200 for live.", show_default=False),
    ] = None,
) -> None:
    """Kill a running job repeatedly, and verify from its output that every result was published exactly once.

    Exit code 1 if a Clonos job lost, duplicated, reordered or contradicted a record.
    """
    from clonos.settings import Settings
    from clonos.telemetry.printable import console
    from clonos_demo.demo import Demo, Options
    from clonos_demo.example import NAMES, load_example
    from clonos_demo.screen import Screen

    # SIGTERM unwinds like Ctrl-C, so that no Kafka and no job outlives the demo.
    signal.signal(signal.SIGTERM, _leave)
    chosen = example or ("all" if as_json else "wordcount")
    examples = [load_example(name) for name in (NAMES if chosen == "all" else (chosen,))]
    if direct and spark_workers:
        raise typer.BadParameter("--spark-workers needs the control plane: leave out --direct.")
    options = Options(
        kills=kills,
        seed=seed,
        plain=plain,
        records_per_second=rate,
        hosted=not direct,
        spark_workers=spark_workers,
        standby=standby,
    )
    with Screen(console(stderr=as_json)) as screen:
        report = Demo(Settings(), examples, options, screen).run()
        screen.verdict(report.outcomes())
        screen.gaps(report.gaps)
    if as_json:
        echo(json.dumps(report.as_json()))
    if not report.clean:
        raise typer.Exit(1)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
