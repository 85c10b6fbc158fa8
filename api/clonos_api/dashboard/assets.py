"""The dashboard's scripts, styles and libraries.

Their URLs contain a digest of all files, so that browsers cache them permanently.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SMALL: Final = 1_000
BELOW: Final = "/assets/"
ROUTE: Final = BELOW + "{digest}/{name}"
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Asset:
    """A file that the dashboard serves."""

    content: bytes
    packed: bytes  # the content as gzip; empty where that saves nothing
    media_type: str


def _load() -> tuple[str, dict[str, Asset]]:
    """Return the URL folder with the digest of all files, so that scripts can import each other; and the files by
    URL.
    """
    here = files("clonos_api.dashboard")
    assets, digest = {}, hashlib.sha256()
    for file in sorted((*here.joinpath("static").iterdir(), *here.joinpath("vendor").iterdir()), key=lambda f: f.name):
        media_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is None:
            continue
        content = file.read_bytes()
        digest.update(file.name.encode() + b"\0" + content)
        packed = gzip.compress(content, mtime=0) if len(content) > _SMALL else b""
        assets[file.name] = Asset(content, packed, media_type)
    folder = f"{BELOW}{digest.hexdigest()[:16]}/"
    return folder, {folder + name: asset for name, asset in assets.items()}


_FOLDER, _ASSETS = _load()
URLS: Final = frozenset(_ASSETS)


def address(name: str) -> str:
    """Return the URL of the file `name`."""
    url = _FOLDER + name
    assert url in URLS, name
    return url


@router.get(ROUTE)
async def get_asset(name: str, request: Request) -> Response:
    """Serve one of the dashboard's files."""
    asset = _ASSETS.get(_FOLDER + name)
    if asset is None:
        raise HTTPException(404, "The file does not exist.")
    # A page of another version (a rolling upgrade) gets the current file, and must not cache it.
    current = request.url.path == _FOLDER + name
    caching = "public, max-age=31536000, immutable" if current else "no-store"
    headers = {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    if asset.packed and accepts_gzip(request):
        return Response(asset.packed, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts gzip."""
    return "gzip" in request.headers.get("accept-encoding", "")
