"""Checks the control plane: whether it answers and accepts the token, its database, and its hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from clonos.client import Client
from clonos.client.contexts import resolve
from clonos.client.credentials import Credentials
from clonos.doctor.check import Check, fail, ok, warn
from clonos.embedded.layout import HOST
from clonos.errors import ClonosError, ControlPlaneUnavailable, SpecError
from clonos.local.plan import FIRST_PORT
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.resources.service import Role, Token, warned_within
from clonos.settings import Settings


def check(settings: Settings, api: str | None, token: str | None, context: str | None = None) -> Iterator[Check]:
    """Run all checks of the control plane; only the first ones if it does not respond.

    `api` is its address, `token` an API token and `context` a context of `clonos login`; None: as for all commands.
    """
    state = State.read(Folder.of(settings.home))
    if state is not None and not state.supervised:
        yield warn(
            "local stack",
            "the supervisor of `clonos up` is not running",
            meaning="it was killed; some of its processes may still run, and are not restarted.",
            fix="`clonos down`, or `clonos up` again.",
        )
    try:
        credentials = resolve(settings, api=api, token=token, context=context)
    except SpecError as error:
        yield fail("credentials", error.what, meaning="the control plane was not checked.", fix=error.hint)
        return
    configured = api is not None or credentials.token is not None or Credentials.read(settings.home) is not None
    with Client(credentials.api, credentials.token, patience_s=0.0, timeout_s=5.0, ca=credentials.ca) as client:
        try:
            health = client.health.get()
        except ControlPlaneUnavailable as error:
            result = fail if configured and (state is None or state.supervised) else warn
            yield result(
                "control plane",
                error.what,
                meaning="jobs cannot be submitted or controlled; running jobs continue.",
                fix=error.hint,
            )
            return
        except ClonosError as error:
            if not configured:
                yield warn(
                    "control plane",
                    f"{credentials.api} belongs to another service, or to another user's control plane",
                    meaning="this machine has no control plane yet.",
                    fix="`clonos up` starts one at the next free port; for another one, use `clonos login`.",
                )
                return
            yield fail(
                "control plane",
                f"{credentials.api} denies access: {error.what}",
                meaning="jobs cannot be submitted or controlled from this machine.",
                fix=error.hint or "check --token, CLONOS_TOKEN and `clonos context show`.",
            )
            return
        if health.status == "ok":
            yield ok("control plane", f"version {health.version} at {credentials.api}")
        else:
            yield fail(
                "control plane",
                "; ".join(f"{name}: {why}" for name, why in health.checks.items()) or "it is degraded",
                meaning="some of its functions are unavailable.",
                fix="read its log.",
            )
        if health.database == "ok":
            yield ok("database", "reachable")
        else:
            yield fail(
                "database",
                "unreachable",
                meaning="jobs cannot be submitted or controlled; running jobs continue.",
                fix="check that it runs and is reachable from the control plane; run `clonos db upgrade` if it is new.",
            )
            return
        yield from _token(client)
        yield from _hosts(client)


def _token(client: Client) -> Iterator[Check]:
    try:
        token = client.tokens.self()
    except ClonosError:
        return  # the control plane needs no token
    if left := _left(token):
        yield warn(
            "token",
            f"{token.name} expires in {left}",
            meaning="the control plane then rejects requests.",
            fix="replace it: `clonos token rotate`; or ask an administrator: `clonos token create`.",
        )
    else:
        yield ok("token", f"{token.subject}, {token.role}")
    if token.role is Role.ADMIN:
        yield from _tokens_in_use(client, but=token.id)


def _tokens_in_use(client: Client, *, but: str) -> Iterator[Check]:
    """Yield the other tokens that were used within a week, and expire soon: an agent has failed to replace its own."""
    since = datetime.now(UTC) - timedelta(days=7)
    for token in client.tokens.list().data:
        in_use = token.last_used_at is not None and token.last_used_at > since and token.revoked_at is None
        if token.id != but and in_use and token.replaced_by is None and (left := _left(token)):
            whose = f"of the agent of {token.host}" if token.host else f"{token.name} ({token.role})"
            yield warn(
                "tokens",
                f"the token {whose} expires in {left}",
                meaning=f"{token.host} is then lost." if token.host else "its requests are then refused.",
                fix="see the log of the agent." if token.host else "replace it: `clonos token rotate`.",
            )


def _left(token: Token) -> str:
    """How long a token is still valid; empty if that is long enough, or if it is no longer valid."""
    if token.expires_at is None:
        return ""
    left = token.expires_at - datetime.now(UTC)
    if not timedelta() < left < warned_within(token.expires_at - token.created_at):
        return ""
    return f"{left.days} days" if left.days else f"{left.seconds / 3600:.0f} hours"


def _hosts(client: Client) -> Iterator[Check]:
    hosts = client.hosts.list().data
    ready = [host for host in hosts if host.state is HostState.READY]
    lost = [host.name for host in hosts if host.state is HostState.LOST]
    if lost:
        yield warn(
            "hosts",
            f"{', '.join(lost)} sent no heartbeat",
            meaning="their jobs run on other hosts, or wait if their checkpoint is only there.",
            fix="start their agents (`clonos agent`), or remove them: `clonos host rm`.",
        )
    if not ready:
        yield fail(
            "hosts", "none is ready", meaning="no job can run.", fix="start an agent on a machine: `clonos agent`."
        )
    elif not lost:
        free = sum(host.free for host in ready)
        yield ok("hosts", f"{len(ready)} ready, {free} free slots")


def port(settings: Settings) -> Iterator[Check]:
    """Check whether the default port of `clonos up` is free, unless the local platform runs."""
    state = State.read(Folder.of(settings.home))
    if state is not None and state.supervised:
        return
    with socket.socket() as probe:
        probe.settimeout(1.0)
        taken = probe.connect_ex((HOST, FIRST_PORT)) == 0
    if taken:
        yield warn(
            "port",
            f"{FIRST_PORT} is in use",
            meaning="`clonos up` uses the next free port and prints it.",
            fix="stop the process that uses it, or choose another with `clonos up --port`.",
        )
    else:
        yield ok("port", f"{FIRST_PORT} is free")
