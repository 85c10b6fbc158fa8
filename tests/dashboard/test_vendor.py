"""Other people's code is as their packages have it, with its licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

from clonos_api import dashboard

VENDOR = Path(dashboard.__file__).parent / "vendor"


def test_checksums() -> None:
    told = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    files = {one.name for one in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(told) == files
    for name, digest in told.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_each_has_its_licence() -> None:
    for script in VENDOR.glob("*.js"):
        assert (VENDOR / f"{script.name.partition('.')[0]}.LICENSE").is_file()
