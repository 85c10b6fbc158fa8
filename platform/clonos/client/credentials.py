"""Where the control plane is and who we are there, as written below ``CLONOS_HOME``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from clonos.errors import SpecError

DEFAULT_API: Final = "http://127.0.0.1:8484"
_FILE: Final = "credentials.json"
_OTHERS: Final = 0o077


@dataclass(frozen=True)
class Credentials:
    """An address and a token for it."""

    api: str
    token: str | None = None

    @staticmethod
    def file(home: Path) -> Path:
        """Where they are kept."""
        return home / _FILE

    @classmethod
    def read(cls, home: Path) -> Credentials | None:
        """Those that were written, if any.

        Raises:
            SpecError: Others may read the file, or it holds something else.
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
                hint=f"chmod 600 {file}; if somebody may have read it, revoke the token.",
            )
        try:
            raw = json.loads(text)
            return cls(str(raw["api"]), raw.get("token"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"{file} is not readable: {error}.", hint="remove it, or write it anew.") from error

    def write(self, home: Path) -> Path:
        """Keep them, for nobody else to read."""
        home.mkdir(parents=True, exist_ok=True)
        file = self.file(home)
        draft = file.with_name(f".{_FILE}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(asdict(self), opened)
        draft.replace(file)
        return file


def resolve(home: Path, api: str | None, token: str | None) -> Credentials:
    """What was given, completed by what is written; a written token goes nowhere but where it is from."""
    written = Credentials.read(home) if api is None or token is None else None
    address = (api or (written.api if written else DEFAULT_API)).rstrip("/")
    if token is None and written is not None and written.api.rstrip("/") == address:
        token = written.token
    return Credentials(address, token)
