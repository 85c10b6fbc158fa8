"""All errors, by their slug and exit code, and as the table of `docs/errors.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from clonos.errors import base, consistency, control_plane, environment, run, user
from clonos.errors.base import ClonosError

_MODULES: Final = frozenset(module.__name__ for module in (base, user, environment, consistency, run, control_plane))


def _tree(cls: type[ClonosError], depth: int = 0) -> Iterator[tuple[type[ClonosError], int]]:
    yield cls, depth
    for child in sorted(cls.__subclasses__(), key=lambda child: child.exit_code):
        if child.__module__ in _MODULES:
            yield from _tree(child, depth + 1)


CLASSES: Final = tuple(sorted((cls for cls, _ in _tree(ClonosError)), key=lambda cls: cls.exit_code))
BY_SLUG: Final = {cls.slug: cls for cls in CLASSES}
BY_EXIT_CODE: Final = {cls.exit_code: cls for cls in CLASSES}


def _row(cls: type[ClonosError]) -> str:
    text = " ".join((cls.__doc__ or "").partition("Args:")[0].split())
    text = re.sub(r"docs/((\w+\.md)[\w#-]*)", r"[\2](\1)", text) + (" *Retried.*" if cls.retry else "")
    return f"| {cls.exit_code} | `{cls.slug}` | `{cls.__name__}` | {text} | {cls.hint_default} |"


def markdown() -> str:
    """Return the generated part of `docs/errors.md`: the table of all errors and their tree.

    Returns:
        Markdown text that ends with a newline.
    """
    lines = ["| exit code | slug | class | what happened | what to do |", "|---|---|---|---|---|", *map(_row, CLASSES)]
    lines += ["", "The tree of classes:", "", "```"]
    lines += [f"{'  ' * depth}{cls.__name__}" for cls, depth in _tree(ClonosError)]
    return "\n".join([*lines, "```"]) + "\n"
