"""``clonos connector``: the sources and sinks that jobs can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clonos.cli.options import Limit, Listed, Lists, pairs
from clonos.cli.remote import Call, remote
from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.resources.service import Validation

app = typer.Typer(no_args_is_help=True, help="List sources and sinks, and check their options.")


@app.command("ls")
@remote(output=Lists)
def list_connectors(call: Call, limit: Limit = None) -> None:
    """List the installed sources and sinks."""
    call.show_list(
        call.client.connectors.list(limit=limit),
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
@remote(output=Listed)
def validate(
    call: Call,
    kind: Annotated[str, typer.Argument(help="source or sink")],
    name: Annotated[str, typer.Argument(help="Name of the source or sink, such as kafka.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE…]", help="Options to check; values are YAML.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="YAML file with options.")] = None,
) -> None:
    """Check the options of a source or sink. Exit code 1 if they are invalid."""
    if kind not in ("source", "sink"):
        raise SpecError(f"{kind} is neither source nor sink.")
    validation = call.client.connectors.validate(kind, name, _options(options or [], file))
    call.show(validation, _findings)
    if not validation.valid:
        raise typer.Exit(1)


def _findings(validation: Validation) -> str:
    lines = [
        f"{problem.field}: {problem.what}" + (f" ({problem.hint})" if problem.hint else "")
        for problem in validation.problems
    ]
    return "\n".join([*lines, *(["The options are valid."] if validation.valid else [])])


def _options(texts: list[str], file: Path | None) -> dict[str, Any]:
    import yaml

    try:
        options = yaml.safe_load(file.read_text()) if file is not None else {}
        return {**(options or {}), **{key: yaml.safe_load(value) for key, value in pairs(texts, "option").items()}}
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise SpecError(f"Invalid options: {error}.") from error
