"""An agent's token: the one in its token file, or the one that has replaced it.

The agent renews its token by itself. The documented installations mount the token file read-only, so the new token is
in a file of the agent, with the hash of the text that it replaces: a user who writes another token into the token file
ends its use.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from clonos.errors import SpecError
from clonos.private_folders import read_private, write_private

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_HINT: Final = "write the token of this host into it: clonos token create HOST --role agent --host HOST."


class _Renewed(msgspec.Struct, frozen=True):
    """The token that has replaced another one."""

    replaces: str
    """SHA-256 of the token in the token file, hexadecimal."""
    token: str
    """The new token."""


class AgentToken:
    """The token of an agent. Both files are read for each request, so that a user can replace the token.

    `file` has the token that a user has created. `renewed` has the one that has replaced it, which only the agent's
    user reads; None: it is never renewed.
    """

    def __init__(self, file: Path, renewed: Path | None = None) -> None:
        self._file = file
        self._renewed = renewed
        self._newest: _Renewed | None = None  # also without a disk that can be written
        self._read = ""  # digest of the newest readable text of `file`

    def text(self) -> str:
        """Return the token to send; `SpecError` if the token file cannot be read, or does not hold a token."""
        first = self._first()
        self._read = _digest(first)
        newest = self._newest or self._stored()
        return newest.token if newest is not None and newest.replaces == self._read else first

    def replace(self, token: str) -> None:
        """Use another token from now on, and store it.

        Raises:
            SpecError: The token file has never been readable.
            OSError: It cannot be stored; until the agent exits, it is used.
        """
        # The token file may have become unreadable since the request for the new token.
        self._newest = _Renewed(self._read or _digest(self._first()), token)
        self.store()

    def store(self) -> None:
        """Store the token of `replace`, unless it is stored; raises as `replace`."""
        if self._renewed is not None and self._newest is not None and self._stored() != self._newest:
            write_private(self._renewed, msgspec.json.encode(self._newest).decode())

    def _first(self) -> str:
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise SpecError(f"The token file {self._file} cannot be read: {error.strerror}.", hint=_HINT) from error
        if not text:
            raise SpecError(f"The token file {self._file} is empty.", hint=_HINT)
        if not _TOKEN.fullmatch(text):
            raise SpecError(f"The token file {self._file} does not hold a token: it has other characters.", hint=_HINT)
        return text

    def _stored(self) -> _Renewed | None:
        # Kubernetes may open the files of a volume to the group of the pod.
        text = read_private(self._renewed, closed=True) if self._renewed is not None else None
        if not text:
            return None
        try:
            return msgspec.json.decode(text, type=_Renewed)
        except msgspec.DecodeError:
            return None  # a crash of the machine may have left a part; the token file counts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
