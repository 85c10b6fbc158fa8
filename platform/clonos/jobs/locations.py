"""Identities of folders on the file systems of checkpoints, to compare folders whose spelling differs.

The comparison errs towards *the same folder*: a port, or a missing name of HDFS's name node, does not distinguish. Two
names of one machine do, and so do links and mounts: the owner file inside the folder decides there
(`clonos.driver.checkpoint_owner`).
"""

from __future__ import annotations

import posixpath
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

_FILE: Final = "file"
_FAMILIES: Final = {"": _FILE, "s3": "s3a", "s3n": "s3a", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
_PORTS: Final = {"hdfs": 8020}


class Location(NamedTuple):
    """A folder."""

    scheme: str
    """One scheme for all that lead to the same files, such as ``s3a`` for ``s3``; ``file`` for a path."""
    host: str
    """Lower-case name of the name node, bucket or container; empty: the default one, or the host itself."""
    port: int
    """Port of the name node; 0 where it means nothing."""
    path: str
    """Absolute path without ``.``, ``..``, empty parts and percent-encoding."""

    def overlaps(self, other: Location) -> bool:
        """Whether one of two folders may be inside of the other, or both the same."""
        hosts = {self.host, other.host} - {""}
        return self.scheme == other.scheme and len(hosts) <= 1 and (_below(self, other) or _below(other, self))

    def is_below(self, other: Location) -> bool:
        """Whether this folder is certainly `other` or inside of it."""
        return self[:3] == other[:3] and _below(self, other)


def locate(location: str) -> Location:
    """Return the identity of a path or URI.

    Raises:
        ValueError: It is neither a path nor a URI.

    Example:
        >>> locate("abfs://data@account.blob.core.windows.net/a/./b")
        Location(scheme='abfss', host='data@account.dfs.core.windows.net', port=0, path='/a/b')
    """
    parts = urlsplit(location)
    scheme = _FAMILIES.get(parts.scheme.lower(), parts.scheme.lower())
    path = parts.path
    while path != (decoded := unquote(path)):
        path = decoded
    path = posixpath.normpath(f"/{path.lstrip('/')}")
    if scheme == _FILE:
        return Location(scheme, "", 0, path)
    user, _, address = parts.netloc.lower().rpartition("@")
    host = address.rpartition(":")[0] if parts.port is not None else address.rstrip(":")
    host = host.rstrip(".").replace(".blob.", ".dfs.")
    port = (parts.port or _PORTS[scheme]) if scheme in _PORTS else 0
    return Location(scheme, f"{user}@{host}" if user else host, port, path)


def is_path(location: str) -> bool:
    """Whether a location is a path or has the scheme ``file:``, and not on HDFS or S3."""
    return urlsplit(location).scheme.lower() in ("", _FILE)


def _below(inner: Location, outer: Location) -> bool:
    return f"{inner.path.rstrip('/')}/".startswith(f"{outer.path.rstrip('/')}/")
