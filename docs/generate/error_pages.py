"""One page for each error. The `type` of a problem (RFC 9457) is the address of its page."""

from __future__ import annotations

import re
from collections.abc import Mapping

from markdown_text import code, prose, table

from clonos.errors import BY_SLUG, CLASSES, ClonosError
from clonos_api.http.problems import FRAMEWORK_PROBLEMS, http_status

_ROW = re.compile(r"^(\| \d+ \| )`([a-z-]+)`", re.MULTILINE)


def pages() -> Mapping[str, str]:
    """Return the pages, by their path in the site."""
    typed = {f"errors/{cls.slug}.md": _page(cls) for cls in CLASSES}
    untyped = {f"errors/{slug}.md": _framework_page(slug) for slug in FRAMEWORK_PROBLEMS if slug not in BY_SLUG}
    return typed | untyped


def with_links(markdown: str) -> str:
    """Return the table of all errors, with a link from each slug to its page."""
    return _ROW.sub(r"\1[`\2`](errors/\2.md)", markdown)


def _page(cls: type[ClonosError]) -> str:
    what, _, more = (cls.__doc__ or "").partition("Args:")[0].strip().partition("\n\n")
    more = re.sub(r"\bdocs/([\w-]+)\.md(#[\w-]+)?", r"[\1](../\1.md\2)", prose(more))
    what = re.sub(r"\bSee docs/([\w-]+)\.md(#[\w-]+)?", r"See [\1](../\1.md\2)", prose(what))
    base = cls.__base__
    assert base is not None
    facts = [
        ("exit code", code(cls.exit_code)),
        ("HTTP status", code(http_status(cls("")))),
        ("Python class", code(f"clonos.errors.{cls.__name__}")),
        (
            "a kind of",
            f"[{code(base.slug)}]({base.slug}.md)" if issubclass(base, ClonosError) else code(base.__name__),
        ),
        ("a new attempt can succeed without a change", "yes" if cls.retry else "no"),
    ]
    if cls.outage:
        facts.append(("counted by the restart policy", "no: a system on which the job depends is unavailable"))
    children = [child for child in CLASSES if child.__base__ is cls]
    kinds = "".join(f"- [`{child.slug}`]({child.slug}.md)\n" for child in children)
    return _text(
        cls.slug,
        what,
        cls.kept_default or "the message states it.",
        cls.hint_default or "the message states it.",
        (f"{more}\n\n" if more else "")
        + table(["", ""], facts)
        + (f"\n## More exact errors\n\n{kinds}" if kinds else ""),
    )


def _framework_page(slug: str) -> str:
    what, kept, hint = FRAMEWORK_PROBLEMS[slug]
    return _text(slug, what, kept, hint, "Only the REST API has this problem.\n")


def _text(slug: str, what: str, kept: str, hint: str, more: str) -> str:
    return (
        f"# {slug}\n\n{what}\n\n**Kept safe:** {kept}\n\n**What to do:** {hint}\n\n"
        f"The message of an error has these three parts too, for the case at hand. Its text comes first.\n\n{more}\n"
        "[All errors](../errors.md) · [Troubleshooting](../troubleshooting.md)\n"
    )
