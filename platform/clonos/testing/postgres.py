"""A PostgreSQL of one's own, for tests and benchmarks: made, started and stopped as a user that is not root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from clonos.embedded.layout import free_ports

INSTALL = "apt-get install -y postgresql"
_PLACES = ("/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt")
_START_S = 60


class PostgresMissing(RuntimeError):
    """There is no PostgreSQL on this machine."""


def binaries() -> Path:
    """Where ``initdb`` and ``pg_ctl`` are: in ``CLONOS_TEST_POSTGRES``, on the path, or the newest that is installed.

    Raises:
        PostgresMissing: Nowhere.
    """
    chosen = os.environ.get("CLONOS_TEST_POSTGRES")
    if chosen:
        if (Path(chosen) / "initdb").is_file():
            return Path(chosen)
        raise PostgresMissing(f"CLONOS_TEST_POSTGRES names {chosen}, which holds no initdb.")
    on_path = shutil.which("initdb")
    if on_path and shutil.which("pg_ctl"):
        return Path(on_path).resolve().parent
    found = [one.parent for place in _PLACES for one in Path(place).glob("*/bin/initdb")]
    if not found:
        raise PostgresMissing(f"This needs PostgreSQL. Install it: {INSTALL}")
    return max(found, key=lambda folder: [int(part) for part in folder.parent.name.split(".") if part.isdecimal()])


class PostgresServer:
    """One server on a free port of this machine, with a socket in a folder of its own.

    Args:
        durable: Whether what was committed outlives a crash of the machine (`fsync`). A crash of the server it always
            does.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._binaries = binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="clonos-pg-"))  # pytest's own are closed to other users
        self._data = self._folder / "data"
        self.port = free_ports(1)[0]
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            user = pwd.getpwnam("nobody")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
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

        # It waits for the end of its input, which is our end too, however we end: no server outlives its tests.
        ending = 'cat >/dev/null; "$0" -D "$1/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$1"'
        self._remover = subprocess.Popen(
            ["sh", "-c", ending, str(self._binaries / "pg_ctl"), str(self._folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            **self._as,
        )

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *map(str, arguments)],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_START_S + 10,
            **self._as,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    @property
    def description(self) -> str:
        """What it is."""
        return f"{(self._data / 'PG_VERSION').read_text().strip()}, a server of the tests' own"

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def log(self) -> str:
        """What the server says."""
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # Its output goes to the file, or it would keep our pipe open.
        self._run("pg_ctl", "-D", self._data, "-l", self._folder / "log", "-w", "-t", _START_S, "start")

    def stop(self, *, kill: bool = False) -> None:
        """Stop it, its sessions too; `kill`: without a clean end, so that it recovers at the next start."""
        mode = "immediate" if kill else "fast"
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "-t", _START_S, "stop")

    def crash(self) -> None:
        """Kill its first process (SIGKILL), and see to it that all have ended; it recovers at the next start."""
        postmaster = psutil.Process(self.pid)
        children = postmaster.children(recursive=True)
        postmaster.kill()
        # They notice by themselves that it is gone, but a busy one only when its statement is over.
        _, left = psutil.wait_procs([postmaster, *children], _START_S)
        assert not left, left

    @contextlib.contextmanager
    def away(self, how: Callable[[], None] | None = None) -> Iterator[None]:
        """Stop it by `how` (default `stop`), and start it again at the end."""
        (how or self.stop)()
        try:
            yield
        finally:
            self.start()

    def remove(self) -> None:
        """Stop it and remove all that it wrote."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait(_START_S)

    def create_database(self, name: str) -> str:
        """A new database; its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", self.port, "-U", "clonos", name)
        return f"postgresql+psycopg://clonos@127.0.0.1:{self.port}/{name}"


def main() -> None:
    """For trying things by hand: a server until Ctrl-C; prints the URL of a database."""
    server = PostgresServer()
    try:
        server.start()
        sys.stdout.write(server.create_database("clonos") + "\n")
        sys.stdout.flush()
        while True:
            time.sleep(3600)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
