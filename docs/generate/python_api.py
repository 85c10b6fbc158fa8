"""The reference of the Python API: what the public packages export, rendered by mkdocstrings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final

from markdown_text import NOTE

_PACKAGES: Final = {
    "clonos": "Jobs, causal services, operators",
    "clonos.formats": "Formats",
    "clonos.testing": "Tests of jobs",
    "clonos.client": "The client of the REST API",
    "clonos.client.jobs": "Calls for jobs",
    "clonos.client.service": "Calls for operations, events and tokens",
    "clonos.client.hosts": "Calls for hosts",
    "clonos.client.submission": "Jobs on disk",
    "clonos.extend.source": "Interface of sources",
    "clonos.extend.sink": "Interface of sinks",
}


def page() -> str:
    """Return the page of all public names."""
    lines = ["# Python API", "", NOTE, ""]
    for package, title in _PACKAGES.items():
        lines += [f"## {title}", "", f"Module `{package}`.", ""]
        for name in _names(package):
            lines += [f"::: {package}.{name}", ""]
    return "\n".join(lines)


def with_plain_colons(html: str) -> str:
    """Return the rendered page, without the double colon that docstrings have before an example."""
    return html.replace("::</p>", ":</p>")


def _names(package: str) -> Iterator[str]:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == package and not name.startswith("_")
    ]
    return (name for name in names if name != "formats")
