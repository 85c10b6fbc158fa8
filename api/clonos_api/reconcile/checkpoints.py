"""Where a job's checkpoint is, and whether every host sees it there."""

from __future__ import annotations

import posixpath
from pathlib import Path
from urllib.parse import urlsplit


def location(given: str | None, name: str, *, home: Path, shared: str | None) -> str:
    """The checkpoint of a job.

    Args:
        given: What its specification says.
        name: The job's.
        home: ``CLONOS_HOME``, which is taken to be the same on all hosts.
        shared: The folder that all hosts see, if there is one.
    """
    if given:
        return given
    base = shared or str(home.absolute())
    prefix = "" if urlsplit(base).scheme else "file://"
    return f"{prefix}{base.rstrip('/')}/jobs/{name}/checkpoint"


def is_local(place: str, shared: str | None) -> bool:
    """Whether `place` is a path that another host does not have, or has something else at."""
    if urlsplit(place).scheme not in ("", "file"):
        return False
    path, base = (posixpath.normpath(urlsplit(one).path or "/") for one in (place, shared or ""))
    return (
        not shared or urlsplit(shared).scheme not in ("", "file") or not f"{path}/".startswith(f"{base.rstrip('/')}/")
    )
