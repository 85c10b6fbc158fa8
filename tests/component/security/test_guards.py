"""Checks of every request: names, origins, sizes, rates; each in bounded memory."""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from clonos.testing.harness import eventually
from clonos_api.auth.rates import Buckets, address_of
from clonos_api.guards.hosts import HostCheck
from clonos_api.settings import ApiSettings, Limits
from clonos_api.store import tokens
from clonos_api.store.db.database import Database
from clonos_api.store.tables import ArtifactPartRow, TokenRow
from support.busy import slowdown
from support.certificates import self_signed
from support.scripted import CODE, upload
from support.serving import ApiProcess, Served, served, write

MB = 1 << 20
NEW = {"name": "new", "role": "viewer"}


def asked(service: Served, **headers: str) -> int:
    with service.client() as admin:
        return admin.get("/jobs", headers=headers).status_code


def port_of(service: Served) -> str:
    return service.url.rsplit(":", 1)[1]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}", "localhost.",
        "169.254.169.254", "0.0.0.0", "[::]", "127.0.0.1@evil.example", "127.0.0.1:{port}@evil",
        "evil.example#localhost",
        "127.0.0.1:notaport", "127.0.0.1, evil.example", "[::1", "", "xlocalhost", "127.0.0.2",
    ],
)  # fmt: skip
def test_foreign_hosts_are_refused(host: str, service: Served) -> None:
    """A page whose name was made to point here (DNS rebinding) sends its own name."""
    assert asked(service, Host=host.format(port=port_of(service))) == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:{port}", "LOCALHOST:{port}", "[::1]:{port}", "localhost:1"])
def test_own_host_names_are_accepted(host: str, service: Served) -> None:
    assert asked(service, Host=host.format(port=port_of(service))) == 200


def raw(service: Served, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(port_of(service))), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
            if b"\r\n\r\n" in answer:
                break
        return answer


def test_two_hosts_or_none_are_refused(service: Served) -> None:
    for headers in (b"Host: 127.0.0.1\r\nHost: evil.example\r\n", b""):
        status = raw(service, b"GET /health/live HTTP/1.1\r\n" + headers + b"Connection: close\r\n\r\n").split(b" ")[1]
        assert status in (b"400", b"403")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}.evil.example"}, 403),
        ({"Origin": "file://"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
    ],
)
def test_origins(headers: dict[str, str], status: int, service: Served) -> None:
    filled = {name: value.format(port=port_of(service)) for name, value in headers.items()}
    assert asked(service, **filled) == status
    if status == 403:
        with service.client() as admin:
            assert admin.post("/jobs", headers=filled, content=b"{}").status_code == 403
    if filled.get("Sec-Fetch-Mode") == "navigate" and filled["Sec-Fetch-Site"] == "cross-site":
        with service.client() as admin:  # a form of another page
            assert admin.post("/jobs", headers=filled, content=b"{}").status_code == 403


