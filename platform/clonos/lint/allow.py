"""``# clonos: allow`` comments: a finding on their line is meant, and why."""

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
    """One comment.

    Attributes:
        line: Where it is.
        column: Where it starts in the line, from 0.
        text: As written.
        codes: The rules it silences; none: all.
        used: The rules that it did silence.
    """

    line: int
    column: int
    text: str
    codes: frozenset[str]
    used: set[str] = field(default_factory=set)

    def silences(self, code: str) -> bool:
        """Whether it is meant for this rule; remembers that it was needed."""
        if self.codes and code not in self.codes:
            return False
        self.used.add(code)
        return True

    def complaint(self) -> str | None:
        """What is wrong with the comment."""
        unknown = sorted(self.codes - RULES.keys())
        if unknown:
            return f"there is no rule {', '.join(unknown)}"
        unused = sorted(self.codes - self.used)
        if unused and self.used:
            return f"nothing on this line breaks {', '.join(unused)}"
        return None if self.used else "nothing on this line needs it"


def allows(lines: list[str]) -> dict[int, Allow]:
    """The comments of a file, by line."""
    found: dict[int, Allow] = {}
    if not any("clonos:" in line for line in lines):
        return found  # reading tokens takes longer than all the rest
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT and (match := _ALLOW.search(token.string)):
            line, column = token.start
            codes = frozenset(code.upper() for code in _CODE.findall(match["codes"]))
            found[line] = Allow(line, column + match.start(), token.string[match.start() :].strip(), codes)
    return found
