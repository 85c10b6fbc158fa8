"""No sentence of the documentation has more than 25 words.

What counts:

- A code span, a link's text and a number are read as they stand; a code span is one word.
- A sentence ends with `.`, `!` or `?` in front of a space. A colon ends it as well: what follows is an
  explanation or a list. A semicolon does not: two clauses that are too long together are two sentences.
- A heading, a list item and a table cell stand by themselves. Nouns in a row count like other words: more than 25
  are a list, or several cells.
- Fenced blocks and HTML comments hold no sentences.

Decision records and the changelog are a record of their time; nobody rewrites them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.page_shell import ROOT

MOST_WORDS: Final = 25
_RECORDS: Final = ("docs/adr/", "CHANGELOG.md")

_SKIPPED: Final = re.compile(r"^( *)(```+).*?^\1\2 *$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_BLOCK: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+>#]|\d+\.)\s)|\n(?=\s*\|)|(?<!\\)\|")
_END: Final = re.compile(r"[.!?][)\"*_]*\s+(?=[A-Z0-9\"(*_])|:[*_]*\s+")


def pages() -> list[Path]:
    """All Markdown files that Git knows, without records."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(_RECORDS)]


def long_sentences(text: str) -> list[str]:
    """The sentences of a page that have too many words, each with its count."""
    return [f"{count} words: {sentence}" for sentence in _sentences(text) if (count := _words(sentence)) > MOST_WORDS]


def _sentences(text: str) -> Iterator[str]:
    plain = _LINK.sub(r"\1", _CODE.sub("X", _SKIPPED.sub("", text)))
    for block in _BLOCK.split(plain):
        yield from _END.split(" ".join(block.split()))


def _words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path) -> None:
    found = long_sentences(page.read_text())
    assert not found, "\n".join(found)


_LONG: Final = " ".join(["word"] * 26)
_SHORT: Final = " ".join(["word"] * 25)


@pytest.mark.parametrize(
    "text",
    [
        f"{_LONG}.",
        f"{_SHORT}; and more.",
        f"{_SHORT}\nmore.",
        f"- An item.\n- {_LONG}.",
        f"| a | {_LONG} |",
        f"# {_LONG}",
        f"[{_LONG}](page.md)",
        f"`a` {_SHORT}",
        f"```\ncode\n```\n{_LONG}",
    ],
)
def test_a_long_sentence_is_refused(text: str) -> None:
    assert len(long_sentences(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{_SHORT}. {_SHORT.title()}.",
        f"{_SHORT}: {_SHORT}",
        f"- {_SHORT}\n- {_SHORT}",
        f"| {_SHORT} | {_SHORT} |",
        f"{_SHORT}\n\n{_SHORT}",
        f"```\n{_LONG}\n```",
        f"<!-- {_LONG} -->",
        f"`{_LONG}`",
        f"(It is {' '.join(['word'] * 23)}.) {_SHORT.title()}.",
    ],
)
def test_short_sentences_are_accepted(text: str) -> None:
    assert not long_sentences(text)
