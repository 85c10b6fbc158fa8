"""Limits of PostgreSQL for clients that do not answer, in all component tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL does not end a transaction because a busy machine stalls this process."""
    monkeypatch.setattr("clonos_api.store.db.database._IDLE_MS", 60_000)
    monkeypatch.setattr("clonos_api.store.lease._IDLE_MS", 60_000)
