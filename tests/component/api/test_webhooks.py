"""Alerts arrive at webhooks: over real HTTP, signed, from the leader only, at least once and in order."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.testing.harness import eventually
from clonos_api.alerts.webhook_request import post
from clonos_api.settings import ApiSettings, Webhook
from clonos_api.store import deliveries
from clonos_api.store.db.rows import new_id
from clonos_api.store.lease import NAME
from clonos_api.store.tables import JobRow, LeaseRow, RecoveryRow
from support.certificates import self_signed
from support.receiver import SECRET, Receiver, receiving
from support.serving import ApiProcess, Served, served, write
from support.stored import host_row, job_row, run_row

TOKEN = "canary-in-the-address"
FIRING, RESOLVED = ("JobRecovering", "firing"), ("JobRecovering", "resolved")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def hook(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"name": "pager", "url": f"{receiver.url}/{TOKEN}", "secret": SECRET, **more}


def lead(api: Served, replica: str) -> None:
    """Make a replica the leader for an hour, without a reconciler that would change the jobs of the test."""

    async def change(session: AsyncSession) -> None:
        row = await session.get(LeaseRow, NAME) or LeaseRow(name=NAME, fencing_token=1)
        row.holder, row.expires_at = f"{replica}:1:x", datetime.now(UTC) + timedelta(hours=1)
        session.add(row)

    write(api, change)


def running(session_name: str) -> Callable[[AsyncSession], Any]:
    """A RUNNING job without standbys and without input."""

    async def make(session: AsyncSession) -> str:
        job, host = await job_row(session, session_name), await host_row(session)
        run = await run_row(session, job, host)
        run.state = job.state = "RUNNING"
        job.run, job.metrics = run.id, {"queries": {"out": {"epoch": 46, "records_out": 50}}}
        return job.id

    return make


def recovery(job: str, *, ended: bool = False) -> Callable[[AsyncSession], Any]:
    async def make(session: AsyncSession) -> str:
        moment = datetime.now(UTC)
        body = {"cause": "crash", "failed_generation": 1, "from_host": "h1", "phases": [], "downtime_ms": 600.0}
        row = RecoveryRow(id=new_id(), job=job, started_at=moment, ended_at=moment if ended else None, body=body)
        session.add(row)
        return row.id

    return make


def end(recovery: str) -> Callable[[AsyncSession], Any]:
    async def change(session: AsyncSession) -> None:
        row = await session.get(RecoveryRow, recovery)
        assert row is not None
        row.ended_at = datetime.now(UTC)

    return change


def metric(api: Served, outcome: str) -> float:
    with api.client() as client:
        text = client.get(f"{api.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "clonos_webhook_deliveries_total" and sample.labels["outcome"] == outcome
    )


def test_a_recovery_is_reported_when_it_begins_and_ends(tmp_path: Path, receiver: Receiver) -> None:
    with served(tmp_path, replica="r1", webhooks=[hook(receiver)]) as api:
        lead(api, "r1")
        job = write(api, running("words"))
        opened = write(api, recovery(job))
        eventually(lambda: receiver.alerts() == [FIRING], "the beginning arrives")
        write(api, end(opened))
        eventually(lambda: receiver.alerts() == [FIRING, RESOLVED], "the end arrives")
        first, last = receiver.requests
        assert first.signed
        assert last.signed
        assert first.id != last.id
        assert first.body["version"] == "4"
        assert first.body["commonLabels"] == {
            "alertname": "JobRecovering",
            "severity": "critical",
            "job_name": "words",
            "cause": "crash",
        }
        (begun,), (over,) = first.body["alerts"], last.body["alerts"]
        assert begun["fingerprint"] == over["fingerprint"]
        assert begun["startsAt"] == over["startsAt"] <= over["endsAt"]
        eventually(lambda: metric(api, "delivered") == 2, "both are counted")


def test_a_webhook_that_cannot_be_used_does_not_stop_the_others(tmp_path: Path, receiver: Receiver) -> None:
    broken = hook(receiver, name="broken", ca=tmp_path / "missing.pem")
    with served(tmp_path, replica="r1", webhooks=[broken, hook(receiver)]) as api:
        lead(api, "r1")
        write(api, recovery(write(api, running("words"))))
        eventually(lambda: receiver.alerts() == [FIRING], "the alert arrives")


def test_a_recovery_between_two_looks_is_reported_too(tmp_path: Path, receiver: Receiver) -> None:
    with served(tmp_path, replica="r1", webhooks=[hook(receiver)]) as api:
        lead(api, "r1")
        job = write(api, running("words"))
        opened = write(api, recovery(job))
        eventually(lambda: receiver.alerts() == [FIRING], "the replica looks")
        write(api, end(opened))
        write(api, recovery(job, ended=True))
        eventually(lambda: receiver.alerts() == [FIRING, RESOLVED, FIRING, RESOLVED], "both arrive")
        assert len({request.body["groupKey"] for request in receiver.requests}) == 2


def test_a_message_is_sent_until_it_is_accepted(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [500, 307]
    with served(tmp_path, replica="r1", webhooks=[hook(receiver)]) as api:
        lead(api, "r1")
        write(api, recovery(write(api, running("words"))))
        eventually(lambda: len(receiver.requests) == 3, "the third attempt arrives")
        assert len({request.id for request in receiver.requests}) == 1
        assert {request.path for request in receiver.requests} == {f"/{TOKEN}"}, "a redirect is not followed"
        eventually(lambda: metric(api, "delivered") == 1, "it is accepted")
        assert metric(api, "failed") == 2


def test_only_the_leader_sends_and_the_next_leader_continues(tmp_path: Path, receiver: Receiver) -> None:
    webhooks = [hook(receiver), hook(receiver, name="critical-only", severity="critical")]
    with (
        served(tmp_path, replica="r1", webhooks=webhooks) as api,
        served(tmp_path, replica="r2", webhooks=webhooks) as other,
    ):
        lead(api, "r1")
        job = write(api, running("words"))
        opened = write(api, recovery(job))
        eventually(lambda: receiver.alerts() == [FIRING, FIRING], "both webhooks get it")
        eventually(lambda: not any(write(api, deliveries.depths).values()), "both are stored as delivered")
        lead(api, "r2")
        write(api, end(opened))
        eventually(lambda: len(receiver.requests) == 4, "the new leader reports the end")
        assert sorted(receiver.alerts()) == [FIRING, FIRING, RESOLVED, RESOLVED]
        assert len({request.id for request in receiver.requests}) == 4, "nothing arrives twice"
        eventually(lambda: metric(other, "delivered") == 2, "the new leader has counted both")

        async def lose_host(session: AsyncSession) -> None:
            row = await session.get(JobRow, job)
            assert row is not None
            row.desired_state, row.state, row.run = "STOPPED", "STOPPED", None
            (await host_row(session)).state = "LOST"

        write(api, lose_host)
        eventually(lambda: receiver.alerts()[4:] == [("HostLost", "firing")], "a warning goes to one webhook")


def test_messages_wait_for_a_receiver_that_is_away(tmp_path: Path) -> None:
    with receiving() as receiver:
        configured = hook(receiver)
    with served(tmp_path, replica="r1", webhooks=[configured]) as api:
        lead(api, "r1")
        write(api, recovery(write(api, running("words"))))
        eventually(lambda: metric(api, "failed") >= 1, "the first attempt fails")
        depths = write(api, deliveries.depths)
        assert depths == {"pager": 1}


def test_neither_logs_nor_messages_contain_secrets(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [500]
    log, home = tmp_path / "log", tmp_path / "home"
    home.mkdir()
    with ApiProcess(home, log=log, replica="r1", webhooks=[hook(receiver)]) as process:
        lead(process.served, "r1")
        job = write(process.served, running("words"))

        async def fail(session: AsyncSession) -> None:
            row = await session.get(JobRow, job)
            assert row is not None
            row.state, row.failure = "FAILED", {"error": "job-code-failed", "what": "row 4711 is bad"}

        write(process.served, fail)
        eventually(lambda: len(receiver.requests) >= 2, "a second attempt arrives")
        assert receiver.requests[-1].alert == ("JobFailed", "firing")
        sent = json.dumps([request.body for request in receiver.requests])
        with process.served.client() as client:
            shown = client.get(f"{process.served.url}/metrics").text + client.get("/health").text
    written = log.read_text()
    assert "A webhook did not accept an alert" in written
    for text in (TOKEN, SECRET, SECRET.removeprefix("whsec_")):
        assert text not in written + shown + sent
    assert "4711" not in sent


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": "file:///etc/passwd"}, "http or https"),
        ({"url": f"http://example.org/{TOKEN}"}, "allow_http"),
        ({"url": f"http://10.0.0.7/{TOKEN}"}, "allow_http"),
        ({"url": f"https://169.254.169.254/{TOKEN}"}, "link-local"),
        ({"url": f"http://[fe80::1]/{TOKEN}", "allow_http": True}, "link-local"),
        ({"url": f"https://[::ffff:169.254.169.254]/{TOKEN}"}, "link-local"),
        ({"url": f"https://[64:ff9b::a9fe:a9fe]/{TOKEN}"}, "link-local"),
        ({"url": f"https://[fd00:ec2::254]/{TOKEN}"}, "where clouds serve credentials"),
        ({"url": f"https://100.100.100.200/{TOKEN}"}, "where clouds serve credentials"),
        ({"secret": "whsec_c2hvcnQ="}, "24 to 64 bytes"),
        ({"secret": "plain"}, "24 to 64 bytes"),
        ({"secret": None}, "either secret or secret_file"),
        ({"secret_file": "/key"}, "either secret or secret_file"),
        ({"name": "Pager 1"}, "pattern"),
        ({"method": "GET"}, "Extra inputs"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    webhook = {"name": "pager", "url": f"https://example.org/{TOKEN}", "secret": SECRET, **changes}
    with pytest.raises(ValidationError, match=problem) as refused:
        ApiSettings(home=tmp_path, webhooks=[webhook])
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("http://127.0.0.1:9/x", {}),
        ("http://[::1]/x", {}),
        ("http://localhost/x", {}),
        ("http://example.org/x", {"allow_http": True}),
    ],
)
def test_http_receivers_that_are_accepted(tmp_path: Path, url: str, more: dict[str, Any]) -> None:
    webhook = {"name": "pager", "url": url, "secret": SECRET, **more}
    assert ApiSettings(home=tmp_path, webhooks=[webhook]).webhooks[0].url.get_secret_value() == url


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name resolve to these addresses."""

    def resolved(_host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def sent(url: str, **tls: Any) -> str:
    """Send a message to a receiver; the reason of its failure."""
    webhook = Webhook.model_validate({"name": "pager", "url": url, "secret": SECRET, "allow_http": True})

    async def send() -> str:
        async with httpx.AsyncClient(timeout=60, trust_env=False, **tls) as client:
            return await post(client, webhook, "m-1", {"status": "firing", "alerts": [{}]})

    return asyncio.run(send())


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "2002:a9fe:a9fe::1", "100.100.100.200"]
)
def test_a_name_with_a_link_local_address_gets_no_message(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver, address: str
) -> None:
    """Clouds serve credentials there. The first address would be reachable."""
    resolve_to(monkeypatch, "127.0.0.1", address)
    port = receiver.url.rpartition(":")[2]
    assert sent(f"http://receiver.example:{port}/{TOKEN}") == "its name resolves to a link-local address"
    assert receiver.requests == []


