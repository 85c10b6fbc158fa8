"""Agents that were let in a moment ago are let in again, for a moment and no longer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from clonos.resources.service import Event, Role
from clonos_api.auth.known_agents import KnownAgents
from clonos_api.auth.principal import Principal
from support.clock import Clock

AGENT = Principal("t1", "host-1", Role.AGENT, "host-1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> KnownAgents:
    created = KnownAgents(clock)
    created.remember("clonos_t1_ab", AGENT)
    return created


def revoked(token: str) -> Event:
    return Event(seq=1, at=datetime.now(UTC), type="token.revoked", data={"token": token})


def test_a_token_is_cached_by_its_whole_text_for_five_seconds(known: KnownAgents, clock: Clock) -> None:
    assert known.find("clonos_t1_ab") == AGENT
    assert known.find("clonos_t1_ac") is None
    clock.now += 5.1
    assert known.find("clonos_t1_ab") is None


def test_a_revoked_token_is_removed_from_the_cache(known: KnownAgents) -> None:
    known.on_event(revoked("t2"))
    assert known.find("clonos_t1_ab") == AGENT
    known.on_event(revoked("t1"))
    assert known.find("clonos_t1_ab") is None
    known.remember("clonos_t1_ab", AGENT)
    assert known.find("clonos_t1_ab") is None, "it was being looked up while it was revoked"


def test_an_expired_token_is_refused(known: KnownAgents) -> None:
    known.remember("clonos_t1_ab", replace(AGENT, expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    assert known.find("clonos_t1_ab") is None


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_user_tokens_are_not_cached(known: KnownAgents, role: Role) -> None:
    known.remember("clonos_t2_ab", Principal("t2", "ada", role))
    assert known.find("clonos_t2_ab") is None
