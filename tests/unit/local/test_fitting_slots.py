"""The slots that `clonos up` gives its hosts on machines of several sizes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from clonos.local.fitting_slots import fitting_slots


@pytest.mark.parametrize(
    ("free_gib", "cores", "agents", "slots"),
    [
        (0.5, 2, 2, 2),
        (3.0, 16, 2, 2),
        (7.0, 2, 2, 2),
        (24.0, 2, 2, 2),
        (24.0, 1, 2, 2),
        (12.0, 16, 2, 5),
        (64.0, 4, 2, 4),
        (256.0, 64, 2, 8),
        (24.0, 8, 0, 8),
    ],
)
def test_memory_and_cores_limit_the_slots(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, cores: int, agents: int, slots: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(free_gib * (1 << 30))))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert fitting_slots(agents)[0] == slots


def test_short_memory_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 << 30))
    assert fitting_slots(2) == (2, "This machine has 3.0 GiB of free memory: room for about one driver or standby.")