def test_a_message_goes_to_the_next_address_of_the_name(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    port = receiver.url.rpartition(":")[2]
    assert sent(f"http://receiver.example:{port}/{TOKEN}") == ""
    assert [request.host for request in receiver.requests] == [f"receiver.example:{port}"]


@pytest.mark.parametrize(("name", "problem"), [("receiver.example", ""), ("other.example", "ConnectError")])
def test_the_certificate_has_the_name_of_the_receiver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, problem: str
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file, text in zip((cert, key), self_signed("receiver.example"), strict=True):
        file.write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with receiving(tls) as receiver:
        resolve_to(monkeypatch, "127.0.0.1")
        port = receiver.url.rpartition(":")[2]
        assert sent(f"https://{name}:{port}/x", verify=ssl.create_default_context(cafile=cert)) == problem
        assert len(receiver.requests) == (not problem)


def test_two_webhooks_have_two_names(tmp_path: Path) -> None:
    webhook = {"name": "pager", "url": "https://example.org", "secret": SECRET}
    with pytest.raises(ValidationError, match="same name"):
        ApiSettings(home=tmp_path, webhooks=[webhook, webhook])


def test_the_key_may_be_in_a_file_that_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(SECRET + "\n")
    (webhook,) = ApiSettings(
        home=tmp_path, webhooks=[{"name": "pager", "url": "https://example.org", "secret_file": file}]
    ).webhooks
    assert webhook.key() == bytes(range(32))
    file.write_text("whsec_" + "A" * 40)
    assert webhook.key() == bytes(30)
