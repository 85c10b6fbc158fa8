"""Folders that only this user can enter, such as ``CLONOS_HOME``."""

from __future__ import annotations

from pathlib import Path


def create_private(folder: Path) -> None:
    """Create a folder and its missing parents, all with mode 0700; existing folders keep their modes."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
