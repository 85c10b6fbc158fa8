"""Folders and files that only this user can read, such as ``CLONOS_HOME``."""

from __future__ import annotations

import os
from pathlib import Path


def create_private(folder: Path) -> None:
    """Create a folder and its missing parents, all with mode 0700; existing folders keep their modes."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def write_private(file: Path, text: str) -> None:
    """Write a file that no other user can read at any moment."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text + "\n")
    draft.replace(file)
