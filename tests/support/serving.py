"""Starts a control plane for tests, in a thread or as a process; always over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.testing.harness import eventually
from clonos_api.app import create_app
from clonos_api.settings import ApiSettings, Limits
from clonos_api.store.db.database import Database

API = "/api/v1"
# Tests send requests faster than users.
UNLIMITED = Limits(requests_per_s=10_000, burst=100_000, streams_per_token=10_000)


@dataclass
class Served:
    """A running replica.

    Attributes:
        admin: The first admin token.
        app: The application, if it runs in this process.
    """

    url: str
    settings: ApiSettings
    admin: str
    app: FastAPI | None = None

    def client(self, token: str | None = None, *, retry: bool = True) -> httpx.Client:
        """A client with a token, by default the admin's.

        Args:
            retry: Repeat requests while the database is unavailable, as the command line does. PostgreSQL ends the
                transaction of a replica that a busy machine does not run for two seconds.
        """
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        # To create a TLS context takes longer than most requests.
        transport = _Retrying(verify=False) if retry else httpx.HTTPTransport(verify=False)
        return httpx.Client(
            base_url=self.url + API, headers=headers, timeout=60.0, trust_env=False, transport=transport
        )


class _Retrying(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        deadline = time.monotonic() + 60
        while True:
            response = super().handle_request(request)
            if response.status_code != 503 or time.monotonic() > deadline:
                return response
            if b"/database-unavailable" not in response.read():
                return response
            time.sleep(0.1)


Change = Callable[[AsyncSession], Coroutine[Any, Any, Any]]


def write(api: Served, change: Change) -> Any:
    """Change the store as another replica does: with its own connection and notifier."""

    async def transaction() -> Any:
        database = Database(api.settings.database)
        try:
            async with database.transaction() as session:
                return await change(session)
        finally:
            await database.close()

    return asyncio.run(transaction())


class _Server(uvicorn.Server):
    """Ends streams at shutdown, as `clonos_api.serve` does."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.replica.end_waits()  # type: ignore[union-attr]
        await super().shutdown(sockets)
        # Close connections that did not close in time, or that were accepted at the last moment.
        for _ in range(10):
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def served(home: Path, **settings: Any) -> Iterator[Served]:
    """A replica in a thread of this process."""
    chosen = ApiSettings(home=home, port=0, **{"reconcile": False, "limits": UNLIMITED, **settings})
    app = create_app(chosen)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=30,  # longer than clients keep a connection: they never use one that is being closed
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="api", daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "the API starts")
        assert server.started, "the API did not start"
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", chosen, admin_token(chosen), app)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the API did not exit"


class ApiProcess:
    """A replica as a process of its own.

    Args:
        home: May be shared with other replicas.
        log: File for its log, one JSON object per line; default: the output of the test.
        settings: Fields of `ApiSettings`.
    """

    def __init__(self, home: Path, *, log: Path | None = None, **settings: Any) -> None:
        self.settings = ApiSettings(home=home, **{"port": 0, "reconcile": False, **settings})
        ready = home / f"ready-{secrets.token_hex(4)}.json"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")},
            "CLONOS_HOME": str(home),
            "CLONOS_LOG_FORMAT": "console" if log is None else "json",
            "CLONOS_API__PORT": "0",
            "CLONOS_API__RECONCILE": str(self.settings.reconcile),
            "CLONOS_API__READY_FILE": str(ready),
            **{f"CLONOS_API__{name.upper()}": _text(value) for name, value in settings.items()},
        }
        with contextlib.ExitStack() as stack:
            written = None if log is None else stack.enter_context(log.open("a"))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clonos_api"], env=environment, stdout=subprocess.PIPE, stderr=written, text=True
            )
        eventually(lambda: ready.exists() or self.process.poll() is not None, "the API process starts", timeout_s=60)
        assert self.process.poll() is None, f"the API process ended with {self.process.returncode}"
        address = json.loads(ready.read_text())
        assert address["pid"] == self.process.pid
        self.served = Served(address["url"], self.settings, admin_token(self.settings))

    def end(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Stop the process by a signal; returns the seconds until its exit."""
        begun = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        return time.monotonic() - begun

    def __enter__(self) -> ApiProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def admin_token(settings: ApiSettings) -> str:
    """The first admin token that the service created."""
    return settings.admin_token_file.read_text().strip()


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
