"""One request to a webhook.

The body has the form of Alertmanager's webhooks, version 4, with one alert. The headers ``webhook-id``,
``webhook-timestamp`` and ``webhook-signature`` follow Standard Webhooks: the signature is an HMAC-SHA256 of id,
time and body.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from clonos_api.fleet.alerts import Alert
from clonos_api.settings import Webhook, serves_metadata

TIMEOUT_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}
# Alertmanager's value for an alert that has not ended.
_NOT_ENDED: Final = "0001-01-01T00:00:00Z"


def alert_body(alert: Alert, public_url: str) -> dict[str, Any]:
    """Return an alert in Alertmanager's format, as long as it lasts. It has names of jobs and hosts, and no error
    texts.

    `public_url` is the address of the control plane in browsers; empty: the link to the runbook is only a path.
    """
    runbook = f"{public_url}/docs/runbook/{alert.kind.name}"
    return {
        "status": "firing",
        "labels": {"alertname": alert.kind.name, "severity": alert.kind.severity, **alert.labels},
        "annotations": {"summary": alert.summary, "description": alert.description, "runbook_url": runbook},
        "startsAt": alert.since.astimezone(UTC).isoformat(),
        "endsAt": _NOT_ENDED,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(alert.key.encode()).hexdigest()[:16],
    }


def ended(body: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    """Return the alert `body` when it has ended."""
    return {**body, "status": "resolved", "endsAt": at.astimezone(UTC).isoformat()}


def message(alert: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request about one alert."""
    return {
        "version": "4",
        "groupKey": f"clonos/{alert['fingerprint']}",
        "truncatedAlerts": 0,
        "status": alert["status"],
        "receiver": "clonos",
        "groupLabels": alert["labels"],
        "commonLabels": alert["labels"],
        "commonAnnotations": alert["annotations"],
        "externalURL": "",
        "alerts": [alert],
    }


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``."""
    signed = hmac.new(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


async def post(client: httpx.AsyncClient, webhook: Webhook, message_id: str, content: Mapping[str, Any]) -> str:
    """Send a message; return why it failed, without parts of the address. Empty: a 2xx status was received.

    The host name is resolved once, and the request goes to an address that was checked. The response's body is not
    read, and a redirect is a failure.
    """
    body, timestamp = json.dumps(content, separators=(",", ":")).encode(), int(time.time())
    try:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "clonos",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(webhook.key(), message_id, timestamp, body),
        }
        # The client's own timeout is for each read: a receiver could send its headers slowly.
        async with asyncio.timeout(TIMEOUT_S):
            response = await _sent(client, httpx.URL(webhook.url.get_secret_value()), body, headers)
            return "" if response.is_success else f"status {response.status_code}"
    except ForbiddenAddress:
        return "its name resolves to a link-local address"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        return type(error).__name__


async def _sent(client: httpx.AsyncClient, url: httpx.URL, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
    """Send the request to the first address of the host that accepts a connection."""
    name = url.raw_host.decode()
    addresses = await addresses_of(name, url.port or _PORTS[url.scheme])
    named = {"Host": url.netloc.decode(), **headers}
    # An address without an answer leaves time for the others.
    timeout = httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / max(1, len(addresses)))
    for address in addresses:
        try:
            async with client.stream(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers=named,
                timeout=timeout,
                extensions={"sni_hostname": name},  # the certificate must name the receiver
            ) as response:
                return response
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if address == addresses[-1]:
                raise
    raise OSError("the name has no address")


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
