"""The reference of the command line, from its tree of commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from markdown_text import NOTE, code, prose, table

from clonos.cli.app import app


def page() -> str:
    """Return the page of all commands that are not hidden."""
    root = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        NOTE,
        "",
        "Every command has `--help`. `-o json` is described in [JSON output](../cli-json.md), exit codes in "
        "[errors](../errors.md).",
        "",
    ]
    for name, command in _commands(root, "clonos"):
        lines += [f"## {name}", "", _help(command), "", f"```text\n{name} {_usage(command)}\n```", ""]
        if rows := list(_parameters(command)):
            lines += [table(["argument or option", "default", "meaning"], rows), ""]
    return "\n".join(lines)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for child in getattr(command, "commands", {}).values():
        if child.hidden:
            continue
        if hasattr(child, "commands"):
            yield from _commands(child, f"{name} {child.name}")
        else:
            yield f"{name} {child.name}", child


def _help(command: Any) -> str:
    paragraphs = inspect.cleandoc(command.help or "").replace("\b", "").split("\n\n")
    return "\n\n".join(prose(paragraph) for paragraph in paragraphs)


def _usage(command: Any) -> str:
    arguments = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = _argument(parameter) + ("" if parameter.nargs == 1 else "…")
            arguments.append(name if parameter.required else f"[{name}]")
    return " ".join(["[OPTIONS]", *arguments])


def _argument(parameter: Any) -> str:
    name: str = parameter.metavar or parameter.name.upper()
    return name


def _parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = code(_argument(parameter))
        else:
            flags = [*parameter.opts, *parameter.secondary_opts]
            value = "" if parameter.is_flag else f" {parameter.metavar or _value(parameter)}"
            name = ", ".join(code(flag + (value if flag is flags[-1] else "")) for flag in flags)
        default = parameter.default
        shown = "" if callable(default) or default in (None, False, "", (), []) else code(default)
        yield name, "required" if parameter.required else shown, prose(getattr(parameter, "help", "") or "")


def _value(parameter: Any) -> str:
    """Return what an option takes: its choices, or its type."""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is list:
        (annotation,) = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(annotation, str(parameter.name).upper())
