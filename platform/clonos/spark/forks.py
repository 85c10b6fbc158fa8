"""Forks the Python programs that Spark starts individually, from a process that has imported their modules already.

A query with a stateful processor starts such a program (``transform_with_state_driver_worker``) before its first epoch,
to read the schema of its state. That is 1.6 s of a takeover on two cores, nearly all of it imports. Spark starts the
program as ``python -m module``, and has no setting to use its daemon. So Spark's ``python`` is a small program
(`launcher`). It requests a fork of that module from a sibling of the daemon (`serve`), passes its standard streams and
environment, and exits with the fork's status. For another module, or if no process serves, it becomes the real Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import stat
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

ADDRESS: Final = "CLONOS_FORKS"
MODULES: Final = ("pyspark.sql.streaming.transform_with_state_driver_worker",)
_MAX_SHEBANG_BYTES: Final = 120
_POLL_S: Final = 1.0
_LENGTH_BYTES: Final = 8
_STARTED: Final = b"!"
_LAUNCHER: Final = """#!{python} -IS
import json, os, socket, struct, sys

def forked():
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\\0" + os.environ[{address!r}])
        # An abstract address has no permissions, and an environment holds passwords.
        credentials = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            return None
        request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [len(request).to_bytes({length}, "big")], [0, 1, 2])
        server.sendall(request)
        if server.recv(1) != {started!r}:
            return None
        try:
            status = server.recv(1)
        except OSError:
            status = b""
        return status[0] if status else 1

if sys.argv[1:2] == ["-m"] and sys.argv[2] in {modules!r}:
    try:
        status = forked()
    except (KeyError, OSError):
        status = None
    if status is not None:
        sys.exit(status)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def launcher(folder: Path, python: str = sys.executable) -> tuple[str, str]:
    """Write the program that Spark runs instead of the Python interpreter.

    Args:
        folder: An empty directory.
        python: The real Python interpreter.

    Returns:
        The path of the program in `folder`, and the value for the environment variable `ADDRESS`; `python` itself and
        an empty value if the program cannot be used here.
    """
    if sys.platform != "linux" or len(python.encode()) > _MAX_SHEBANG_BYTES or " " in python:
        return python, ""
    program = folder / "python"
    values = {"python": python, "modules": MODULES, "address": ADDRESS, "length": _LENGTH_BYTES, "started": _STARTED}
    program.write_text(_LAUNCHER.format(**values))
    program.chmod(stat.S_IRWXU)
    if not os.access(program, os.X_OK):
        return python, ""  # the file system is mounted without execution
    return str(program), f"clonos-{secrets.token_hex(16)}"


def serve(address: str) -> None:
    """Start a process that forks the programs in `MODULES` for `launcher`; it exits when the calling process does.

    `address` is the value of the environment variable `ADDRESS`, which `launcher` returned.
    """
    parent = os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    try:
        # An abstract address: the paths of runs are longer than a socket's path may be.
        listener.bind(f"\0{address}")
    except OSError:
        listener.close()  # another daemon of this session serves: Spark has one for each environment
        return
    listener.listen()
    try:
        serving = os.fork() == 0
    except OSError:
        serving = False
    if not serving:
        listener.close()
        return
    try:
        _serve(listener, parent)
    finally:
        os._exit(0)


def _serve(listener: socket.socket, parent: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
    # Spark reads the daemon's standard output until its end.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    while os.getppid() == parent:
        if not select.select([listener], [], [], _POLL_S)[0]:
            continue
        # A launcher whose request fails becomes the real Python.
        with contextlib.suppress(OSError), listener.accept()[0] as client:
            if _same_user(client) and not os.fork():
                listener.close()
                _become(client)


def _same_user(client: socket.socket) -> bool:
    """Whether the client runs as the same user: an abstract address has no permissions."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, user, _group = struct.unpack("3i", credentials)
    return bool(user == os.getuid())


def _become(client: socket.socket) -> NoReturn:
    """Turn this fork into the requested program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        length, streams, _flags, _from = socket.recv_fds(client, _LENGTH_BYTES, 3)
        request: list[Any] = json.loads(_read(client, int.from_bytes(length, "big")))
        (module, *arguments), environment, folder = request
        if module not in MODULES:
            raise ValueError(module)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        client.sendall(_STARTED)
        sys.argv = [module, *arguments]
        status = _run(module)
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(bytes([status]))
    finally:
        os._exit(status)


def _run(module: str) -> int:
    # The module is imported already, but must run again as ``__main__``; its own imports stay.
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _read(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := client.recv(length - len(data))):
        data += more
    return data
