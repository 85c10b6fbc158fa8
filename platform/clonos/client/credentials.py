"""Address and token of the control plane, as stored below ``CLONOS_HOME``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from clonos.errors import SpecError
from clonos.private_folders import create_private

DEFAULT_API: Final = "http://127.0.0.1:8484"
_FILE: Final = "credentials.json"
_OTHERS: Final = 0o077


@dataclass(frozen=True)
class Credentials:
    """An address of a control plane, and the API token for it."""

    api: str
    token: str | None = None

    @staticmethod
    def file(home: Path) -> Path:
        """Path of the credentials file below `home` (``CLONOS_HOME``)."""
        return home / _FILE

    @classmethod
    def read(cls, home: Path) -> Credentials | None:
        """Read the credentials file below `home` (``CLONOS_HOME``); None if there is none.

        Raises:
            SpecError: Other users may read the file, or its format is invalid.
        """
        file = cls.file(home)
        try:
            with file.open() as opened:
                mode = os.fstat(opened.fileno()).st_mode
                text = opened.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpecError(f"{file} cannot be read: {error.strerror}.") from error
        if mode & _OTHERS:
            raise SpecError(
                f"{file} holds a token, and other users of this machine may read it.",
                kept="it was not used.",
                hint=f"chmod 600 {file}; if another user may have read it, revoke the token.",
            )
        try:
            raw = json.loads(text)
            return cls(str(raw["api"]), raw.get("token"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"{file} is not readable: {error}.", hint="remove it, or write it again.") from error

    def write(self, home: Path) -> Path:
        """Write the credentials file below `home` (``CLONOS_HOME``), readable only by this user; return its path."""
        create_private(home)
        file = self.file(home)
        draft = file.with_name(f".{_FILE}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(asdict(self), opened)
        draft.replace(file)
        return file


def resolve(home: Path, api: str | None, token: str | None) -> Credentials:
    """Complete `api` and `token` with the credentials file below `home`.

    Without a file, `api` is port 8484 of this machine. The file's token is used only for the address in the file.
    """
    written = Credentials.read(home) if api is None or token is None else None
    address = (api or (written.api if written else DEFAULT_API)).rstrip("/")
    if token is None and written is not None and written.api.rstrip("/") == address:
        token = written.token
    return Credentials(address, token)
