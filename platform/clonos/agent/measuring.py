"""How large checkpoints are: measured by the agent now and then, so that no epoch waits for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clonos.resources.hosts import RunOrder


def sizes(order: RunOrder, home: Path) -> dict[str, int] | None:
    """Query → bytes of its checkpoint's files; None if they are not on a path of this host.

    Args:
        order: Of the run.
        home: As its driver has it.
    """
    parts = urlsplit(order.spec.spec.checkpoint or str(home.absolute() / "jobs" / order.name / "checkpoint"))
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else parts.path)
    try:
        queries = [one for one in folder.iterdir() if (one / "metadata").is_file()]
    except OSError:
        return None
    return {one.name: sum(_files(one)) for one in queries}


def _files(folder: str | Path) -> Iterator[int]:
    """Sizes of all files; those that Spark removes meanwhile do not count."""
    try:
        with os.scandir(folder) as entries:
            for one in entries:
                try:
                    if one.is_dir(follow_symlinks=False):
                        yield from _files(one.path)
                    else:
                        yield one.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except OSError:
        return
