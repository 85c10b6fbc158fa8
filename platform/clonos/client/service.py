"""Artifacts, operations, events, tokens, sessions, the audit log, connectors and health."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, Literal

from clonos.client.packing import Packed, largest_files
from clonos.client.responses import decode, error_of_failure, error_of_slug
from clonos.client.sse import follow
from clonos.client.transport import Routes
from clonos.errors import ClonosError, RequestTooLarge, WaitTimeout
from clonos.resources.base import Page
from clonos.resources.figures import size
from clonos.resources.service import (
    GAP,
    Artifact,
    AuditEntry,
    Connector,
    EndedSessions,
    Event,
    Health,
    Operation,
    Session,
    SignInCode,
    Token,
    TokenCreate,
    TokenCreated,
    ValidateRequest,
    Validation,
)
from clonos.resources.status import Status

_FIRST_POLL_S: Final = 0.05
_LONGEST_POLL_S: Final = 1.0


class Artifacts(Routes):
    """Calls of ``/artifacts``: uploaded job code.

    `artifact` is the SHA-256 of the bytes; an unknown one raises `NotFound`.
    """

    def upload(self, packed: Packed) -> Artifact:
        """Upload a job's code (`clonos.client.packing`); the same bytes always give the same artifact.

        Raises:
            ArchiveInvalid: The archive is damaged, or unpacks to too many bytes or files.
            RequestTooLarge: The archive is too large; the message has its largest files.
        """
        try:
            response = self._transport.send(
                "POST",
                "/artifacts",
                files={"file": (packed.name, packed.content, "application/octet-stream")},
                timeout_s=300.0,
            )
        except RequestTooLarge as error:
            largest = ", ".join(f"{name} ({size(count)})" for name, count in largest_files(packed))
            raise RequestTooLarge(
                f"The job's code has {size(len(packed.content))}. {error.what} The largest files: {largest}.",
                kept="nothing was stored.",
                hint="name files that the job does not need in .clonosignore (the format of .gitignore), and put large "
                "data on storage that all hosts reach.",
            ) from error
        return decode(Artifact, response.content)

    def list(self, *, limit: int | None = None) -> Page[Artifact]:
        """List the artifacts, newest first, at most `limit` (default: all)."""
        return self._transport.pages(Artifact, "/artifacts", limit=limit)

    def get(self, artifact: str) -> Artifact:
        """Get the description of an artifact (size, files, job file), without its bytes."""
        return self._transport.get(Artifact, f"/artifacts/{artifact}")

    def content(self, artifact: str) -> bytes:
        """Download the bytes of an artifact."""
        return self._transport.send("GET", f"/artifacts/{artifact}/content", timeout_s=300.0).content

    def delete(self, artifact: str) -> None:
        """Delete an artifact; `StateConflict` if a job, one of its versions or a savepoint needs it."""
        self._transport.send("DELETE", f"/artifacts/{artifact}")


class Operations(Routes):
    """Calls of ``/operations``: long-running requests, such as the stop of a job."""

    def get(self, operation: str) -> Operation:
        """Get the state of an operation by its id."""
        return self._transport.get(Operation, f"/operations/{operation}")

    def list(self, *, job: str | None = None, state: str | None = None, limit: int | None = None) -> Page[Operation]:
        """List operations, newest first: of all jobs or of one `job`, in all states or in one `state`; `limit` None:
        all.
        """
        return self._transport.pages(Operation, "/operations", {"job": job, "state": state}, limit=limit)

    def wait(
        self,
        operation: Operation,
        *,
        timeout_s: float | None = None,
        on_poll: Callable[[Operation], None] = lambda _operation: None,
    ) -> Operation:
        """Wait until an operation is completed, at most `timeout_s` (default: until its deadline), and return it.

        `on_poll` is called with the operation after each poll.

        Raises:
            ClonosError: The operation failed, with the error of `Operation.failure`.
            WaitTimeout: The operation is still in progress; it continues.

        Example:
            >>> client.operations.wait(client.jobs.stop("wordcount"), timeout_s=60)  # doctest: +SKIP
        """
        started = time.monotonic()
        poll_s = _FIRST_POLL_S
        while operation.state == "IN_PROGRESS":
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise WaitTimeout(f"The operation {operation.id} ({operation.kind}) is still in progress.")
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _LONGEST_POLL_S)
            operation = self.get(operation.id)
            on_poll(operation)
        if operation.state == "FAILED":
            raise _failed(operation)
        return operation


def _failed(operation: Operation) -> ClonosError:
    if operation.failure is not None:
        return error_of_failure(operation.failure)
    return error_of_slug("", f"The operation {operation.id} ({operation.kind}) failed without a reason.")


class Events(Routes):
    """Calls of ``/events``: what happened to jobs, runs, standbys and hosts."""

    def follow(
        self,
        *,
        after: int | None = None,
        job: str | None = None,
        types: list[str] | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Follow the events in the order of their `seq`; each event once, also after lost connections.

        They come after the event with the `seq` `after` (default: the next one), and are about `job` and of `types`
        (`job.state`) or families (`job`), if named. `stop` ends the iteration, if another thread sets it.

        Example:
            >>> for event in client.events.follow(job="wordcount", types=["job"]):  # doctest: +SKIP
            ...     print(event.at, event.type)
        """
        last = str(after) if after is not None else None
        query = {"job": job, "type": types}
        for event in follow(self._transport, "/events", query, last_id=last, stop=stop):
            # A stream whose requested start is no longer stored begins with a `gap`.
            if event.event != GAP:
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
        """List stored events, oldest first: those after the `seq` `after`, and since a time; otherwise as `follow`."""
        query = _query(job, types, since)
        return self._transport.pages(Event, "/events/history", query, limit=limit, cursor="after", first=str(after))

    def newest(
        self,
        tail: int,
        *,
        after: int = 0,
        job: str | None = None,
        types: list[str] | None = None,
        since: datetime | None = None,
    ) -> tuple[list[Event], int]:
        """Get the newest `tail` events (at most 1000), oldest first, and the `seq` to pass to `follow` as `after`.

        `after`, `job`, `types` and `since` select the events, as in `history`.
        """
        query = {**_query(job, types, since), "after": after, "tail": tail}
        page = self._transport.get(Page[Event], "/events/history", query)
        return page.data, int(page.next or after)


