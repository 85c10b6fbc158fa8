"""Comments ``# clonos: allow``, which silence the linter's findings on their line and give the reason."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

from clonos.lint.rules import RULES

_ALLOW = re.compile(r"#\s*clonos:\s*allow\b(?P<codes>[^#]*?)(?:--(?P<reason>.*))?$")
_CODE = re.compile(r"[A-Za-z]+\d+")


@dataclass(slots=True)
class Allow:
    """One comment ``# clonos: allow``.

    Attributes:
        line: Line of the comment.
        column: Column of the comment, from 0.
        text: The comment as written.
        codes: The rules that the comment silences; empty: all.
        used: The rules whose findings the comment has silenced.
    """

    line: int
    column: int
    text: str
    codes: frozenset[str]
    used: set[str] = field(default_factory=set)

    def silences(self, code: str) -> bool:
        """Whether the comment covers the rule `code`; if so, marks the rule as used."""
        if self.codes and code not in self.codes:
            return False
        self.used.add(code)
        return True

    def complaint(self) -> str | None:
        """Return the error in the comment, as text: an unknown rule, or no finding on its line; None if it is right."""
        unknown = sorted(self.codes - RULES.keys())
        if unknown:
            return f"there is no rule {', '.join(unknown)}"
        unused = sorted(self.codes - self.used)
        if unused and self.used:
            return f"nothing on this line breaks {', '.join(unused)}"
        return None if self.used else "nothing on this line needs it"


def allows(lines: list[str]) -> dict[int, Allow]:
    """Return the ``# clonos: allow`` comments of a file, by line number."""
    comments: dict[int, Allow] = {}
    if not any("clonos:" in line for line in lines):
        return comments  # tokenizing is slower than all other steps
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT and (match := _ALLOW.search(token.string)):
            line, column = token.start
            codes = frozenset(code.upper() for code in _CODE.findall(match["codes"]))
            comments[line] = Allow(line, column + match.start(), token.string[match.start() :].strip(), codes)
    return comments
