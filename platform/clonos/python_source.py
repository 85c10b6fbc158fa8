"""Parsing of job files into syntax trees, safe in threads."""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Final

# CPython 3.11 counts the depth of syntax trees for all threads together: two threads that parse at the same time
# fail with "AST constructor recursion depth mismatch" when a destructor runs between them.
_ONE_PARSER: Final = threading.Lock()


def parse(content: bytes, name: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a Python file, without warnings about its code, such as invalid escapes.

    Raises:
        SyntaxError, ValueError: The file is not Python.
        RecursionError, MemoryError: An expression is nested too deeply, or the file is too large.
    """
    with _ONE_PARSER, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content, name)
