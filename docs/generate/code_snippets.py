"""Shows functions of examples in pages: a line that is only a link to a function becomes its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

_LINK: Final = re.compile(r"^\[`(?P<name>\w+)` in `(?P<file>[\w/.]+\.py)`\]\(\S+\)$", re.MULTILINE)


def with_code(markdown: str, root: Path) -> str:
    """The text with the source of each function that a line links.

    Args:
        markdown: The text of a page.
        root: The repository.

    Raises:
        StopIteration: The file has no such function.
    """

    def source(match: re.Match[str]) -> str:
        text = (root / match["file"]).read_text()
        function = next(
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == match["name"]
        )
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        lines = "\n".join(text.splitlines()[first - 1 : function.end_lineno])
        return f'```python title="{match["file"]}"\n{lines}\n```'

    return _LINK.sub(source, markdown)
