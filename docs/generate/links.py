"""Links between documents. In the repository they name files; the site has pages for some of these files only."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Documents outside of `docs`, and their pages.
PAGES: Final = {
    "README.md": "README.md",
    "docs/README.md": "README.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
    "api/README.md": "internals/api.md",
    "bench/README.md": "internals/benchmarks.md",
    "migrations/README.md": "internals/migrations.md",
    "docker/README.md": "deploy/containers.md",
    "docker/kubernetes/README.md": "deploy/kubernetes.md",
    "examples/enrich/README.md": "examples/enrich.md",
    "examples/live/README.md": "examples/live.md",
    "examples/orders/README.md": "examples/orders.md",
    "examples/wordcount/README.md": "examples/wordcount.md",
    "docs/adr": "adr/index.md",
    "docs/runbook": "runbook/index.md",
}
_SOURCES: Final = {page: source for source, page in PAGES.items() if source.endswith(".md") and page != "README.md"}
_FENCE: Final = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def repository_pages(root: Path) -> Mapping[str, str]:
    """Return the documents outside of `docs`, by their path in the site."""
    return {page: (root / source).read_text() for page, source in _SOURCES.items()}


def decisions(root: Path) -> str:
    """Return the page that lists the decisions (ADRs)."""
    lines = ["# Decisions", "", "Each page has one decision, its reasons, and what was tried.", ""]
    for file in sorted((root / "docs/adr").glob("*.md")):
        title = file.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"


def in_site(markdown: str, page: str, root: Path) -> str:
    """Return the page's text with links that hold in the site. A link to a file without a page becomes its text.

    Args:
        markdown: The text.
        page: Path of the page in the site.
        root: The repository.
    """
    source = _SOURCES.get(page, f"docs/{page}")

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, fragment = target.partition("#")
        to = _page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)), root)
        if to is None:
            return text
        relative = posixpath.relpath(to, posixpath.dirname(page) or ".")
        return f"{image}[{text}]({relative}{'#' + fragment if fragment else ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(link, part) for part in parts)


def _page_of(path: str, root: Path) -> str | None:
    """Return the path in the site of a file or directory of the repository; None if the site does not have it."""
    for candidate in (path, f"{path}/README.md"):
        if candidate in PAGES:
            return PAGES[candidate]
    if path.startswith("docs/") and not (root / path).is_dir():
        return path.removeprefix("docs/")
    return None
