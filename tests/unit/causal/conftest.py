"""A recorder in memory, and retries without pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamina
from scopes import FakeRecorder

from clonos.causal import scope


@pytest.fixture
def fake_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scope, "Recorder", FakeRecorder)
    stamina.set_testing(True, attempts=10, cap=True)
    yield
    stamina.set_testing(False)
