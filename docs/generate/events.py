"""The reference of events, from the calls that create them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from markdown_text import NOTE, code, prose, table


def page(root: Path) -> str:
    """The page of all types of events.

    Args:
        root: The repository.
    """
    rows: dict[str, tuple[str, set[str]]] = {}
    for file in sorted((root / "api/clonos_api").rglob("*.py")):
        for kind, meaning, keys in _created(ast.parse(file.read_text())):
            rows[kind] = (rows[kind][0] if kind in rows else meaning, keys | (rows[kind][1] if kind in rows else set()))
    return "\n".join(
        [
            "# Events of the control plane",
            "",
            NOTE,
            "",
            "`clonos events -f` and `GET /api/v1/events` follow these events. Each also has `seq`, `at`, and the ids "
            "of its job and host, if it is about one. What a driver reports of itself is in "
            "[observing](../observing.md#events).",
            "",
            table(
                ["type", "created when the control plane does this", "fields of `data`"],
                [(code(kind), text, ", ".join(map(code, sorted(keys)))) for kind, (text, keys) in sorted(rows.items())],
            ),
        ]
    )


def _created(tree: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    """Type, meaning and keys of each event that a module creates with ``events.append``."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "events.append" and len(call.args) > 1:
                for kind, creator in _kinds(call.args[1], function, tree):
                    yield kind, prose((ast.get_docstring(creator) or "").partition("\n\n")[0]), _keys(call, function)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _kinds(node: ast.expr, function: _Function, tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    """The types, each with the function that creates the event. A parameter has the values of the module's calls."""
    if isinstance(node, ast.Constant):
        yield str(node.value), function
        return
    if isinstance(node, ast.IfExp):
        yield from (*_kinds(node.body, function, tree), *_kinds(node.orelse, function, tree))
        return
    assert isinstance(node, ast.Name), ast.unparse(node)
    for statement in ast.walk(function):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == node.id and statement.value:
            yield from _kinds(statement.value, function, tree)
            return
    position = [argument.arg for argument in function.args.args].index(node.id)
    for caller in ast.walk(tree):
        if isinstance(caller, _Function):
            for call in ast.walk(caller):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == function.name:
                    argument = call.args[position]
                    assert isinstance(argument, ast.Constant), ast.unparse(argument)
                    yield str(argument.value), caller


def _keys(call: ast.Call, function: ast.AST) -> set[str]:
    data = next((keyword.value for keyword in call.keywords if keyword.arg == "data"), None)
    if isinstance(data, ast.Name):
        keys: set[str] = set()
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value) if name == data.id:
                    keys |= _texts(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict() as value) if name == data.id:
                    keys |= _texts(value)
                case ast.AugAssign(target=ast.Name(id=name), value=ast.Dict() as value) if name == data.id:
                    keys |= _texts(value)
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key))]):
                    keys |= {str(key)} if name == data.id else set()
                case _:
                    pass
        return keys
    return _texts(data) if isinstance(data, ast.Dict) else set()


def _texts(node: ast.Dict) -> set[str]:
    return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
