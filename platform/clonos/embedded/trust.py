"""A trust store for the wheel's Java that trusts what this machine's Python trusts.

The wheel's Java brings its own list of authorities and looks at nothing on the machine, so behind a
company's proxy every download fails although pip works. Java reads no PEM bundle; the old JKS format
is simple enough to write directly.
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
    """Write Python's trusted authorities to `path`; return the JVM flags that use them.

    Empty where Python knows of none (it then trusts no one, and Java's own list is the better one).
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
    """The DER `certificates` as a JKS trust store."""
    body = bytearray(struct.pack(">III", _MAGIC, _VERSION, len(certificates)))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(der)) + der
    # SHA-1 is what the format prescribes.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False).digest()
    return bytes(body) + digest


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
