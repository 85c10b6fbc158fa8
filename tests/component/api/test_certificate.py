"""The TLS certificate is replaced while the service runs."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from clonos.testing.harness import eventually
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
