"""A variable, a parameter or a function is named for what it holds: some names say nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REFUSED = {"one", "ones", "found", "given", "mine", "theirs"}  # docs/words.txt has others
ROOTS = ("platform/clonos", "api/clonos_api", "sinks/clonos_sinks", "connectors/clonos_connectors")


def refused_names(code: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if name in REFUSED:
            yield node.lineno, name


def test_names_say_what_they_hold() -> None:
    files = [file for root in ROOTS for file in Path(root).rglob("*.py")]
    assert len(files) > 100
    refused = [f"{file}:{line} {name}" for file in files for line, name in refused_names(file.read_text())]
    assert refused == []


def test_each_kind_of_name_is_looked_at() -> None:
    code = "def theirs(found, *, mine):\n    for one in found:\n        given = one\n    return given\n"
    assert sorted(name for _, name in refused_names(code)) == ["found", "given", "mine", "one", "theirs"]
