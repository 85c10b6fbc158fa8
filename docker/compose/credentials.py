"""Creates the secrets of the services of compose.yaml, each in its own volume; existing secrets are reused.

``credentials.py certificates`` runs first: an authority, the control plane's certificate, passwords, Spark's secret.
``credentials.py tokens`` runs when the control plane is ready: a token for each agent and for Prometheus. Both run as
root and exit.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clonos.client import Client
from clonos.local.access import agent_token, viewer_token

OWNER = 10001  # user of the Clonos images
NOBODY = 65534  # user of the Prometheus image
PROMETHEUS = "prometheus"
NAMES = ("control-plane", "control-plane-1", "control-plane-2", "localhost")
DATABASE = "postgres:5432:clonos:clonos"
_VALID = timedelta(days=365)
_LEFT = timedelta(days=30)


def certificates(volumes: Path) -> None:
    """Create missing secrets below `volumes`, and renew certificates that expire soon."""
    _certificates(volumes / "ca" / "ca.pem", volumes / "tls")
    password = volumes / "postgres" / "password"
    if not password.exists():
        secret = secrets.token_urlsafe(24)
        _write(volumes / "database" / "pgpass", f"{DATABASE}:{secret}\n", 0o400)
        # The published image and its stand-in have different users; only this service mounts the volume.
        _write(password, secret, 0o444)
    if not (grafana := volumes / "grafana" / "password").exists():
        _write(grafana, secrets.token_urlsafe(24), 0o444)
    if not (spark := volumes / "clusters" / "spark").exists():
        _write(spark, secrets.token_hex(32), 0o400)


def tokens(api: str, ca: Path, admin: Path, volumes: Path) -> None:
    """Ensure a valid token in each directory below `volumes`: one for Prometheus, one per agent."""
    with Client(api, admin.read_text().strip(), ca=ca, patience_s=30.0) as client:
        for folder in sorted(volumes.iterdir()):
            file = folder / "token"
            scrapes = folder.name == PROMETHEUS
            (viewer_token if scrapes else agent_token)(client, folder.name, file)
            owner = NOBODY if scrapes else OWNER
            os.chown(file, owner, owner)


def _certificates(ca: Path, tls: Path) -> None:
    now = datetime.now(UTC)
    if ca.exists() and x509.load_pem_x509_certificate(ca.read_bytes()).not_valid_after_utc - now > _LEFT:
        return
    # The authority's key is never stored, so no further certificate can be issued.
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = _name("Clonos compose")
    authority = (
        _builder(name, name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = [x509.DNSName(host) for host in NAMES], [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        _builder(_name(NAMES[0]), name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*addresses[0], *addresses[1]]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(tls / "key.pem", plain.decode(), 0o400)
    _write(tls / "certificate.pem", certificate.public_bytes(pem).decode(), 0o444)
    # Last: its existence shows that the other files exist.
    _write(ca, authority.public_bytes(pem).decode(), 0o444)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(file: Path, text: str, mode: int) -> None:
    """Write a file atomically, owned by the services' user."""
    draft = file.with_name(f".{file.name}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    os.chown(draft, OWNER, OWNER)
    draft.chmod(mode)
    draft.replace(file)


if __name__ == "__main__":
    if sys.argv[1] == "certificates":
        certificates(Path("/volumes"))
    else:
        tokens(sys.argv[2], Path("/run/clonos/ca/ca.pem"), Path("/var/lib/clonos/admin.token"), Path("/volumes"))
