"""A broker on this machine that some of its clients reach over a link that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any, Final, Self

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.cluster import Cluster
from clonos.embedded.jars import ensure_jars
from clonos.embedded.layout import HOST, free_ports
from clonos.settings import KafkaSettings, Settings
from support.brokers.interface import HEAP_MB

_BYTES: Final = 1 << 16


class Link:
    """Relays connections to a port. A cut link accepts data and delivers it only once the link is restored.

    Args:
        target: The port of the server.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Stop the delivery of data in both directions."""
        self._open.clear()

    def heal(self) -> None:
        """Deliver the delayed data, and resume the relay."""
        self._open.set()

    def close(self) -> None:
        """Accept no new connections, and let the existing ones end."""
        self._server.close()
        self.heal()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection((HOST, self._target))
        except OSError:
            near.close()
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._pump_requests, args=(near, far), daemon=True).start()
        threading.Thread(target=self._pump_responses, args=(far, near), daemon=True).start()

    def _pump_requests(self, near: socket.socket, far: socket.socket) -> None:
        self._pump(near, far)

    def _pump_responses(self, far: socket.socket, near: socket.socket) -> None:
        self._pump(far, near)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BYTES):
                self._open.wait()
                target.sendall(data)
        self._open.wait()
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class _TwoListeners(EmbeddedKafka):
    """A broker with a second client listener that advertises the link's address."""

    far: int
    link: Link

    def _configure(self, cluster: Cluster, node: int) -> None:
        super()._configure(cluster, node)
        config = self._home(node) / "server.properties"
        lines = config.read_text().splitlines()
        more = {
            "listeners": f"FAR://{HOST}:{self.far}",
            "advertised.listeners": f"FAR://{HOST}:{self.link.port}",
            "listener.security.protocol.map": "FAR:PLAINTEXT",
        }
        for number, line in enumerate(lines):
            name, _, value = line.partition("=")
            if name in more:
                lines[number] = f"{name}={value},{more[name]}"
        config.write_text("\n".join(lines) + "\n")


class SeveredCluster:
    """One broker; clients with `far` in their environment reach it over the link.

    Args:
        directory: An empty folder.
        link: The kind of link.
    """

    def __init__(self, directory: Path, link: type[Link] = Link) -> None:
        self._broker = _TwoListeners(directory, brokers=1, jars=ensure_jars(Settings()), heap_mb=HEAP_MB)
        (self._broker.far,) = free_ports(1)
        self._broker.link = self.link = link(self._broker.far)
        self.cut, self.heal = self.link.cut, self.link.heal
        self.kill, self.restart = self._broker.kill, self._broker.start_broker

    @property
    def kafka(self) -> KafkaSettings:
        """Settings of clients that connect directly; `cut` does not affect them."""
        return self._broker.kafka

    @property
    def far(self) -> dict[str, str]:
        """The environment of clients that connect over the link; `cut` disconnects them."""
        return {"CLONOS_KAFKA__BOOTSTRAP_SERVERS": f"{HOST}:{self.link.port}"}

    def __enter__(self) -> Self:
        self._broker.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.link.close()
        self._broker.stop()
