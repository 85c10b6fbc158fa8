"""Address and token of the platform of ``clonos up``, as stored below ``CLONOS_HOME``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clonos.errors import SpecError
from clonos.private_folders import create_private, read_private, write_private

DEFAULT_API: Final = "http://127.0.0.1:8484"
_FILE: Final = "credentials.json"


@dataclass(frozen=True)
class Credentials:
    """How to reach a control plane."""

    api: str
    """Address, without a slash at its end."""
    token: str | None = None
    """API token; None for a control plane without authentication."""
    ca: Path | None = None
    """PEM file with the certificate authorities to trust; None: this machine's."""

    @staticmethod
    def file(home: Path) -> Path:
        """Path of the credentials file below `home` (``CLONOS_HOME``)."""
        return home / _FILE

    @classmethod
    def read(cls, home: Path) -> Credentials | None:
        """Read the credentials file below `home`; None without one, `SpecError` if invalid or readable by others."""
        file = cls.file(home)
        text = read_private(file)
        if text is None:
            return None
        try:
            raw = json.loads(text)
            return cls(str(raw["api"]).rstrip("/"), raw.get("token"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"{file} is not readable: {error}.", hint="remove it, or write it again.") from error

    def write(self, home: Path) -> Path:
        """Write the credentials file below `home` (``CLONOS_HOME``), readable only by this user; return its path."""
        create_private(home)
        file = self.file(home)
        write_private(file, json.dumps({"api": self.api, "token": self.token}))
        return file
