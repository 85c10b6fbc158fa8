"""Wheels with one module each, and locks of them, for tests without a package index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *, requires: Sequence[str] = ()) -> str:
    """Write a wheel whose module `name` has `VERSION` to a package index; returns its line of a lock."""
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {required}\n" for required in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    list_files(folder)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def list_files(package: Path) -> None:
    """Write the page of a package: PEP 503."""
    links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(package.glob("*.[wt]*")))
    (package / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def only_from(folder: Path) -> dict[str, str]:
    """The environment variable that makes uv find no packages but the wheels of a folder."""
    return {"UV_DEFAULT_INDEX": folder.absolute().as_uri()}
