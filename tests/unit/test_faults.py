"""Parsing and matching of injected faults; what kills is left to the chaos tests."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import IO

import pytest

from clonos import faults
from clonos.faults import FaultInjected, reach


def test_parse_accepts_an_empty_text() -> None:
    assert faults.parse("") == ()


def test_parse_splits_several_faults() -> None:
    lane, plan = faults.parse("lane-committed,epoch=3,lane=0:kill;plan-committed:raise")
    assert (lane.point, lane.values, lane.action) == ("lane-committed", (("epoch", "3"), ("lane", "0")), "kill")
    assert (plan.point, plan.values, plan.action) == ("plan-committed", (), "raise")
    assert (lane.name, plan.name) == ("lane-committed,epoch=3,lane=0", "plan-committed")


@pytest.mark.parametrize("text", ["no-such-point:kill", "lane-committed:explode", "lane-committed", ":kill", "kill"])
def test_parse_refuses_unknown_points_and_actions(text: str) -> None:
    with pytest.raises(ValueError, match="no such point or action"):
        faults.parse(text)


def use(monkeypatch: pytest.MonkeyPatch, text: str, log: Path | None = None) -> None:
    monkeypatch.setattr(faults, "_FAULTS", faults.parse(text))
    if log is None:
        monkeypatch.delenv("CLONOS_FAULT_LOG", raising=False)
    else:
        monkeypatch.setenv("CLONOS_FAULT_LOG", str(log))


def test_reach_triggers_only_matching_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "lane-committed,epoch=3,replay=False:raise")
    reach("lane-marked", epoch=3, replay=False)
    reach("lane-committed", epoch=4, replay=False)
    reach("lane-committed", epoch=3, replay=True)
    reach("lane-committed")
    reach("lane-committed", epoch=33, replay=False)
    with pytest.raises(FaultInjected, match="lane-committed,epoch=3"):
        reach("lane-committed", epoch=3, replay=False, lane=7)


def test_reach_raises_once_for_each_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "plan-committed:raise", tmp_path / "log")
    with pytest.raises(FaultInjected):
        reach("plan-committed")
    reach("plan-committed")
    assert (tmp_path / "log").read_text() == "plan-committed\n"


def test_a_note_is_written_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "epoch-done,epoch=1:note;epoch-done:note", tmp_path / "log")
    for epoch in (0, 1):
        reach("epoch-done", epoch=epoch)
    assert (tmp_path / "log").read_text().splitlines() == ["epoch-done", "epoch-done,epoch=1", "epoch-done"]


def test_hold_waits_for_the_go_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "plan-committed:hold", tmp_path / "log")
    (tmp_path / "log.go").touch()
    reach("plan-committed")
    (tmp_path / "log.go").unlink()
    reach("plan-committed")  # held once already
    assert (tmp_path / "log").read_text() == "plan-committed\n"


def test_one_of_several_holds_is_let_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "epoch-done,epoch=1:hold;epoch-done,epoch=2:hold", tmp_path / "log")
    (tmp_path / "log.epoch-done,epoch=1.go").touch()
    reach("epoch-done", epoch=1)
    held = threading.Thread(target=reach, args=("epoch-done",), kwargs={"epoch": 2})
    held.start()
    held.join(0.1)
    assert held.is_alive()
    (tmp_path / "log.epoch-done,epoch=2.go").touch()
    held.join(60)
    assert not held.is_alive()


def test_only_the_first_of_several_lanes_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "lane-committed:stop", tmp_path / "log")
    stopped: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: stopped.append(number))
    original = Path.open

    def another_lane_comes_now(path: Path, mode: str) -> IO[str]:
        monkeypatch.setattr(Path, "open", original)
        reach("lane-committed", lane=1)
        return original(path, mode)

    monkeypatch.setattr(Path, "open", another_lane_comes_now)
    reach("lane-committed", lane=0)
    assert stopped == [signal.SIGSTOP]
    assert (tmp_path / "log").read_text() == "lane-committed\n"
