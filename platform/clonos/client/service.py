"""Artifacts, operations, events, tokens, audit, connectors, health."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from clonos.client.packing import Packed
from clonos.client.problems import of_failure, typed
from clonos.client.sse import follow
from clonos.client.transport import Transport, decode
from clonos.errors import ClonosError, StillUnderWay
from clonos.resources.base import Page
from clonos.resources.service import (
    Artifact,
    AuditEntry,
    Connector,
    Event,
    Health,
    Operation,
    Token,
    TokenCreate,
    TokenCreated,
    ValidateRequest,
    Validation,
)

_FIRST_LOOK_S: Final = 0.05
_LAST_LOOK_S: Final = 1.0


class Artifacts:
    """``/artifacts``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def upload(self, packed: Packed) -> Artifact:
        """Upload code; the same code again is the same artifact."""
        answer = self._transport.send(
            "POST",
            "/artifacts",
            files={"file": (packed.name, packed.content, "application/octet-stream")},
            timeout_s=300.0,
        )
        return decode(Artifact, answer.content)

    def list(self, *, limit: int | None = None) -> Page[Artifact]:
        """All artifacts."""
        return self._transport.pages(Artifact, "/artifacts", limit=limit)

    def get(self, artifact: str) -> Artifact:
        """One artifact."""
        return self._transport.get(Artifact, f"/artifacts/{artifact}")

    def content(self, artifact: str) -> bytes:
        """Its bytes."""
        return self._transport.send("GET", f"/artifacts/{artifact}/content", timeout_s=300.0).content

    def delete(self, artifact: str) -> None:
        """Delete it, unless a job or a savepoint needs it."""
        self._transport.send("DELETE", f"/artifacts/{artifact}")


class Operations:
    """``/operations``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, operation: str) -> Operation:
        """One operation."""
        return self._transport.get(Operation, f"/operations/{operation}")

    def list(self, *, job: str | None = None, state: str | None = None, limit: int | None = None) -> Page[Operation]:
        """All, or those that fit."""
        return self._transport.pages(Operation, "/operations", {"job": job, "state": state}, limit=limit)

    def wait(
        self,
        operation: Operation,
        *,
        timeout_s: float | None = None,
        on_look: Callable[[Operation], None] = lambda _operation: None,
    ) -> Operation:
        """The operation once it is completed.

        Args:
            operation: As its beginning was answered.
            timeout_s: Wait no longer; default until the operation's own deadline, which the control plane keeps.
            on_look: Told of it each time it was looked at.

        Raises:
            ClonosError: It failed: the error of its failure.
            StillUnderWay: It takes longer.
        """
        started = time.monotonic()
        look_s = _FIRST_LOOK_S
        while operation.state == "IN_PROGRESS":
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise StillUnderWay(f"The operation {operation.id} ({operation.kind}) is not done.")
            time.sleep(look_s)
            look_s = min(look_s * 1.5, _LAST_LOOK_S)
            operation = self.get(operation.id)
            on_look(operation)
        if operation.state == "FAILED":
            raise _failed(operation)
        return operation


def _failed(operation: Operation) -> ClonosError:
    if operation.failure is not None:
        return of_failure(operation.failure)
    return typed("", f"The operation {operation.id} ({operation.kind}) failed and does not say why.")


class Events:
    """``/events``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def follow(
        self,
        *,
        after: int | None = None,
        job: str | None = None,
        types: list[str] | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Event]:
        """What happens, as it happens; each event once, whatever becomes of connections.

        Args:
            after: Start after this `seq`; default with what comes.
            job: Of this job only.
            types: Of these types only (`job.state`), or their first parts (`job`).
            stop: Ends it from elsewhere.
        """
        last = str(after) if after is not None else None
        given = {"job": job, "type": types}
        for event in follow(self._transport, "/events", given, last_id=last, stop=stop):
            # Where events that were asked for are not kept any more there is one that is none: `gap`.
            if event.placed:
                yield decode(Event, event.data)

    def history(
        self,
        *,
        after: int = 0,
        job: str | None = None,
        types: list[str] | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Page[Event]:
        """What happened, oldest first."""
        asked = _asked(job, types, since)
        return self._transport.pages(Event, "/events/history", asked, limit=limit, cursor="after", first=str(after))

    def newest(
        self,
        tail: int,
        *,
        after: int = 0,
        job: str | None = None,
        types: list[str] | None = None,
        since: datetime | None = None,
    ) -> tuple[list[Event], int]:
        """The newest so many (1000 at the most), oldest first, and the number to follow from."""
        asked = {**_asked(job, types, since), "after": after, "tail": tail}
        found = self._transport.get(Page[Event], "/events/history", asked)
        return found.data, int(found.next or after)


def _asked(job: str | None, types: list[str] | None, since: datetime | None) -> dict[str, Any]:
    return {"job": job, "type": types, "since": since.isoformat() if since else None}


class Tokens:
    """``/tokens``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, token: TokenCreate) -> TokenCreated:
        """A new token; its secret is told this once."""
        # Without a key: the answer holds a secret, which is not kept for a second time of asking.
        return decode(TokenCreated, self._transport.send("POST", "/tokens", body=token, repeat="unless sent").content)

    def list(self, *, limit: int | None = None) -> Page[Token]:
        """All tokens, without their secrets."""
        return self._transport.pages(Token, "/tokens", limit=limit)

    def revoke(self, token: str) -> None:
        """End a token."""
        self._transport.send("DELETE", f"/tokens/{token}")

    def self(self) -> Token:
        """The token that asks."""
        return self._transport.get(Token, "/tokens/self")


class Audit:
    """``/audit``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> Page[AuditEntry]:
        """Who did what, newest first."""
        return self._transport.pages(AuditEntry, "/audit", limit=limit)


class Connectors:
    """``/connectors``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> Page[Connector]:
        """All sources and sinks that jobs can name."""
        return self._transport.pages(Connector, "/connectors", limit=limit)

    def get(self, kind: str, name: str) -> Connector:
        """One of them."""
        return self._transport.get(Connector, f"/connectors/{kind}/{name}")

    def validate(self, kind: str, name: str, options: dict[str, Any]) -> Validation:
        """Whether these options are usable."""
        body = ValidateRequest(options=options)
        return decode(Validation, self._transport.post(f"/connectors/{kind}/{name}/validate", body))


class HealthChecks:
    """``/health``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> Health:
        """How the service is."""
        return self._transport.get(Health, "/health")

    def live(self) -> None:
        """Raises unless the process answers."""
        self._transport.send("GET", "/health/live")

    def ready(self) -> None:
        """Raises unless it can do its work."""
        self._transport.send("GET", "/health/ready")
