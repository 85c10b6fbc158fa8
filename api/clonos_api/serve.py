"""Runs one replica of the control plane: ``python -m clonos_api``.

It prints its address as one line on stdout (``ready http://127.0.0.1:8484``) and, if configured, writes it to a file.
SIGTERM or SIGINT stop it: streams end, long polls answer, open requests have one second, the leader releases its lease.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Final

import structlog
import uvicorn
from pydantic import ValidationError
from pydantic_settings import SettingsError

from clonos.documents import explain
from clonos.errors import ClonosError, PortInUse, SpecError
from clonos.settings import Settings
from clonos.telemetry.logs import configure_logs
from clonos_api.app import create_app
from clonos_api.http.certificate import Certificate
from clonos_api.http.limited_protocol import LimitedProtocol
from clonos_api.replica import Replica
from clonos_api.settings import ApiSettings

_GRACE_S: Final = 1
_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 30


class _Server(uvicorn.Server):
    """Reports its address when it is ready, and ends open requests after a signal."""

    def __init__(self, config: uvicorn.Config, replica: Replica, url: str) -> None:
        super().__init__(config)
        self._replica = replica
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the application's own start, whose errors uvicorn reports as a stack and exit code 3.
        await self._replica.prepare()
        await super().startup(sockets)
        settings = self._replica.settings
        if self.started:
            if settings.tls_cert and settings.tls_key and self.config.ssl:
                certificate = Certificate(self.config.ssl, settings.tls_cert, settings.tls_key)
                self._replica.start("certificate", certificate.watch)
            _report_ready(self._url, settings.ready_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn waits for connections, because streams do not end by themselves.
        self._replica.end_waits()
        await super().shutdown(sockets)


def serve(settings: ApiSettings) -> int:
    """Run a replica until SIGTERM or SIGINT; return the exit code."""
    settings.check_exposure()
    listening = _listen(settings.host, settings.port)
    url = _url(settings, listening)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=type("Protocol", (LimitedProtocol,), {"proxies": settings.trusted_proxies}),
        log_config=None,  # clonos.telemetry.logs prints uvicorn's lines too
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `clonos_api.guards` reads them, from trusted proxies only
        ws="none",
        lifespan="on",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
    server = _Server(config, app.state.replica, url)
    # After its shutdown uvicorn raises the signal again; that is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore_signal)
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    # The objects that exist now stay; garbage collection of them would stop all requests for a tenth of a second.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    try:
        server.run(sockets=[listening])
    finally:
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
    return 0 if server.started else 1


def main() -> int:
    """Run a replica with the settings of the environment; return the exit code."""
    os.umask(0o077)  # the database holds specifications and logs
    process = Settings()
    configure_logs(process.log_format, process.log_level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        return serve(settings_of_environment())
    except ClonosError as error:
        structlog.get_logger("clonos.api").error("The control plane cannot start", error=error.slug)
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def settings_of_environment() -> ApiSettings:
    """Read the settings of the replica from environment variables."""
    try:
        return ApiSettings()
    except ValidationError as error:
        raise SpecError(
            f"Invalid settings of the control plane: {explain(error)}.", hint="correct CLONOS_API__…."
        ) from error
    except SettingsError as error:  # it names the field, not the value
        raise SpecError(f"Invalid settings of the control plane: {error}.", hint="write lists as JSON.") from None


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise PortInUse(
            f"Cannot listen on {host}:{port}: {error.strerror}.",
            hint="set CLONOS_API__PORT to a free port, or to 0.",
        ) from error
    listening.set_inheritable(False)
    return listening


def _url(settings: ApiSettings, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _report_ready(url: str, ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.parent.mkdir(parents=True, exist_ok=True)
        # Readers see the whole file or none.
        with tempfile.NamedTemporaryFile("w", dir=ready_file.parent, delete=False) as file:
            json.dump({"url": url, "pid": os.getpid()}, file)
        Path(file.name).replace(ready_file)
    with contextlib.suppress(OSError):  # the parent process may have closed the pipe
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    pass
