"""The addresses that the name of a webhook's receiver resolves to."""

from __future__ import annotations

import asyncio
import socket

from clonos_api.settings import serves_metadata


class ForbiddenAddress(Exception):
    """A receiver's name resolves to an address where clouds serve the credentials of their machines."""


async def addresses_of(host: str, port: int) -> list[str]:
    """Resolve the name of a receiver. A caller connects to these addresses, since the name may resolve to others later.

    Args:
        host: Host name, or an IP address without brackets.
        port: Port of the receiver.

    Returns:
        IP addresses in the order of preference.

    Raises:
        ForbiddenAddress: At least one of the addresses is link-local, or another one of metadata.
        OSError: The name cannot be resolved.

    Example:
        >>> asyncio.run(addresses_of("127.0.0.1", 80))
        ['127.0.0.1']
    """
    resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in resolved))
    if any(serves_metadata(address) for address in addresses):
        raise ForbiddenAddress
    return addresses
