"""When missing heartbeats count: only if they could have arrived."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clonos_api.reconcile import loop, quiet
from clonos_api.reconcile.loop import ROUND_S, Term
from clonos_api.settings import ApiSettings


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moments = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: moments[0])
    return moments


@pytest.fixture
def term(clock: list[float]) -> Term:
    database: Any = SimpleNamespace(notifier=None)
    leader: Any = SimpleNamespace()
    leads = Term(database, ApiSettings(), leader, 1)
    while not leads._heartbeats_valid:
        clock[0] += ROUND_S
        leads._answered()
    return leads


def test_a_long_round_whose_transactions_succeed_is_no_outage(term: Term, clock: list[float]) -> None:
    term._check_availability()
    for _ in range(10):
        clock[0] += ROUND_S
        term._answered()
    term._check_availability()
    assert term._heartbeats_valid


def test_after_a_pause_hosts_can_reconnect_before_any_is_lost(term: Term, clock: list[float]) -> None:
    clock[0] += 3 * ROUND_S
    term._check_availability()  # before hosts are loaded: heartbeats are missing since the pause began
    assert not term._heartbeats_valid
    term._answered()
    assert not term._heartbeats_valid


@pytest.mark.anyio
async def test_a_pause_while_hosts_are_read_discards_them(
    term: Term, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database answered late: heartbeats are missing for that reason, and no standby may take over."""

    async def load(_session: object, *, heartbeats_valid: bool) -> None:
        assert heartbeats_valid
        clock[0] += 4 * ROUND_S

    async def read(_session: object) -> list[object]:
        return []

    async def signs(_session: object) -> quiet.Signs:
        return quiet.Signs(None, None, None, ())

    monkeypatch.setattr(loop, "load", load)
    monkeypatch.setattr(loop.ending, "read", read)
    monkeypatch.setattr(loop.quiet, "read", signs)
    database: Any = SimpleNamespace(reading=lambda **_: contextlib.nullcontext())
    term.database = database
    assert await term.round(), "the next round follows at once"


def test_failed_attempts_do_not_hide_an_outage(term: Term, clock: list[float]) -> None:
    for _ in range(6):
        clock[0] += ROUND_S / 2
        term._check_availability()
    assert not term._heartbeats_valid
