"""Text and tables of generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOTE = "*This page is generated from the code.*"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def prose(text: str) -> str:
    """Return a docstring's text as one line; its double backticks become single ones."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


def code(text: object) -> str:
    """Return the text as code; an empty text stays empty."""
    return f"`{text}`" if str(text) else ""
