"""Runs one replica: ``python -m clonos_api``.

It says where it listens by one line on stdout (``ready http://127.0.0.1:8484``) and, where asked, by a file. SIGTERM or
SIGINT end it: streams end, long-polls answer, requests under way have a second, the leader gives its lease up.
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

from clonos.errors import ClonosError, PortTaken, SpecError
from clonos.logs import configure_logs
from clonos.settings import Settings
from clonos.spec import explain
from clonos_api.app import create_app
from clonos_api.services import Services
from clonos_api.settings import ApiSettings

_GRACE_S: Final = 1
_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 30


class _Server(uvicorn.Server):
    """Tells when it is ready, and ends what waits when a signal comes."""

    def __init__(self, config: uvicorn.Config, services: Services, url: str) -> None:
        super().__init__(config)
        self._services = services
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _tell(self._url, self._services.settings.ready_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn waits for connections: streams would never end by themselves.
        self._services.end_waits()
        await super().shutdown(sockets)


def serve(settings: ApiSettings) -> int:
    """Run until a signal; the exit code.

    Raises:
        ClonosError: It cannot be run like that: the address is open to others, or taken.
    """
    settings.check_exposure()
    listening = _listen(settings.host, settings.port)
    url = _url(settings, listening)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,  # clonos.logs shows uvicorn's lines too
        log_level="warning",
        access_log=False,
        server_header=False,
        # Nobody's X-Forwarded-For is believed: limits count by who connects.
        proxy_headers=False,
        ws="none",
        lifespan="on",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
    server = _Server(config, app.state.services, url)
    # Once it has ended, uvicorn raises the signal again that ended it: that is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    # What is there now stays: looking through it again and again would hold all requests up for a tenth of a second.
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
    """Run with the settings of the environment; the exit code."""
    process = Settings()
    configure_logs(process.log_format, process.log_level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        return serve(settings_of_environment())
    except ClonosError as error:
        structlog.get_logger("clonos.api").error("The control plane cannot run", error=error.slug)
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def settings_of_environment() -> ApiSettings:
    """The settings of the environment.

    Raises:
        SpecError: Naming those that cannot be used.
    """
    try:
        return ApiSettings()
    except ValidationError as error:
        raise SpecError(
            f"The control plane's settings cannot be used: {explain(error)}.", hint="correct CLONOS_API__…."
        ) from error


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
        raise PortTaken(
            f"{host}:{port} cannot be listened on: {error.strerror}.",
            hint="set CLONOS_API__PORT to a free port, or to 0.",
        ) from error
    listening.set_inheritable(False)
    return listening


def _url(settings: ApiSettings, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _tell(url: str, ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.parent.mkdir(parents=True, exist_ok=True)
        # A reader sees the whole file or none.
        with tempfile.NamedTemporaryFile("w", dir=ready_file.parent, delete=False) as file:
            json.dump({"url": url, "pid": os.getpid()}, file)
        Path(file.name).replace(ready_file)
    with contextlib.suppress(OSError):  # who started us may not listen any more
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()


def _ended(number: int, frame: FrameType | None) -> None:
    pass
