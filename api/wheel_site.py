"""A build hook of hatchling: a wheel holds the documentation site if `make docs` has built it (`make wheel`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DocumentationSite(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``build/docs`` to wheels as ``clonos_api/documentation``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the site; an editable installation uses the clone's."""
        site = Path(self.root) / "build" / "docs"
        if version == "standard" and (site / "index.html").is_file():
            build_data["force_include"][str(site)] = "clonos_api/documentation"
