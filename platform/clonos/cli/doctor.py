"""``clonos doctor``: what is missing or unwell, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from clonos.cli.options import Api, Listed, Output, Token

if TYPE_CHECKING:
    from clonos.doctor import Examination


def doctor(output: Listed = Output.TABLE, api: Api = None, token: Token = None) -> None:
    """Look at this machine, Kafka and the control plane, and say what is wrong and how to mend it.

    Exit code 1 if something fails; warnings are none.
    """
    from clonos.cli.show import show_json
    from clonos.doctor import examine
    from clonos.settings import Settings

    found = examine(Settings(), api=api, token=token)
    if output is Output.JSON:
        show_json(found)
    else:
        _print(found)
    if found.status == "fail":
        raise typer.Exit(1)


def _print(found: Examination) -> None:
    from rich.text import Text

    from clonos.cli.show import console, state

    out = console()
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        told = Text.assemble(state(check.status), " " * (6 - len(check.status)), f"{check.name:<{width}}  ", check.what)
        out.print(told)
        if check.status != "ok":
            for title, text in (("", check.meaning), ("mend it: ", check.mend)):
                if text:
                    out.print(Text.assemble(" " * (8 + width), (title, "bold"), (text, "" if title else "dim")))
    counts = {status: sum(check.status == status for check in found.checks) for status in ("fail", "warn", "ok")}
    out.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()), "dim"))
