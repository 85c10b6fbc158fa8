"""``clonos demo``."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import Annotated, Literal

import typer

Example = Literal["wordcount", "orders", "enrich", "all"]


def demo(
    example: Annotated[
        Example | None,
        typer.Option(
            help="Which of the examples is played; `all`: one after the other, the kills split over them. "
            "Default: wordcount, with --json all.",
            show_default=False,
        ),
    ] = None,
    kills: Annotated[int, typer.Option(min=0, help="How often jobs are killed with SIGKILL.")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="Decides the moments of the kills; drawn and printed if absent.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, the verdict, and nothing else.")
    ] = False,
    plain: Annotated[
        bool, typer.Option(help="After wordcount, tell the same story with plain Spark's Kafka sink.")
    ] = True,
    direct: Annotated[
        bool, typer.Option("--direct", help="Without the control plane: the demo starts jobs again by itself.")
    ] = False,
    standby: Annotated[
        bool, typer.Option(help="Jobs have a standby, and each second kill waits until it is READY; or none.")
    ] = True,
    rate: Annotated[float, typer.Option(min=0.1, help="Input records a second.")] = 20.0,
) -> None:
    """Kill a running job again and again, and check from outside that it published every result exactly once.

    Exit code 1 if a Clonos job lost, doubled, reordered or contradicted anything.
    """
    from rich.console import Console

    from clonos.demo.scenes import SCENES
    from clonos.demo.screen import Screen
    from clonos.demo.story import Demo, Wishes
    from clonos.settings import Settings

    # SIGTERM unwinds like Ctrl-C does, so that no Kafka and no job outlives the demo.
    signal.signal(signal.SIGTERM, _leave)
    chosen = example or ("all" if as_json else "wordcount")
    scenes = list(SCENES.values()) if chosen == "all" else [SCENES[chosen]]
    wishes = Wishes(kills=kills, seed=seed, plain=plain, records_per_second=rate, hosted=not direct, standby=standby)
    with Screen(Console(stderr=as_json)) as screen:
        report = Demo(Settings(), scenes, wishes, screen).play()
        screen.verdict(report.outcomes())
        screen.gaps(report.gaps)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    if not report.clean:
        raise typer.Exit(1)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
