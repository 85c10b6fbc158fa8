"""Of all component tests: limits of PostgreSQL for clients that do not answer, and the fields of events."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.resources.event_types import EVENT_KINDS
from clonos_api.store import events


@pytest.fixture(autouse=True)
def _stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL does not end a transaction because a busy machine stalls this process."""
    monkeypatch.setattr("clonos_api.store.db.database._IDLE_MS", 60_000)
    monkeypatch.setattr("clonos_api.store.lease._IDLE_MS", 60_000)


@pytest.fixture(autouse=True)
def _events_have_listed_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of events lists every field that the control plane appends."""
    append = events.append

    def checked(session: Any, kind: Any, *, data: dict[str, Any] | None = None, **of: Any) -> None:
        if kind in EVENT_KINDS:
            assert (data or {}).keys() <= set(EVENT_KINDS[kind].fields), (kind, data)
        append(session, kind, data=data, **of)

    monkeypatch.setattr(events, "append", checked)
