"""Scripts, styles, other people's libraries: under an address that holds their digest, for browsers to keep."""

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
    """A file as it is sent.

    Attributes:
        packed: The same with gzip; empty where that gains nothing.
    """

    content: bytes
    packed: bytes
    media_type: str


def _load() -> tuple[str, dict[str, Asset]]:
    """The folder that holds the digest of them all, so that scripts find each other, and what is in it."""
    here = files("clonos_api.dashboard")
    found, all_of_it = {}, hashlib.sha256()
    for file in sorted((*here.joinpath("static").iterdir(), *here.joinpath("vendor").iterdir()), key=lambda f: f.name):
        media_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is None:
            continue
        content = file.read_bytes()
        all_of_it.update(file.name.encode() + b"\0" + content)
        packed = gzip.compress(content, mtime=0) if len(content) > _SMALL else b""
        found[file.name] = Asset(content, packed, media_type)
    folder = f"{BELOW}{all_of_it.hexdigest()[:16]}/"
    return folder, {folder + name: asset for name, asset in found.items()}


_FOLDER, _ASSETS = _load()
URLS: Final = frozenset(_ASSETS)


def address(name: str) -> str:
    """Where a browser finds the file `name`."""
    url = _FOLDER + name
    assert url in URLS, name
    return url


@router.get(ROUTE)
async def get_asset(name: str, request: Request) -> Response:
    """A file."""
    asset = _ASSETS.get(_FOLDER + name)
    if asset is None:
        raise HTTPException(404, "There is no such file.")
    # A page of another version, from a replica that is replaced just now, gets ours, and is not to keep it.
    ours = request.url.path == _FOLDER + name
    kept = "public, max-age=31536000, immutable" if ours else "no-store"
    headers = {"Cache-Control": kept, "Vary": "Accept-Encoding"}
    if asset.packed and accepts_gzip(request):
        return Response(asset.packed, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def accepts_gzip(request: Request) -> bool:
    """Whether whoever asks understands gzip."""
    return "gzip" in request.headers.get("accept-encoding", "")
