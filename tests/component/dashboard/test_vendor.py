"""Other people's code is as their packages have it, with its licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

from clonos_api import dashboard

VENDOR = Path(dashboard.__file__).parent / "vendor"


def test_checksums() -> None:
    digests = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(digests) == files
    for name, digest in digests.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_each_has_its_licence() -> None:
    for script in VENDOR.glob("*.js"):
        assert (VENDOR / f"{script.name.partition('.')[0]}.LICENSE").is_file()
