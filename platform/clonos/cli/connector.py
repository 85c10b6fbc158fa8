"""``clonos connector``: the sources and sinks that jobs can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clonos.cli.options import Api, Context, Limit, Listed, Listing, Lists, Output, Token, connect, echo
from clonos.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="List sources and sinks, and check their options.")


@app.command("ls")
def list_connectors(
    limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None, context: Context = None
) -> None:
    """List the installed sources and sinks."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        page = client.connectors.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "kind": lambda row: row.kind,
            "name": lambda row: row.name,
            "version": lambda row: row.version,
            "summary": lambda row: row.summary,
            "options": lambda row: ", ".join(sorted(row.options)),
        },
        lambda row: f"{row.kind}/{row.name}",
        none="There are no connectors.",
    )


@app.command()
def validate(
    kind: Annotated[str, typer.Argument(help="source or sink")],
    name: Annotated[str, typer.Argument(help="Name of the source or sink, such as kafka.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE…]", help="Options to check; values are YAML.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="YAML file with options.")] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Check the options of a source or sink. Exit code 1 if they are invalid."""
    from clonos.cli import show

    if kind not in ("source", "sink"):
        raise SpecError(f"{kind} is neither source nor sink.")
    with connect(api, token, context) as client:
        validation = client.connectors.validate(kind, name, _options(options or [], file))
    if output is Output.JSON:
        show.show_json(validation)
    else:
        for problem in validation.problems:
            echo(f"{problem.field}: {problem.what}" + (f" ({problem.hint})" if problem.hint else ""))
        if validation.valid:
            echo("The options are valid.")
    if not validation.valid:
        raise typer.Exit(1)


def _options(texts: list[str], file: Path | None) -> dict[str, Any]:
    import yaml

    from clonos.cli.options import pairs

    try:
        options = yaml.safe_load(file.read_text()) if file is not None else {}
        return {**(options or {}), **{key: yaml.safe_load(value) for key, value in pairs(texts, "option").items()}}
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise SpecError(f"Invalid options: {error}.") from error
