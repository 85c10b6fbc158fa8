"""What the content security policy of the site requires of its pages (`clonos_api.dashboard.documentation`)."""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.exceptions import PluginError

_INLINE: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_FOLDER: Final = "assets/inline"
_REFUSED: Final = {
    "a file of another origin": re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//"
    ),
    "an inline style": re.compile(r"<style\b|<[a-z][^>]*\sstyle="),
    "an inline handler": re.compile(r"<[a-z][^>]*\son[a-z]+="),
}


class InlineScripts:
    """The inline scripts of all pages, by the path of their file in the site."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def moved(self, html: str, page: str) -> str:
        """Return the page with a reference in the place of each inline script.

        Args:
            html: The page.
            page: Its path in the site.

        Raises:
            PluginError: The page needs something else that the policy refuses.
        """

        def reference(match: re.Match[str]) -> str:
            name = f"{_FOLDER}/{hashlib.sha256(match[1].encode()).hexdigest()[:16]}.js"
            self._texts[name] = match[1]
            return f'<script src="{posixpath.relpath(name, posixpath.dirname(page) or ".")}"></script>'

        refused = [what for what, pattern in _REFUSED.items() if pattern.search(html)]
        if refused:
            raise PluginError(f"{page} has {' and '.join(refused)}, which the policy of the site refuses.")
        return _INLINE.sub(reference, html)

    def write(self, site: Path) -> None:
        """Write the scripts below the folder of the site."""
        for name, text in self._texts.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
