"""Which Spark masters a job may have: a driver sends its job's code and secrets there, and has results from there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from clonos.errors import SpecError

CLUSTER: Final = re.compile(r"spark://[A-Za-z0-9._,:\[\]-]{1,255}")
_PREFIX: Final = "spark://"
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_ADDRESS: Final = re.compile(rf"{_HOST}:[0-9]{{1,5}}")
_ENTRY: Final = re.compile(rf"{_HOST}:(?:[0-9]{{1,5}}|\*)")


def check_entries(entries: Sequence[str]) -> None:
    """Raise `SpecError` for an entry of the setting that is no list of addresses.

    ``*`` stands only for a port: the beginning of a name or of an IPv4 address is also that of names of others.
    """
    for entry in entries:
        listed = list(_addresses(entry))
        if not listed or not all(_ENTRY.fullmatch(address) for address in listed):
            raise SpecError(
                f"CLONOS_API__SPARK_MASTERS has the entry {entry!r}.",
                hint="write spark://HOST:PORT, several HOST:PORT with commas between them, or HOST:* for every port.",
            )


def is_listed(master: str, entries: Sequence[str]) -> bool:
    """Whether each address of the cluster `master` is in one of the entries: Spark tries all of them."""
    allowed = {address for entry in entries for address in _addresses(entry)}
    addresses = list(_addresses(master)) if CLUSTER.fullmatch(master) else []
    return bool(addresses) and all(
        _ADDRESS.fullmatch(address) and not allowed.isdisjoint({address, f"{address.rpartition(':')[0]}:*"})
        for address in addresses
    )


def _addresses(cluster: str) -> Iterator[str]:
    if cluster.startswith(_PREFIX):
        yield from cluster.removeprefix(_PREFIX).split(",")
