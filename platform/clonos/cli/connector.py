"""``clonos connector``: sources and sinks that jobs can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clonos.cli.options import Api, Limit, Listed, Listing, Lists, Output, Token, connect
from clonos.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="Sources and sinks that jobs can name.")


@app.command("ls")
def list_connectors(limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None) -> None:
    """All sources and sinks that the control plane knows."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.connectors.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "kind": lambda one: one.kind,
            "name": lambda one: one.name,
            "version": lambda one: one.version,
            "summary": lambda one: one.summary,
            "options": lambda one: ", ".join(sorted(one.options)),
        },
        lambda one: f"{one.kind}/{one.name}",
        none="There are no connectors.",
    )


@app.command()
def validate(
    kind: Annotated[str, typer.Argument(help="source or sink")],
    name: Annotated[str, typer.Argument(help="Such as kafka.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE…]", help="Options; values are YAML.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Options in a YAML file.")] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Whether options are usable. Exit code 1 if they are not."""
    from clonos.cli import show

    if kind not in ("source", "sink"):
        raise SpecError(f"{kind} is neither source nor sink.")
    with connect(api, token) as client:
        found = client.connectors.validate(kind, name, _options(options or [], file))
    if output is Output.JSON:
        show.show_json(found)
    else:
        for one in found.problems:
            typer.echo(f"{one.field}: {one.what}" + (f" ({one.hint})" if one.hint else ""))
        if found.valid:
            typer.echo("The options are usable.")
    if not found.valid:
        raise typer.Exit(1)


def _options(texts: list[str], file: Path | None) -> dict[str, Any]:
    import yaml

    from clonos.cli.options import pairs

    try:
        found = yaml.safe_load(file.read_text()) if file is not None else {}
        return {**(found or {}), **{key: yaml.safe_load(value) for key, value in pairs(texts, "option").items()}}
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise SpecError(f"The options are not usable: {error}.") from error
