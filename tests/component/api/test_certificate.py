"""The TLS certificate is replaced while the service runs."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.testing.harness import eventually
from clonos_api.http.certificate import Certificate
from support.certificates import self_signed
from support.serving import ApiProcess


def test_a_new_certificate_is_presented_without_a_restart(tmp_path: Path) -> None:
    cert, key, log = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "log"
    (first, first_key), (second, second_key) = self_signed("first"), self_signed("second")
    cert.write_text(first)
    key.write_text(first_key)
    with ApiProcess(tmp_path / "home", log=log, tls_cert=cert, tls_key=key) as process:
        where = httpx.URL(process.served.url)
        assert where.scheme == "https"

        def presented() -> str:
            return ssl.get_server_certificate((where.host, where.port or 0), timeout=20.0)

        assert presented() == first
        with process.served.client() as client:
            assert client.get("/health").status_code == 200
            cert.write_text(second)  # its key comes later
            eventually(lambda: "The new certificate cannot be loaded" in log.read_text(), "the service waits")
            assert presented() == first
            key.write_text(second_key)
            eventually(lambda: presented() == second, "the service presents the new certificate")
            assert client.get("/health").status_code == 200, "open connections remain"
        assert process.process.poll() is None


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[tuple[str, int]]:
    """The address of a TLS listener that accepts connections and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:  # the handshake failed
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_files_that_change_while_they_are_loaded_replace_no_pair_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be replaced at each moment: also between two reads of the same pair."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    first, second, third = self_signed("first"), self_signed("second"), self_signed("third")
    load = ssl.SSLContext.load_cert_chain

    def put(pair: tuple[str, str]) -> None:
        cert.write_text(pair[0])
        key.write_text(pair[1])

    def load_then_replace(context: ssl.SSLContext, *arguments: Any) -> None:
        load(context, *arguments)
        cert.write_text(third[0])  # its key comes later

    put(first)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with listening(context) as where:
        certificate = Certificate(context, cert, key)
        assert ssl.get_server_certificate(where, timeout=20.0) == first[0]
        put(second)
        with monkeypatch.context() as patch:
            patch.setattr(ssl.SSLContext, "load_cert_chain", load_then_replace)
            certificate.reload()
        assert ssl.get_server_certificate(where, timeout=20.0) == second[0]
        with pytest.raises(ssl.SSLError):
            certificate.reload()
        assert ssl.get_server_certificate(where, timeout=20.0) == second[0], "the old pair stays"
        key.write_text(third[1])
        assert certificate.reload()
        assert ssl.get_server_certificate(where, timeout=20.0) == third[0]
        assert not certificate.reload()
