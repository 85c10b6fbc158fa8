"""An agent renews its token: what it keeps if a file fails, and what it logs."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from clonos.agent import agent as agent_module
from clonos.agent.agent import Agent
from clonos.client.agent_api import ApiUnavailable
from clonos.client.agent_token import AgentToken


class Pause(Exception):
    """The agent would wait now."""


def renew(monkeypatch: pytest.MonkeyPatch, token: AgentToken, left: timedelta, renewed: Any) -> list[Any]:
    """Run one attempt for a token with a lifetime of 30 days; returns what was logged."""

    class Api:
        async def own_token(self) -> Any:
            expires_at = datetime.now(UTC) + left
            return SimpleNamespace(created_at=expires_at - timedelta(days=30), expires_at=expires_at)

        async def renew_token(self, *, overlap_s: int) -> Any:
            return renewed()

    async def sleep(_seconds: float) -> None:
        raise Pause

    async def attempt() -> None:
        registered = asyncio.Event()
        registered.set()
        agent = SimpleNamespace(_token=token, _registered=registered, _api=Api())
        monkeypatch.setattr(agent_module.asyncio, "sleep", sleep)
        with pytest.raises(Pause):
            await Agent._renew_token(cast("Any", agent))

    with capture_logs() as logs:
        asyncio.run(attempt())
    return logs


def test_a_token_file_that_became_unreadable_does_not_lose_the_new_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("clonos_a_1")
    token = AgentToken(file, tmp_path / "renewed")
    assert token.text() == "clonos_a_1"

    def renewed() -> Any:
        file.unlink()
        return SimpleNamespace(token="clonos_b_2", id="b", expires_at=datetime.now(UTC) + timedelta(days=30))

    assert [entry["event"] for entry in renew(monkeypatch, token, timedelta(days=1), renewed)] == ["token-renewed"]
    file.write_text("clonos_a_1")
    assert token.text() == "clonos_b_2"
    assert AgentToken(file, tmp_path / "renewed").text() == "clonos_b_2"


def test_a_token_file_that_was_never_readable_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = AgentToken(tmp_path / "missing", tmp_path / "renewed")
    new = SimpleNamespace(token="clonos_b_2", id="b", expires_at=datetime.now(UTC) + timedelta(days=30))
    [entry] = renew(monkeypatch, token, timedelta(days=1), lambda: new)
    assert (entry["event"], entry["log_level"]) == ("token-not-renewed", "warning")
    assert "missing cannot be read" in entry["why"]


@pytest.mark.parametrize("left", [timedelta(days=20), timedelta(days=1)], ids=["checked", "renewed"])
def test_a_token_that_a_full_disk_refused_is_stored_by_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: timedelta
) -> None:
    (tmp_path / "token").write_text("clonos_a_1")
    renewed = tmp_path / "folder" / "renewed"
    token = AgentToken(tmp_path / "token", renewed)
    with pytest.raises(OSError, match="folder"):
        token.replace("clonos_b_2")
    newer = SimpleNamespace(token="clonos_c_3", id="c", expires_at=datetime.now(UTC) + timedelta(days=30))
    [entry] = renew(monkeypatch, token, left, lambda: newer)
    assert "folder" in entry["why"]
    text = token.text()
    assert text == ("clonos_b_2" if left > timedelta(days=10) else "clonos_c_3"), "it is renewed without a disk"
    renewed.parent.mkdir()
    for lost in (False, True):  # the file may also be removed while the agent runs
        if lost:
            renewed.unlink()
        assert renew(monkeypatch, token, timedelta(days=20), lambda: newer) == []
        assert AgentToken(tmp_path / "token", renewed).text() == text


def test_a_stored_token_outlives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "token").write_text("clonos_a_1")
    AgentToken(tmp_path / "token", tmp_path / "renewed").replace("clonos_b_2")
    assert [path.parent for path in synced] == [tmp_path, tmp_path.parent], "the file, then its folder"


@pytest.mark.parametrize(("days", "event"), [(9, "token-not-renewed"), (6, "token-expires")])
def test_a_warning_of_the_last_week_names_the_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, event: str
) -> None:
    def renewed() -> Any:
        raise ApiUnavailable("The control plane does not respond.")

    (tmp_path / "token").write_text("clonos_a_1")
    [entry] = renew(monkeypatch, AgentToken(tmp_path / "token"), timedelta(days=days), renewed)
    assert (entry["event"], entry["log_level"]) == (event, "warning")
    assert entry["expires"].endswith(" UTC")
    assert "The control plane does not respond." in entry["why"]