def test_a_page_of_http_may_not_call_the_service_by_https(tmp_path: Path) -> None:
    """Who changes unencrypted pages on their way could otherwise use the sessions of their readers."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, text in zip((cert, key), self_signed("service"), strict=True):
        file.write_text(text)
    with ApiProcess(tmp_path / "home", tls_cert=cert, tls_key=key) as process, process.served.client() as admin:
        own = process.served.url
        assert own.startswith("https://")
        assert admin.get("/jobs", headers={"Origin": own}).status_code == 200
        answer = admin.get("/jobs", headers={"Origin": own.replace("https:", "http:")})
        assert answer.status_code == 403
        assert answer.json()["type"].endswith("/origin-not-allowed")


def test_behind_a_trusted_proxy_the_scheme_is_that_of_the_client(tmp_path: Path) -> None:
    with served(tmp_path, trusted_proxies=["127.0.0.1"]) as service, service.client() as admin:
        page = service.url.replace("http:", "https:")
        headers = {"X-Forwarded-Proto": "https", "Origin": page}
        assert admin.get("/jobs", headers=headers).status_code == 200
        assert admin.get("/jobs", headers={**headers, "Origin": service.url}).status_code == 403
        session = {"Authorization": f"Bearer {service.admin}", **headers}
        cookie = httpx.post(f"{service.url}/session", headers=session, timeout=60, trust_env=False).headers[
            "set-cookie"
        ]
        assert cookie.startswith("__Host-")
        assert "; secure" in cookie.lower()
        answer = admin.get("/jobs", headers={"Origin": page})
        assert answer.status_code == 403
        assert "CLONOS_API__TRUSTED_PROXIES" in answer.json()["detail"], "the error names the setting"


def test_host_checks_run_before_authentication(service: Served, nobody: httpx.Client) -> None:
    answer = nobody.get("/api/v1/jobs", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (403, "origin-not-allowed")


def test_allowed_names_and_origins(tmp_path: Path) -> None:
    settings = {"allowed_hosts": ["clonos.example"], "allowed_origins": ["https://ui.example"]}
    with served(tmp_path, **settings) as service, service.client() as admin:
        assert admin.get("/jobs", headers={"Host": "clonos.example:8484"}).status_code == 200
        answer = admin.get("/jobs", headers={"Origin": "https://ui.example"})
        assert answer.headers["access-control-allow-origin"] == "https://ui.example"
        assert admin.get("/jobs", headers={"Origin": "https://ui.example.evil"}).status_code == 403
        asks = {"Origin": "https://ui.example", "Access-Control-Request-Method": "POST"}
        assert admin.options("/jobs", headers=asks).headers["access-control-allow-methods"]
        assert admin.options("/jobs", headers={**asks, "Origin": "https://evil.example"}).status_code == 403


def test_answers_carry_an_id_and_headers_for_browsers(service: Served, nobody: httpx.Client) -> None:
    with service.client() as admin:
        answers = [admin.get("/jobs"), admin.get("/nothing"), nobody.get("/api/v1/jobs"), nobody.get("/health/live")]
        answers.append(nobody.get("/", headers={"Host": "evil.example"}))
        assert admin.get("/jobs", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
        for wrong in ("a b", "x" * 65, "<script>"):
            assert admin.get("/jobs", headers={"X-Request-ID": wrong}).headers["x-request-id"] != wrong
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers or "uvicorn" in answer.headers["server"]


def pieces(size: int, piece: bytes = b"x" * 65_536) -> Iterator[bytes]:
    for _ in range(size // len(piece)):
        yield piece


def test_a_body_is_refused_by_its_declared_length(service: Served) -> None:
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.admin}\r\n"
    answer = raw(service, (head + "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n").encode())
    assert answer.split(b" ")[1] == b"413"


@pytest.mark.parametrize(("path", "limit"), [("/jobs", 1), ("/hosts", 8)])
def test_a_body_without_a_length_is_counted(
    path: str, limit: int, service: Served, caller: Callable[..., httpx.Client]
) -> None:
    client = caller("agent", host="x") if path == "/hosts" else caller("operator")
    headers = {"Content-Type": "application/json"}
    tracemalloc.start()
    try:
        answer = client.post(path, content=pieces(200 * MB), headers=headers)
        assert answer.status_code == 413
        assert answer.json()["type"].endswith("/request-too-large")
        assert tracemalloc.get_traced_memory()[1] < 6 * limit * MB
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        # The service closed the connection during the upload; only the bytes that it read count.
        assert tracemalloc.get_traced_memory()[1] < 6 * limit * MB
    finally:
        tracemalloc.stop()


def test_a_body_without_a_token_is_not_read(service: Served) -> None:
    head = b"POST /api/v1/artifacts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000000\r\n\r\n"
    assert raw(service, head).split(b" ")[1] == b"401"


def test_a_client_that_disconnects_is_not_a_failure(service: Served) -> None:
    """A body that does not arrive needs no trace in the log."""
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.admin}\r\n"
    with capture_logs() as logs:
        with socket.create_connection(("127.0.0.1", int(port_of(service)))) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        eventually(lambda: any(log["event"] == "the client disconnected" for log in logs), "the service sees it")
    assert not [log for log in logs if log["log_level"] in ("error", "critical")]


def test_uploads_have_their_own_limit(tmp_path: Path) -> None:
    limits = Limits(artifact_bytes=2 * MB)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        for size, statuses in ((1, {200, 201}), (3, {413}), (30, {413})):
            code = CODE + b"#" * (size * MB)
            try:
                assert admin.post("/artifacts", files={"file": ("job.py", code)}).status_code in statuses
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                assert 413 in statuses


def test_a_body_that_does_not_arrive_times_out() -> None:
    """The test shortens only the timeout."""
    import asyncio

    from clonos_api.guards.bodies import BodyLimits

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def never() -> Any:
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    asyncio.run(BodyLimits(app, limit=lambda method, path: 10, piece_s=0.02)(scope, never, send))
    assert sent[0]["status"] == 408


def test_too_many_requests(tmp_path: Path) -> None:
    limits = Limits(requests_per_s=0.001, burst=20)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        other = admin.post("/tokens", json={"name": "t", "role": "viewer"}).json()["token"]
        answers = [admin.get("/jobs") for _ in range(25)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 4 <= len(refused) <= 6
        assert all(1 <= int(answer.headers["retry-after"]) <= 1000 for answer in refused)
        assert refused[0].json()["type"].endswith("/too-many-requests")
        # Other tokens are not limited, also from the same address.
        with service.client(other) as viewer:
            assert viewer.get("/jobs").status_code == 200


def test_too_many_wrong_tokens_of_one_address(tmp_path: Path) -> None:
    limits = Limits(failures_per_s=0.01, failures_burst=5)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        assert admin.get("/jobs").status_code == 200
        with service.client("clonos_0123456789abcdef_" + "0" * 64) as wrong:
            statuses = [wrong.get("/jobs").status_code for _ in range(12)]
        assert statuses == [401] * 5 + [429] * 7
        # Requests with a token that was valid recently are still accepted.
        assert admin.get("/jobs").status_code == 200
        entries = admin.get("/audit").json()["data"]
    (denied,) = [entry for entry in entries if entry["outcome"] == "denied"]  # the log is not filled from outside
    assert denied["token"] == "0123456789abcdef"
    assert denied["detail"]["requests"] == 4, "the newest power of two of five"


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that were read from the database."""
    presented_ones: list[str] = []
    authenticate = tokens.authenticate

    async def counting(database: Database, presented: str) -> TokenRow | None:
        presented_ones.append(presented)
        return await authenticate(database, presented)

    monkeypatch.setattr(tokens, "authenticate", counting)
    return presented_ones


