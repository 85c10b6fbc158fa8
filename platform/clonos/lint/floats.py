"""Finds the columns with floating-point numbers, by casts and schemas in a job's code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from clonos.lint.names import Module

_FLOAT_TYPES = frozenset({"double", "float", "real"})
_FLOAT_CLASSES = frozenset({"DoubleType", "FloatType"})
_DDL = re.compile(r"(?:^|[,<(])\s*`?(\w+)`?\s*:?\s*(?:double|float|real)\b", re.IGNORECASE)
_NESTED = re.compile(r"(?:struct|array|map)\s*<", re.IGNORECASE)
_FIELD = re.compile(r"\s*`?\w+`?(?:\s+|\s*:\s*)[a-z]+\s*(?:\(\d+(?:,\s*\d+)?\))?(?:\s+not\s+null)?\s*", re.IGNORECASE)
_PARTS = re.compile(r",(?![^(]*\))")


def float_columns(modules: Iterable[Module]) -> frozenset[str]:
    """Names of the columns that an expression casts to double or float, or that a schema declares so."""
    columns: set[str] = set()
    for module in modules:
        for node in ast.walk(module.tree):
            match node:
                case (
                    ast.Call(func=ast.Attribute(attr="withColumn"), args=[ast.Constant(value=str(name)), value])
                    | ast.Call(func=ast.Attribute(value=value, attr="alias"), args=[ast.Constant(value=str(name))])
                ) if is_float(value):
                    columns.add(name)
                case ast.Call(
                    func=ast.Name(id="StructField") | ast.Attribute(attr="StructField"),
                    args=[ast.Constant(value=str(name)), kind, *_],
                ) if _is_float_type(kind):
                    columns.add(name)
                case ast.Constant(value=str(text)) if _looks_like_schema(text):
                    columns.update(match[1] for match in _DDL.finditer(text))
    return frozenset(columns)


def is_float(node: ast.expr, columns: frozenset[str] = frozenset()) -> bool:
    """Whether a column expression is a double or float, according to its last cast."""
    match node:
        case ast.Call(func=ast.Attribute(attr="cast" | "astype" | "try_cast"), args=[kind]):
            return _is_float_type(kind)
        case ast.Call(func=ast.Attribute(attr="alias", value=value)):
            return is_float(value, columns)
        case ast.Constant(value=str(name)):
            return _last(name) in columns
        case ast.Call(func=ast.Attribute(attr="col" | "column") | ast.Name(id="col" | "column"), args=[name]):
            return is_float(name, columns)
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return _last(name) in columns
        case ast.BinOp(left=left, right=right):
            return is_float(left, columns) or is_float(right, columns)
        case ast.Call(args=[first, *_]):
            return is_float(first, columns)
    return False


def _is_float_type(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return text.strip().lower() in _FLOAT_TYPES
        case ast.Call(func=function):
            return _is_float_type(function)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _FLOAT_CLASSES
    return False


def _looks_like_schema(text: str) -> bool:
    if not any(kind in text.lower() for kind in _FLOAT_TYPES):
        return False
    return bool(_NESTED.search(text)) or all(map(_FIELD.fullmatch, _PARTS.split(text)))


def _last(column: str) -> str:
    return column.rpartition(".")[2]
