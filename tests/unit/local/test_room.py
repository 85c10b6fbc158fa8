"""The slots and pool drivers that `clonos up` gives its hosts on machines of several sizes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from clonos.local.plan import room_for


@pytest.mark.parametrize(
    ("free_gib", "cores", "agents", "slots", "pool_size"),
    [
        (0.5, 2, 2, 2, 0),
        (3.0, 16, 2, 2, 0),
        (7.0, 2, 2, 2, 0),
        (8.0, 2, 2, 2, 1),
        (24.0, 2, 2, 2, 1),
        (24.0, 1, 2, 2, 1),
        (12.0, 16, 2, 5, 0),
        (64.0, 4, 2, 4, 1),
        (256.0, 64, 2, 8, 1),
        (24.0, 8, 0, 8, 1),
    ],
)
def test_memory_and_cores_limit_what_an_agent_has(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, cores: int, agents: int, slots: int, pool_size: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(free_gib * (1 << 30))))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert room_for(agents)[:2] == (slots, pool_size)


@pytest.mark.parametrize(("requested", "pool_size"), [(1, 1), (5, 1), (20, 0)])
def test_requested_slots_have_priority_over_pool_drivers(
    monkeypatch: pytest.MonkeyPatch, requested: int, pool_size: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=24 << 30))
    assert room_for(2, requested) == (requested, pool_size, "")


def test_executors_need_the_memory_of_pool_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=24 << 30))
    assert room_for(2, 2).pool_size == 1
    assert room_for(2, 2, spark_workers=1) == (2, 0, "")


def test_short_memory_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 << 30))
    assert room_for(2) == (2, 0, "This machine has 3.0 GiB of free memory: room for about one driver or standby.")
