"""The sockets that processes listen on, and what they give a program that does not know their secrets."""

from __future__ import annotations

import ipaddress
import re
import socket
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

import psutil

_ANSWERS_WITHIN_S = 10.0
_HEADER = struct.Struct(">Q")  # length of a frame of Spark, which it includes
# An RPC and the request of a file, in Spark's format. The ends of lines are for servers that wait for one.
_RPC = struct.pack(">BqI", 3, 1, 8) + b"\0clonos\n"
_FILE = struct.pack(">BI", 6, 10) + b"/files/x\n\n"
# A call of the first Python object that the JVM knows, in the format of Py4J.
_CALL = b"c\np0\ntoString\ne\n"
REQUESTS = [*(_HEADER.pack(_HEADER.size + len(body)) + body for body in (_RPC, _FILE)), _CALL]
_REFUSALS = (
    b"Unknown challenge message",
    b"Unauthenticated call to stream manager",
    b"Authentication error",
    b"Unknown command received",
)
_ABSTRACT = re.compile(r"@clonos-[0-9a-f]{32}")  # `clonos.spark.forks` checks the user of each client


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process and its children listen on."""
    sockets = [socket for each in _family(pid) for socket in each.net_connections("tcp")]
    return {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN}


def exposed(pid: int) -> list[str]:
    """What other users of this machine, or of others, can use of a process and its children; empty: nothing."""
    found = []
    for process in _family(pid):
        for each in process.net_connections("tcp"):
            if each.status != psutil.CONN_LISTEN:
                continue
            if not _loopback(each.laddr.ip):
                found.append(f"{process.name()} listens on {each.laddr.ip}:{each.laddr.port}")
            answers = [answer(each.laddr.port, request) for request in REQUESTS]
            found += [f"{process.name()}: {text!r}" for text in answers if not refused(text)]
        paths = {str(each.laddr) for each in process.net_connections("unix") if each.laddr}
        found += [f"{process.name()}: {path}" for path in sorted(paths) if not _private(path)]
    return found


def answer(port: int, request: bytes) -> bytes:
    """The bytes that a server sends on a new connection until it closes it, or for ten seconds."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWERS_WITHIN_S) as client:
            client.sendall(request)
            while not refused(received) or not received:
                if not (more := client.recv(65536)):
                    break
                received += more
    except OSError:  # it closed the connection, or does not answer
        pass
    return received[:400]


def refused(text: bytes) -> bool:
    """Whether an answer gives nothing to its client."""
    return not text or any(refusal in text for refusal in _REFUSALS)


def _family(pid: int) -> Iterable[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _private(path: str) -> bool:
    """Whether only this user can connect to a Unix socket."""
    if not path.startswith("/"):
        return _ABSTRACT.fullmatch(path) is not None
    try:
        return not Path(path).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    except FileNotFoundError:
        return True  # nobody can connect any more
