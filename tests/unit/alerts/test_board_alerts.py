"""Alerts of boards: they agree with the overview's banner."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clonos_api.fleet import Board, Dependencies, Forecast, Head, Last, Line, Stall
from clonos_api.fleet.alerts import alerts_of
from clonos_api.fleet.banner import banner_of
from clonos_api.fleet.lines import Late, Proof
from clonos_api.store.tokens import Expiring, ExpiringToken

AT = datetime(2026, 3, 2, 9, tzinfo=UTC)
GOOD = Line(
    id="1",
    name="words",
    created_by="ada",
    state="RUNNING",
    since=AT,
    health="good",
    seats=(),
    weak=(),
    failure=None,
    last=None,
    restarts=0,
    lag=0,
    out_per_s=1.0,
    forecast=Forecast(warm=True, host="host-2"),
)
STALL = Stall(AT, "Kafka does not answer its driver")
OPEN = Last("r1", "crash", AT, None, True)


def board(*lines: Line, **more: object) -> Board:
    return Board(1, AT, (), lines, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (GOOD, []),
        (replace(GOOD, health="idle", state="STOPPED", forecast=None), []),
        (replace(GOOD, health="busy", state="STARTING", forecast=None), []),
        (replace(GOOD, health="bad", stall=STALL), ["JobWithoutOutput"]),
        (replace(GOOD, health="bad", stall=STALL, last=OPEN), ["JobRecovering"]),
        (replace(GOOD, health="bad", stall=STALL, last=replace(OPEN, cause="move")), ["JobWithoutOutput"]),
        (replace(GOOD, health="bad", state="FAILED", failure="s3cret", forecast=None), ["JobFailed"]),
        (replace(GOOD, health="bad", state="STARTING", forecast=None), ["JobNotRunning"]),
        (replace(GOOD, health="weak", forecast=Forecast(warm=False)), ["JobWithoutStandby"]),
        (replace(GOOD, health="weak", dead_letters=True), ["DeadLetters"]),
        (replace(GOOD, alone=True, forecast=Forecast(warm=False)), []),
    ],
)
def test_each_job_that_the_banner_calls_failing_has_one_critical_alert(line: Line, names: list[str]) -> None:
    alerts = alerts_of(board(line)).values()
    assert [alert.kind.name for alert in alerts] == names
    critical = [alert for alert in alerts if alert.kind.severity == "critical"]
    assert len(critical) == (banner_of(board(line)).health == "bad")
    for alert in alerts:
        assert alert.labels["job_name"] == "words"
        assert "s3cret" not in f"{alert.summary}{alert.description}", "an error's text may have data of records"


def test_a_failed_verification_is_an_alert_of_a_job_that_publishes() -> None:
    proof = Proof(AT, clean=False, contradicted=True)
    (alert,) = alerts_of(board(replace(GOOD, health="weak", proof=proof))).values()
    assert (alert.kind.name, alert.kind.severity) == ("OutputContradicted", "critical")
    assert not alerts_of(board(replace(GOOD, proof=replace(proof, contradicted=False))))


def test_late_rows_are_an_alert_of_a_job_that_publishes() -> None:
    (alert,) = alerts_of(board(replace(GOOD, late=Late(AT, 7)))).values()
    assert (alert.kind.name, alert.kind.severity, alert.labels) == ("LateRowsDropped", "warning", {"job_name": "words"})
    assert "7 so far" in alert.summary


def test_hosts_and_kafka() -> None:
    heads = (Head("host-1", "READY", "a", 0, 2), Head("host-2", "DISCONNECTED", "b", 0, 2))
    seen = Board(1, AT, heads, (GOOD,), dependencies=Dependencies(drivers=2, silent=("words",)))
    assert {alert.kind.name: alert.labels for alert in alerts_of(seen).values()} == {
        "HostLost": {"host": "host-2"},
        "KafkaUnavailable": {},
    }


def test_a_host_with_two_agents() -> None:
    heads = (Head("host-1", "READY", "a", 0, 2, AT), Head("host-2", "READY", "b", 0, 2))
    seen = Board(1, AT, heads, (GOOD,))
    (alert,) = alerts_of(seen).values()
    assert (alert.kind.name, alert.kind.severity, alert.labels) == ("AgentReplaced", "critical", {"host": "host-1"})
    banner = banner_of(seen)
    assert (banner.health, banner.headline) == ("weak", "host-1 has had two agents.")


def test_a_token_that_expires() -> None:
    """It is not an alert of a job, and the banner names it."""
    agents = ExpiringToken("a1", "host-1", "agent", "host-1", AT, AT)
    others = ExpiringToken("b2", "prometheus", "viewer", None, AT, AT)
    tokens = Expiring(23, (agents, others))
    first, second = alerts_of(board(GOOD, tokens=tokens)).values()
    assert (first.kind.name, first.kind.severity, first.labels) == ("TokenExpires", "warning", {"host": "host-1"})
    assert second.labels == {"token": "prometheus"}
    banner = banner_of(board(GOOD, tokens=tokens))
    assert (banner.health, "host-1 is then lost" in banner.headline) == ("weak", True)
    assert "22 more tokens" in banner.headline


def test_a_disk_with_little_space_is_an_alert_and_one_of_a_server_is_not_known() -> None:
    (alert,) = alerts_of(replace(board(GOOD), free_bytes=499_000_000)).values()
    assert (alert.kind.name, alert.kind.severity) == ("DiskNearlyFull", "critical")
    assert "499 MB" in alert.summary
    assert not alerts_of(replace(board(GOOD), free_bytes=600_000_000))
    assert not alerts_of(replace(board(GOOD), free_bytes=None))


def test_recoveries_of_one_job_are_two_alerts() -> None:
    lines = [replace(GOOD, health="bad", stall=STALL, last=replace(OPEN, id=id)) for id in ("r1", "r2")]
    (first,), (second,) = (alerts_of(board(line)) for line in lines)
    assert first != second
