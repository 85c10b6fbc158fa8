"""``clonos doctor``: diagnose this machine, Kafka and the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from clonos.cli.options import Api, Context, Listed, Output, Token

if TYPE_CHECKING:
    from clonos.doctor import Diagnosis


def doctor(output: Listed = Output.TABLE, api: Api = None, token: Token = None, context: Context = None) -> None:
    """Check this machine, Kafka and the control plane, and explain how to fix each problem.

    Exit code 1 if a check fails; warnings do not count.
    """
    from clonos.cli.show import show_json
    from clonos.doctor import diagnose
    from clonos.settings import Settings

    diagnosis = diagnose(Settings(), api=api, token=token, context=context)
    if output is Output.JSON:
        show_json(diagnosis)
    else:
        _print(diagnosis)
    if diagnosis.status == "fail":
        raise typer.Exit(1)


def _print(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    from clonos.cli.show import console, state

    out = console()
    width = max(len(check.name) for check in diagnosis.checks)
    for check in diagnosis.checks:
        line = Text.assemble(state(check.status), " " * (6 - len(check.status)), f"{check.name:<{width}}  ", check.what)
        out.print(line)
        if check.status != "ok":
            for title, text in (("", check.meaning), ("fix it: ", check.fix)):
                if text:
                    out.print(Text.assemble(" " * (8 + width), (title, "bold"), (text, "" if title else "dim")))
    counts = {status: sum(check.status == status for check in diagnosis.checks) for status in ("fail", "warn", "ok")}
    out.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()), "dim"))
