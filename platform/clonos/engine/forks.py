"""Python programs that Spark starts one by one, forked from a process that has imported what they need.

A query with a stateful processor starts one (``transform_with_state_driver_worker``) before its first epoch, to learn
what state there is: 1.6 s of a takeover on two cores, nearly all of it imports. Spark starts it as ``python -m module``
and cannot be told to ask its daemon. So Spark's ``python`` is a small program (`launcher`) that has the daemon's
sibling (`serve`) fork that module for it, hands it its standard streams and environment, and ends as it ends. Whatever
else it is called for, and whenever nobody serves, it becomes the real Python.
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
_LONGEST_FIRST_LINE: Final = 120
_LOOK_S: Final = 1.0
_LENGTH: Final = 8
_BEGUN: Final = b"!"
_LAUNCHER: Final = """#!{python} -IS
import json, os, socket, struct, sys

def forked():
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\\0" + os.environ[{address!r}])
        # Such an address has no permissions, and an environment holds passwords.
        listens = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", listens)[1] != os.getuid():
            return None
        request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [len(request).to_bytes({length}, "big")], [0, 1, 2])
        server.sendall(request)
        if server.recv(1) != {begun!r}:
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
    """What Spark is to call for Python.

    Args:
        folder: An empty one.
        python: The real one.

    Returns:
        A program in `folder`, and what the environment variable `ADDRESS` is to say; `python` itself where this
        cannot be done.
    """
    if sys.platform != "linux" or len(python.encode()) > _LONGEST_FIRST_LINE or " " in python:
        return python, ""
    program = folder / "python"
    values = {"python": python, "modules": MODULES, "address": ADDRESS, "length": _LENGTH, "begun": _BEGUN}
    program.write_text(_LAUNCHER.format(**values))
    program.chmod(stat.S_IRWXU)
    if not os.access(program, os.X_OK):
        return python, ""  # nothing on this disk may be executed
    return str(program), f"clonos-{secrets.token_hex(16)}"


def serve(address: str) -> None:
    """Fork a process that forks `MODULES` for `launcher`, and ends with the process that called this."""
    parent = os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    try:
        # Not a path: those of runs are longer than a socket's may be.
        listener.bind(f"\0{address}")
    except OSError:
        listener.close()  # another daemon of this session does it: there is one for each environment
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    # Spark reads what its daemon writes there, and waits for its end.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    while os.getppid() == parent:
        if not select.select([listener], [], [], _LOOK_S)[0]:
            continue
        # Whoever is not served does it by itself.
        with contextlib.suppress(OSError), listener.accept()[0] as asked:
            if _ours(asked) and not os.fork():
                listener.close()
                _be(asked)


def _ours(asked: socket.socket) -> bool:
    """Whether whoever asks is the same user: such an address has no permissions."""
    credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, user, _group = struct.unpack("3i", credentials)
    return bool(user == os.getuid())


def _be(asked: socket.socket) -> NoReturn:
    """Be the program that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        length, streams, _flags, _from = socket.recv_fds(asked, _LENGTH, 3)
        request: list[Any] = json.loads(_read(asked, int.from_bytes(length, "big")))
        (module, *arguments), environment, folder = request
        if module not in MODULES:
            raise ValueError(module)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        asked.sendall(_BEGUN)
        sys.argv = [module, *arguments]
        status = _run(module)
        sys.stdout.flush()
        sys.stderr.flush()
        asked.sendall(bytes([status]))
    finally:
        os._exit(status)


def _run(module: str) -> int:
    # It is there already, as what it is not to be run as; what it imports is what counts.
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _read(asked: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length and (more := asked.recv(length - len(found))):
        found += more
    return found
