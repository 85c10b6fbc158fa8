"""`clonos login`, `logout` and `context` against a fake control plane, also with TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from clonos import errors
from clonos.cli import login
from clonos.cli.app import app
from clonos.client.contexts import LOCAL, Contexts, resolve
from clonos.client.credentials import Credentials
from clonos.resources.service import Token
from clonos.settings import Settings
from component.cli.conftest import Clonos
from component.cli.service import TOKEN, FakeService, problem


def self_signed(folder: Path, name: x509.GeneralName) -> tuple[Path, Path]:
    """PEM files with a certificate for `name` that is its own authority, and with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control plane")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[FakeService]:
    """A control plane with a certificate of its own authority, for this address."""
    tls = self_signed(tmp_path / "tls", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    fake = FakeService(tls=tls)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def user(clonos: Clonos, monkeypatch: pytest.MonkeyPatch) -> Clonos:
    """Runs `clonos` without an address and a token in the environment."""
    monkeypatch.delenv("CLONOS_API")
    monkeypatch.delenv("CLONOS_TOKEN")
    return clonos


def test_login_stores_the_token_for_later_commands(user: Clonos, service: FakeService) -> None:
    answer = CliRunner().invoke(app, ["login", service.url + "/", "--token", "-", "--context", "prod"], input=TOKEN)
    assert answer.stdout.startswith(f"Logged in to {service.url} as ada (admin); the context is prod.")
    assert Contexts.file().stat().st_mode & 0o777 == 0o600
    assert Contexts.file().parent.stat().st_mode & 0o777 == 0o700
    assert "ada" in user("token", "show").stdout
    shown = json.loads(user("context", "show", "-o", "json").stdout)
    assert shown == {"name": "prod", "current": True, "api": service.url, "token": "abc", "ca": None}
    assert "secret" not in user("context", "ls").output + user("context", "show").output


def test_login_asks_for_the_token_on_a_terminal(
    user: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.SpecError, match="no terminal") as refused:
        user("login", service.url)
    assert "--token -" in refused.value.hint
    asked: list[tuple[str, bool]] = []

    def answer(text: str, *, hide_input: bool, err: bool) -> str:
        asked.append((text, hide_input))
        return TOKEN

    monkeypatch.setattr("clonos.cli.login._is_terminal", lambda: True)
    monkeypatch.setattr(typer, "prompt", answer)
    assert "the context is 127.0.0.1-" in user("login", service.url).stdout
    assert asked == [("Token", True)]


def test_context_and_its_variable_choose_a_control_plane(
    user: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeService()
    other.start()
    try:
        user("login", service.url, "--token", TOKEN, "--context", "first")
        user("login", other.url, "--token", TOKEN, "--context", "second")
        assert service.url in user("token", "show", "--context", "first").stdout
        assert other.url in user("token", "show").stdout, "the newest login is the current context"
        monkeypatch.setenv("CLONOS_CONTEXT", "first")
        assert service.url in user("token", "show").stdout
        monkeypatch.delenv("CLONOS_CONTEXT")
        user("context", "use", "first")
        assert user("context", "ls", "-o", "name").stdout.split() == ["first", "second"]
        assert service.url in user("token", "show").stdout
        assert other.url in user("token", "show", "--api", other.url, "--token", TOKEN).stdout
        assert other.url in user("token", "show", "--api", other.url).stdout, "with the stored token of this address"
        user("context", "rm", "first")
        assert Contexts.read().current == LOCAL
        with pytest.raises(errors.SpecError, match="no context 'first'; there are: second"):
            user("token", "show", "--context", "first")
    finally:
        other.stop()


def test_options_and_the_environment_come_before_contexts(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prod = Credentials("https://prod:1", "p", tmp_path / "ca.pem")
    Contexts("prod", {"prod": prod, "test": Credentials("https://test:1", "t")}).write()
    settings = Settings()
    assert resolve(settings) == prod
    assert resolve(settings, context="test").token == "t"
    assert resolve(settings, api="https://test:1/").token == "t", "the stored token of this address"
    assert resolve(settings, api="https://other:1") == Credentials("https://other:1"), "no token of another address"
    assert resolve(settings, api="https://prod:1", context="prod").token == "p"
    with pytest.raises(errors.SpecError, match="the context prod has https://prod:1") as refused:
        resolve(settings, api="https://other:1", token="t", context="prod")
    assert refused.value.kept == "nothing was sent.", "a command never reaches another control plane than the named one"
    assert resolve(settings, token="mine") == Credentials("https://prod:1", "mine", tmp_path / "ca.pem")
    monkeypatch.setenv("CLONOS_API_CA", "/etc/own.pem")
    assert resolve(settings).ca == Path("/etc/own.pem")
    up = Credentials("http://127.0.0.1:8484", "u")
    up.write(home)
    assert resolve(Settings()).api == up.api, "a CLONOS_HOME that is set comes before the current context"
    assert resolve(Settings(), context="prod").api == prod.api
    monkeypatch.delenv("CLONOS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    up.write(tmp_path / "user/.clonos")
    assert resolve(Settings()).api == prod.api, "the default CLONOS_HOME comes after it"
    assert resolve(Settings(), context=LOCAL).token == "u"


def test_logout_removes_the_token_and_revokes_nothing(user: Clonos, service: FakeService) -> None:
    user("login", service.url, "--token", TOKEN, "--context", "prod")
    before = len(service.received)
    output = user("logout").output
    assert "removed from this machine" in output
    assert "It stays valid" in output
    assert "clonos token revoke abc" in output
    assert len(service.received) == before, "logout sends nothing"
    assert TOKEN not in Contexts.file().read_text()
    with pytest.raises(errors.Unauthenticated) as refused:
        user("job", "ls")
    assert f"clonos login {service.url}" in refused.value.hint
    assert "has no token" in user("logout").output
    user("context", "use", LOCAL)
    with pytest.raises(errors.SpecError, match="platform of `clonos up`"):
        user("logout")


def test_a_wrong_token_is_not_stored(user: Clonos, service: FakeService) -> None:
    with pytest.raises(errors.Unauthenticated, match="does not accept the token") as refused:
        user("login", service.url, "--token", "clonos_abc_wrong")
    assert "token create" in refused.value.hint
    with pytest.raises(errors.SpecError, match="begins with clonos_"):
        user("login", service.url, "--token", "hunter2")
    assert Contexts.read() == Contexts()


@pytest.mark.parametrize("url", ["prod", "ftp://prod", "https://", "https://prod:x"])
def test_an_address_that_is_none(user: Clonos, url: str) -> None:
    with pytest.raises(errors.SpecError, match="not the address"):
        user("login", url, "--token", TOKEN)


def test_a_wrong_url(user: Clonos, service: FakeService) -> None:
    with pytest.raises(errors.SpecError, match="unencrypted"):
        user("login", "http://prod.example:8484", "--token", TOKEN)
    service.faults.append(problem(404, "about:blank", "nothing here"))
    service.faults[0].body = b"<html>another site</html>"  # type: ignore[union-attr]
    service.faults[0].headers["content-length"] = str(len(b"<html>another site</html>"))  # type: ignore[union-attr]
    with pytest.raises(errors.ApiError, match="not a Clonos control plane"):
        user("login", service.url, "--token", TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(errors.ControlPlaneUnavailable) as refused:
        user("login", f"http://127.0.0.1:{port}", "--token", TOKEN)
    assert "the port" in refused.value.hint
    assert refused.value.kept == "nothing was stored."


def test_a_certificate_of_an_own_authority(user: Clonos, encrypted: FakeService, tmp_path: Path) -> None:
    with pytest.raises(errors.CertificateUntrusted, match="self-signed certificate") as refused:
        user("login", encrypted.url, "--token", TOKEN)
    assert "--ca FILE" in refused.value.hint
    assert encrypted.received == [], "no token was sent"
    authority = tmp_path / "tls/certificate.pem"
    user("login", encrypted.url, "--token", TOKEN, "--ca", str(authority), "--context", "prod")
    assert "ada" in user("token", "show").stdout, "later commands use the stored file"
    authority.unlink()
    with pytest.raises(errors.SpecError, match="is not a readable PEM file"):
        user("job", "ls")


def test_a_certificate_for_another_name(user: Clonos, tmp_path: Path) -> None:
    tls = self_signed(tmp_path / "tls", x509.DNSName("prod.example"))
    other = FakeService(tls=tls)
    other.start()
    try:
        with pytest.raises(errors.CertificateUntrusted, match=r"not valid for '127\.0\.0\.1'"):
            user("login", other.url, "--token", TOKEN, "--ca", str(tls[0]))
    finally:
        other.stop()


@pytest.mark.parametrize("name", ["local", "a b", "", "-x", "x" * 65])
def test_names_that_no_context_can_have(user: Clonos, service: FakeService, name: str) -> None:
    if name == "":
        assert "the context is 127" in user("login", service.url, "--token", TOKEN, "--context", name).stdout
        return
    with pytest.raises(errors.SpecError, match="context"):
        user("login", service.url, "--token", TOKEN, f"--context={name}")


@pytest.mark.parametrize("text", ["", "[]", '{"current": 1}', '{"current": "a", "contexts": {"a": 1}}'])
def test_an_unreadable_file_of_contexts(user: Clonos, text: str) -> None:
    Contexts(stored={"a": Credentials("https://a")}).write()
    Contexts.file().write_text(text)
    with pytest.raises(errors.SpecError, match="not readable"):
        user("job", "ls")
    Contexts.file().chmod(0o644)
    with pytest.raises(errors.SpecError, match="other users"):
        user("job", "ls")


def test_logins_at_the_same_time_lose_none(home: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has read the file before another one writes it."""
    names = [f"c{number}" for number in range(8)]
    together = threading.Barrier(len(names))
    ask = login._own_token

    def asked(credentials: Credentials) -> Token:
        answer = ask(credentials)
        together.wait(60)
        return answer

    monkeypatch.setattr(login, "_own_token", asked)
    with ThreadPoolExecutor(len(names)) as threads:
        for future in [threads.submit(login.login, service.url, TOKEN, name, None) for name in names]:
            future.result(60)
    assert sorted(Contexts.read().stored) == names
    folder = Contexts.file().parent
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == {
        "contexts.json": 0o600,
        "contexts.lock": 0o600,
    }


def test_a_change_that_fails_is_not_written(home: Path) -> None:
    Contexts(stored={"a": Credentials("https://a")}).write()

    def change() -> None:
        with Contexts.changing() as contexts:
            contexts.current = "a"
            contexts.get("unknown")

    with pytest.raises(errors.SpecError):
        change()
    assert Contexts.read().current == LOCAL
    with Contexts.changing() as contexts:
        contexts.current = "a"
    assert Contexts.read().current == "a"
