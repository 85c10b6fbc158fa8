"""Text from elsewhere on a terminal: without control sequences, and never as markup.

Messages, names, paths and records come from other users. A control sequence in them could change the terminal's title,
hide lines or write other ones, and a bracket is not markup of Rich. Everything that a command prints goes through
`printable`: by `clonos.cli.options.echo`, or by `console`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

# Colours and other control sequences of terminals; then control characters, except tab and line end, characters that
# reverse the direction of text, and lone surrogates.
_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""`text` without what a terminal would execute: sequences are removed, control characters replaced.

    Example:
        >>> printable("\x1b[31mred\x1b[0m\x07")
        'red\ufffd'
    """
    if text.isprintable():
        return text
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _SEQUENCE.sub("", text))


def printable_json(text: str) -> str:
    """Return a JSON text in which control characters beyond ASCII are escaped; its value is unchanged."""
    return text if text.isprintable() else _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def console(
    *, stderr: bool = False, file: IO[str] | None = None, soft_wrap: bool = False, width: int | None = None
) -> Console:
    """Return a console of Rich that prints only printable text, and reads no markup in it.

    With `soft_wrap`, lines longer than the terminal are left to it.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and not segment.text.isprintable():
                    segment = Segment(printable(segment.text), segment.style)
                yield segment

    return PrintableConsole(
        stderr=stderr, file=file, soft_wrap=soft_wrap, width=width, markup=False, emoji=False, highlight=False
    )