def _query(job: str | None, types: list[str] | None, since: datetime | None) -> dict[str, Any]:
    return {"job": job, "type": types, "since": since.isoformat() if since else None}


class Tokens(Routes):
    """Calls of ``/tokens``, which need an admin's token, except `self`."""

    def create(self, token: TokenCreate) -> TokenCreated:
        """Create an API token, as an admin (else `Forbidden`). Only this response contains its secret."""
        # Without an idempotency key: the control plane must not store the response, which contains the secret.
        return decode(TokenCreated, self._transport.send("POST", "/tokens", body=token, repeat="unless sent").content)

    def list(self, *, limit: int | None = None) -> Page[Token]:
        """List all tokens, newest first, without their secrets; at most `limit` (default: all)."""
        return self._transport.pages(Token, "/tokens", limit=limit)

    def revoke(self, token: str) -> None:
        """Revoke the token with this id, immediately and permanently."""
        self._transport.send("DELETE", f"/tokens/{token}")

    def rotate_self(self, *, overlap_s: int = 0) -> TokenCreated:
        """Replace the token that this client uses by a new one with the same rights.

        The old token is revoked, or remains valid for `overlap_s` seconds.
        """
        answer = self._transport.send(
            "POST", "/tokens/self/rotate", params={"overlap_s": overlap_s or None}, repeat="unless sent"
        )
        return decode(TokenCreated, answer.content)

    def sign_in_code(self) -> SignInCode:
        """Create a code that signs a browser in once, with the rights of this client's token.

        Raises:
            NotFound: The control plane needs no token, and its dashboard no session.
        """
        # Without an idempotency key: the control plane must not store the response, which contains the code.
        return decode(SignInCode, self._transport.send("POST", "/sign-in-codes", repeat="unless sent").content)

    def revoke_self(self) -> None:
        """Revoke the token that this client uses."""
        self._transport.send("DELETE", "/tokens/self")

    def self(self) -> Token:
        """Get the token that this client uses: its role, subject and expiry."""
        return self._transport.get(Token, "/tokens/self")


class Sessions(Routes):
    """Calls of ``/sessions``: the browsers that are signed in to the dashboard. They need an admin's token."""

    def list(self, *, subject: str | None = None, limit: int | None = None) -> Page[Session]:
        """List the open sessions of all subjects or of one, newest first; at most `limit` (default: all)."""
        return self._transport.pages(Session, "/sessions", {"subject": subject}, limit=limit)

    def revoke(self, session: str) -> None:
        """End the session with this id at once; `NotFound` if there is none."""
        self._transport.send("DELETE", f"/sessions/{session}")

    def revoke_all(self, subject: str) -> int:
        """End all sessions of a subject at once; return their number. Its API tokens remain valid."""
        return decode(
            EndedSessions, self._transport.send("DELETE", "/sessions", params={"subject": subject}).content
        ).ended


class Audit(Routes):
    """Calls of ``/audit``: changes and refused requests, with their subjects."""

    def list(
        self,
        *,
        subject: str | None = None,
        action: str | None = None,
        outcome: Literal["allowed", "denied"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Page[AuditEntry]:
        """List the entries of the audit log, newest first, from `since` on and before `until`.

        `action` is one (``job.create``), or the first part of several (``job``, ``DELETE``).
        """
        query = {
            "subject": subject,
            "action": action,
            "outcome": outcome,
            "since": since.isoformat() if since else None,
            "until": until.isoformat() if until else None,
        }
        return self._transport.pages(AuditEntry, "/audit", query, limit=limit)


class Connectors(Routes):
    """Calls of ``/connectors``: the installed sources and sinks. `kind` is ``source`` or ``sink``."""

    def list(self, *, limit: int | None = None) -> Page[Connector]:
        """List the sources and sinks that jobs can use, with their options; at most `limit` (default: all)."""
        return self._transport.pages(Connector, "/connectors", limit=limit)

    def get(self, kind: str, name: str) -> Connector:
        """Get a source or sink by its name, such as ``kafka``, with its options."""
        return self._transport.get(Connector, f"/connectors/{kind}/{name}")

    def validate(self, kind: str, name: str, options: dict[str, Any]) -> Validation:
        """Check names, types and values of a connector's options; the result lists the problems, none is raised."""
        body = ValidateRequest(options=options)
        return decode(Validation, self._transport.post(f"/connectors/{kind}/{name}/validate", body))


class HealthChecks(Routes):
    """Calls of ``/health`` and ``/status``: liveness, readiness and health of the control plane, state of all jobs."""

    def get(self) -> Health:
        """Get the health of the control plane: its database, its leader and its background tasks."""
        return self._transport.get(Health, "/health")

    def status(self) -> Status:
        """Get the state of all jobs, hosts and Kafka: whether output arrives, and what a failure would cost."""
        return self._transport.get(Status, "/status")

    def live(self) -> None:
        """Check that the control plane's process responds; raises `ClonosError` if it does not."""
        self._transport.send("GET", "/health/live")

    def ready(self) -> None:
        """Check that the control plane can reach its database; raises `ClonosError` if it cannot."""
        self._transport.send("GET", "/health/ready")