def test_wrong_tokens_are_not_looked_up_once_their_bucket_is_empty(tmp_path: Path, looked_up: list[str]) -> None:
    limits = Limits(failures_per_s=0.001, failures_burst=5)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        unused = admin.post("/tokens", json={"name": "t", "role": "viewer"}).json()
        before = len(looked_up)
        answers = []
        for number in range(12):
            with service.client(f"clonos_0123456789abcdef_{number:064}") as wrong:
                answers.append(wrong.get("/jobs"))
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 7
        assert all(int(answer.headers["retry-after"]) > 100 for answer in answers[5:])
        assert len(looked_up) == before + 5
        assert admin.get("/jobs").status_code == 200, "it was valid recently"
        assert admin.delete(f"/tokens/{unused['id']}").status_code == 204
        with service.client(unused["token"]) as unknown:
            assert [unknown.get("/jobs").status_code for _ in range(3)] == [429] * 3, "it is not valid"
        assert len(looked_up) == before + 5 + 2 + 1, "the admin's requests, and the revoked token once"


def test_wrong_tokens_lock_no_valid_token_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart the replica knows no token, and a client with wrong ones shares the address of agents."""
    reads: list[float] = []
    digests = tokens.digests

    async def counting(database: Database) -> dict[str, bytes]:
        reads.append(time.monotonic())
        return await digests(database)

    monkeypatch.setattr(tokens, "digests", counting)
    with served(tmp_path) as service, service.client() as admin:
        bodies = [{"name": f"t{number}", "role": "viewer"} for number in range(5)]
        texts = [service.admin, *(admin.post("/tokens", json=body).json()["token"] for body in bodies)]
    limits = Limits(failures_per_s=0.5, failures_burst=3)
    statuses: list[int] = []
    ended = threading.Event()

    def attack(service: Served) -> None:
        while not ended.is_set():
            with service.client(f"clonos_0123456789abcdef_{secrets.token_hex(32)}") as wrong:
                statuses.append(wrong.get("/jobs").status_code)

    with served(tmp_path, limits=limits) as service:
        attackers = [threading.Thread(target=attack, args=(service,)) for _ in range(12)]
        begun = time.monotonic()
        try:
            for attacker in attackers:
                attacker.start()
            eventually(lambda: statuses.count(429) > 12, "the bucket of the address is empty")
            answers = []
            for text in texts:
                with service.client(text) as client:
                    answers.append(client.get("/jobs"))
            with service.client() as admin, service.client(admin.post("/tokens", json=NEW).json()["token"]) as new:
                # The address has no failures left: a new token waits for the next read of the valid ones.
                eventually(lambda: new.get("/jobs").status_code == 200, "the new token is known")
        finally:
            ended.set()
            for attacker in attackers:
                attacker.join(30)
        elapsed = time.monotonic() - begun
    assert [answer.status_code for answer in answers] == [200] * 6
    assert max(answer.elapsed.total_seconds() for answer in answers) < 20.0 * slowdown()
    assert 0 < len(reads) <= 2 + elapsed / 0.5, "reads are bounded, and wrong tokens are not"
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= 4 + elapsed * 0.5


def test_a_trusted_proxy_names_the_client(tmp_path: Path, looked_up: list[str]) -> None:
    limits = Limits(failures_per_s=0.001, failures_burst=3)

    def statuses(service: Served, forwarded: str) -> list[int]:
        with service.client("clonos_0123456789abcdef_" + "0" * 64) as wrong:
            headers = {"X-Forwarded-For": forwarded}
            return [wrong.get("/jobs", headers=headers).status_code for _ in range(4)]

    with served(tmp_path / "proxied", limits=limits, trusted_proxies=["127.0.0.0/8", "10.1.0.0/16"]) as service:
        assert statuses(service, "192.0.2.1") == [401] * 3 + [429]
        assert statuses(service, "192.0.2.2") == [401] * 3 + [429]
        assert statuses(service, "192.0.2.3, 192.0.2.1") == [429] * 4, "a client can write the first ones itself"
        assert statuses(service, "192.0.2.4, 10.1.2.3") == [401] * 3 + [429], "behind two proxies"
        with service.client() as admin:
            denied = admin.get("/audit", params={"outcome": "denied"}).json()["data"]
        assert {entry["detail"]["address"] for entry in denied} == {"192.0.2.1", "192.0.2.2", "192.0.2.4"}
    with served(tmp_path / "direct", limits=limits) as service:
        assert statuses(service, "192.0.2.1") == [401] * 3 + [429]
        assert statuses(service, "192.0.2.2") == [429] * 4, "without the setting the header is ignored"


def test_the_process_is_alive_however_often_it_is_asked(tmp_path: Path) -> None:
    limits = Limits(requests_per_s=0.001, burst=3)
    with (
        served(tmp_path, limits=limits) as service,
        httpx.Client(base_url=service.url, timeout=60, trust_env=False, verify=False) as nobody,
    ):
        assert {nobody.get("/health/live").status_code for _ in range(10)} == {200}
        assert [nobody.get("/health/ready").status_code for _ in range(4)][-1] == 429


@pytest.mark.parametrize("wrong", ["proxy.example", "10.0.0.0/40", "*"])
def test_a_proxy_is_an_address_or_a_network(wrong: str) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(trusted_proxies=[wrong])


def test_a_token_above_its_rate_is_not_looked_up(tmp_path: Path, looked_up: list[str]) -> None:
    limits = Limits(requests_per_s=0.001, burst=5)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        statuses = [admin.get("/jobs").status_code for _ in range(12)]
    assert statuses == [200] * 5 + [429] * 7
    assert len(looked_up) == 5


def test_a_subject_has_a_limit_of_uploaded_bytes(tmp_path: Path) -> None:
    limits = Limits(artifact_bytes_per_subject=3 * MB)
    with served(tmp_path, limits=limits) as service, service.client() as admin:
        code = [CODE + bytes(str(number), "ascii") + b"#" * MB for number in range(4)]
        for _ in range(2):
            assert [upload(admin, each) for each in code[:2]], "equal bytes count once"
        refused = admin.post("/artifacts", files={"file": ("job.py", code[2] + code[3])})
        problem = refused.json()
        assert (refused.status_code, problem["type"].rsplit("/", 1)[1]) == (413, "request-too-large")
        assert problem["kept"] == "nothing was stored."
        assert "admin" in problem["hint"]
        other = admin.post("/tokens", json={"name": "other", "role": "operator"}).json()["token"]
        with service.client(other) as client:
            assert upload(client, code[2]), "another subject has a limit of its own"
        stored = admin.get("/artifacts").json()["data"]
        assert admin.delete(f"/artifacts/{stored[-1]['id']}").status_code == 204
        assert upload(admin, code[3])


def test_a_large_artifact_is_stored_in_parts(tmp_path: Path) -> None:
    code = CODE + bytes(range(1, 128)) * 20_000
    with served(tmp_path) as service, service.client() as admin:
        artifact = upload(admin, code)
        assert upload(admin, code) == artifact
        answer = admin.get(f"/artifacts/{artifact}/content")
        assert answer.content == code
        assert int(answer.headers["content-length"]) == len(code)
        assert hashlib.sha256(code).hexdigest() == artifact
        assert admin.delete(f"/artifacts/{artifact}").status_code == 204
        assert admin.get(f"/artifacts/{artifact}/content").status_code == 404

        async def parts(session: AsyncSession) -> int:
            return int((await session.execute(select(func.count()).select_from(ArtifactPartRow))).scalar_one())

        assert write(service, parts) == 0


def test_buckets_forget_and_refill() -> None:
    now = [0.0]
    buckets = Buckets(rate=2, burst=3, keys=100, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    now[0] = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    for n in range(10_000):
        buckets.take(str(n))
    assert len(buckets) == 100


def test_ipv6_addresses_are_grouped_by_network() -> None:
    def of(host: str) -> str:
        return address_of({"client": (host, 1)})

    assert of("2001:db8::1") == of("2001:db8::ffff:1") != of("2001:db8:0:1::1")
    assert of("::ffff:10.0.0.1") == of("10.0.0.1") != of("10.0.0.2")
    assert address_of({"client": None}) == "unknown"


def test_many_at_once_are_answered(service: Served) -> None:
    """The guards do not delay requests."""
    begun, statuses = time.monotonic(), []

    def ask() -> None:
        with service.client() as admin:
            statuses.extend(admin.get("/jobs").status_code for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 80
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("host", "more", "fine"),
    [
        ("127.0.0.1", {}, True),
        ("localhost", {}, True),
        ("::1", {}, True),
        ("127.0.0.1", {"auth": False}, True),
        ("0.0.0.0", {}, False),
        ("::", {}, False),
        ("10.0.0.1", {}, False),
        ("clonos.example", {}, False),
        ("localhost.evil.example", {}, False),
        ("0.0.0.0", {"tls_cert": "c.pem"}, False),
        ("0.0.0.0", {"tls_cert": "c.pem", "tls_key": "k.pem"}, True),
        ("0.0.0.0", {"tls_cert": "c.pem", "tls_key": "k.pem", "auth": False}, False),
    ],
)
def test_other_addresses_need_tokens_and_tls(host: str, more: dict[str, Any], fine: bool, tmp_path: Path) -> None:
    from clonos.errors import SpecError

    settings = ApiSettings(home=tmp_path, host=host, **more)
    if fine:
        settings.check_exposure()
    else:
        with pytest.raises(SpecError):
            settings.check_exposure()


def test_host_names_are_compared_whole() -> None:
    check = HostCheck(lambda *_: None, hosts=["clonos.example"])  # type: ignore[arg-type, return-value]

    def refusal(host: str) -> str | None:
        scope = {"type": "http", "method": "GET", "headers": [(b"host", host.encode())]}
        return check._refusal(scope)

    assert refusal("CLONOS.example:443") is None
    for host in ("clonos.example.evil", "evilclonos.example", "a.clonos.example", "clonos.example:443:443"):
        assert refusal(host)


@pytest.mark.parametrize("where", ["absolute", "above"])
def test_validating_a_job_writes_only_its_own_directory(service: Served, tmp_path: Path, where: str) -> None:
    """The specification names the job file, and the validation unpacks the code."""
    target = tmp_path / "new" / "evil.py"
    main = str(target) if where == "absolute" else "../" * 20 + str(target).lstrip("/")
    with service.client() as client:
        body = {"spec": {"metadata": {"name": "evil"}, "spec": {"main": main}}, "artifact": upload(client)}
        answer = client.post("/jobs/validate", json=body)
    assert answer.status_code == 200
    assert not answer.json()["valid"]
    assert not target.parent.exists()
