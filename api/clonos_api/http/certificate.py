"""The service's TLS certificate, which may be replaced while the service runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

import structlog

_CHECK_EVERY_S: Final = 5.0
_log = structlog.get_logger("clonos.api")
Version = tuple[tuple[int, int, int], ...]


class Certificate:
    """The files of a certificate and its key, and the TLS context that presents them.

    New connections get the newest certificate. Open connections keep theirs.

    Args:
        context: The context that the server uses.
        cert: PEM file with the certificate and its intermediate authorities.
        key: PEM file with the key.
    """

    def __init__(self, context: ssl.SSLContext, cert: Path, key: Path) -> None:
        self._context = context
        self._files = (cert, key)
        self._loaded = self._version()

    async def watch(self) -> None:
        """Load the files after each change, until cancelled. Files that do not fit are loaded once they fit."""
        trouble = ""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            try:
                if self.reload():
                    _log.info("Loaded a new certificate", file=str(self._files[0]))
                trouble = ""
            except OSError as error:  # also ssl.SSLError
                if str(error) != trouble:
                    trouble = str(error)
                    _log.error("The new certificate cannot be loaded; the old one stays", why=trouble)

    def reload(self) -> bool:
        """Load the files if they have changed; return whether they had.

        Raises:
            OSError: The files cannot be read, or the key is not that of the certificate. The old certificate stays.
        """
        version = self._version()
        if version == self._loaded:
            return False
        # A failed load may leave the certificate without its key, so the files are tried in a context of their own.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
        self._context.load_cert_chain(*self._files)
        self._loaded = version
        return True

    def _version(self) -> Version:
        """What changes with the content: also a file that another one replaces, as Kubernetes does by links."""
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in (file.stat() for file in self._files))
