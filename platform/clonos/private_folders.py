"""Folders and files that only this user can read, such as ``CLONOS_HOME``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from clonos.errors import SpecError

_OTHERS: Final = 0o077


def create_private(folder: Path) -> None:
    """Create a folder and its missing parents, all with mode 0700; existing folders keep their modes."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def write_private(file: Path, text: str) -> None:
    """Replace a file; no other user can read it at any moment, and readers see the old or the new text.

    The file is complete also after a power failure. A link is replaced and not followed.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(file: Path, *, closed: bool = False) -> str | None:
    """Read a file that only its owner may read, such as a token's; None if the file does not exist.

    With `closed`, a file of this user that others may read gets the mode 0600 instead of an error.

    Raises:
        SpecError: The file cannot be read, or other users may read it.
    """
    try:
        with file.open() as opened:
            status = os.fstat(opened.fileno())
            mode = status.st_mode
            if closed and mode & _OTHERS and status.st_uid == os.geteuid():
                os.fchmod(opened.fileno(), mode := 0o600)
            text = opened.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read: {error}.", hint="correct its owner and mode, or remove it.") from error
    if mode & _OTHERS:
        raise SpecError(
            f"{file} holds a token, and other users of this machine may read it.",
            kept="it was not used.",
            hint=f"chmod 600 {file}; if another user may have read it, revoke the token.",
        )
    return text
