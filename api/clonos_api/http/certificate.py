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
    """The files of a certificate and its key, and the pair that new connections get.

    The two files are replaced one after the other. So each pair is loaded into a context of its own, which OpenSSL
    refuses unless the key fits the certificate. Connections get the newest context that was loaded as a whole.
    Open connections keep theirs.

    Args:
        context: The context that the server uses, with the pair of its start.
        cert: PEM file with the certificate and its intermediate authorities.
        key: PEM file with the key.
    """

    def __init__(self, context: ssl.SSLContext, cert: Path, key: Path) -> None:
        self._newest = context
        self._files = (cert, key)
        self._loaded: Version = ()  # the files may have changed since the server loaded them
        # OpenSSL calls it in each handshake, also if the client names no host. Only the pair of the context is used.
        context.sni_callback = self._choose

    async def watch(self) -> None:
        """Load the files after each change, until cancelled. Files that do not fit are loaded once they fit."""
        trouble = ""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            try:
                if self.reload():
                    _log.info("Loaded the certificate", file=str(self._files[0]))
                trouble = ""
            except OSError as error:  # also ssl.SSLError
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("The new certificate cannot be loaded; the old one stays", why=trouble)

    def reload(self) -> bool:
        """Load the files if they have changed; return whether they had.

        Raises:
            OSError: The files cannot be read, or the key does not fit the certificate. The old pair stays.
        """
        version = self._version()
        if version == self._loaded:
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files)
        self._newest, self._loaded = context, version
        return True

    def _choose(self, connection: ssl.SSLObject, _host: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _version(self) -> Version:
        """Return what changes with the content: also a file that another one replaces, as Kubernetes does by links."""
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in (file.stat() for file in self._files))
