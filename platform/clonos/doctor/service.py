"""The control plane and its database, as far as it tells."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from clonos.client import Client
from clonos.client.credentials import Credentials, resolve
from clonos.doctor.check import Check, fail, ok, warn
from clonos.errors import ClonosError, ControlPlaneAway, SpecError
from clonos.local.plan import FIRST_PORT, HOST
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.settings import Settings

_SOON_S: Final = 3 * 86_400


def look(settings: Settings, api: str | None, token: str | None) -> Iterator[Check]:
    """Whether it answers, knows us, has its database and hosts."""
    state = State.read(Folder.of(settings.home))
    if state is not None and not state.supervised:
        yield warn(
            "local stack",
            "nobody looks after what `clonos up` has started",
            meaning="its supervisor was killed; parts of it may still run, and are not started again.",
            mend="`clonos down`, or `clonos up` again.",
        )
    try:
        found = resolve(settings.home, api, token)
    except SpecError as error:
        yield fail("credentials", error.what, meaning=f"{error.kept} Nobody is asked.", mend=error.hint)
        return
    asked = api is not None or Credentials.read(settings.home) is not None
    with Client(found.api, found.token, patience_s=0.0, timeout_s=5.0) as client:
        try:
            health = client.health.get()
        except ControlPlaneAway as error:
            made = fail if asked and (state is None or state.supervised) else warn
            yield made(
                "control plane",
                error.what,
                meaning="jobs cannot be submitted or steered; those that run go on.",
                mend=error.hint,
            )
            return
        except ClonosError as error:
            yield fail(
                "control plane",
                f"{found.api} refuses us: {error.what}",
                meaning="jobs cannot be submitted or steered from here.",
                mend=error.hint or "see --token, CLONOS_TOKEN and credentials.json in CLONOS_HOME.",
            )
            return
        if health.status == "ok":
            yield ok("control plane", f"version {health.version} at {found.api}")
        else:
            yield fail(
                "control plane",
                "; ".join(f"{name}: {why}" for name, why in health.checks.items()) or "it is not well",
                meaning="it cannot do all of its work.",
                mend="see its log.",
            )
        if health.database == "ok":
            yield ok("database", "answers")
        else:
            yield fail(
                "database",
                "does not answer",
                meaning="nothing can be submitted or steered; jobs that run go on.",
                mend="see whether it is up and reachable from the control plane; `clonos db upgrade` if it is new.",
            )
            return
        yield from _token(client)
        yield from _hosts(client)


def _token(client: Client) -> Iterator[Check]:
    try:
        token = client.tokens.self()
    except ClonosError:
        return  # nobody is asked for one there
    left = (token.expires_at - datetime.now(UTC)).total_seconds() if token.expires_at is not None else None
    if left is not None and left < _SOON_S:
        yield warn(
            "token",
            f"yours ({token.name}) is valid for {left / 3600:.0f} more hours",
            meaning="then the control plane refuses you.",
            mend="have an administrator make a new one: `clonos token create`.",
        )
    else:
        yield ok("token", f"{token.subject}, {token.role}")


def _hosts(client: Client) -> Iterator[Check]:
    hosts = client.hosts.list().data
    ready = [host for host in hosts if host.state is HostState.READY]
    lost = [host.name for host in hosts if host.state is HostState.LOST]
    if lost:
        yield warn(
            "hosts",
            f"{', '.join(lost)} not heard of",
            meaning="their jobs run elsewhere, or wait if their checkpoint is only there.",
            mend="start their agents (`clonos agent`), or forget them: `clonos host rm`.",
        )
    if not ready:
        yield fail(
            "hosts", "none is ready", meaning="no job can run.", mend="start an agent on a machine: `clonos agent`."
        )
    elif not lost:
        free = sum(host.free for host in ready)
        yield ok("hosts", f"{len(ready)} ready, {free} free slots")


def port(settings: Settings) -> Iterator[Check]:
    """Whether `clonos up` gets its port."""
    state = State.read(Folder.of(settings.home))
    if state is not None and state.supervised:
        return
    with socket.socket() as tried:
        tried.settimeout(1.0)
        taken = tried.connect_ex((HOST, FIRST_PORT)) == 0
    if taken:
        yield warn(
            "port",
            f"{FIRST_PORT} is in use",
            meaning="`clonos up` takes the next free one, and says which.",
            mend="end what has it, or name another with `clonos up --port`.",
        )
    else:
        yield ok("port", f"{FIRST_PORT} is free")
