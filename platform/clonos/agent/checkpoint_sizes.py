"""Sizes of checkpoints. The agent measures them periodically, so that no epoch waits for the measurement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clonos.resources.hosts import RunSpec


def measure_checkpoint(run: RunSpec, home: Path) -> dict[str, int] | None:
    """Return the bytes of each query's checkpoint below `home` (``CLONOS_HOME``); None: they are not on this host."""
    parts = urlsplit(run.spec.spec.checkpoint or str(home.absolute() / "jobs" / run.name / "checkpoint"))
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else parts.path)
    try:
        queries = [path for path in folder.iterdir() if (path / "metadata").is_file()]
    except OSError:
        return None
    return {query.name: sum(_file_sizes(query)) for query in queries}


def _file_sizes(folder: str | Path) -> Iterator[int]:
    """Sizes of all files, except those that Spark removes during the measurement."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        yield from _file_sizes(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except OSError:
        return
