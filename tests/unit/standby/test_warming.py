"""The schedule of a standby's rehearsals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.standby import warming
from clonos.standby.rehearsal import NotRehearsed
from clonos.standby.warming import Warming
from clonos.telemetry.driver_events import DriverEvent
from clonos.testing.harness import eventually
from support.event_fields import fields_of


class Scripted:
    """A rehearsal that only counts its runs."""

    state = "nothing"
    trouble: Exception | None = None

    def __init__(self, *_: Any) -> None:
        self.runs: list[tuple[str, bool]] = []
        self.evaluated: list[str] = []
        self.seconds = {"out": 0.25, "counts": 0.5}
        Scripted.instance = self

    def evaluate_expressions(self, query: Any) -> int:
        self.evaluated.append(query.name)
        return 1

    def run(
        self, query: Any, *, newest: bool, times: int, interrupted: Callable[[], bool], checkpoint: Path | None = None
    ) -> str:
        if self.trouble is not None:
            raise self.trouble
        self.runs += [(query.name, newest)] * times
        return self.state if newest else "nothing"

    instance: Scripted


class Emitted(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: DriverEvent) -> None:
        self.append((event.name, fields_of(event)))


@pytest.fixture
def emitted() -> Emitted:
    return Emitted()


@pytest.fixture
def standby(tmp_path: Path, emitted: Emitted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warming]:
    for name, value in {"state": "nothing", "trouble": None}.items():
        monkeypatch.setattr(Scripted, name, value)
    for pause in ("_PAUSE_S", "_POLL_S"):
        monkeypatch.setattr(warming, pause, 0.01)
    query: Any = SimpleNamespace(name="out", sink=SimpleNamespace(output_mode="append"))
    scripted: Any = Scripted()
    (tmp_path / "own").mkdir()
    instance = Warming(scripted, [query], [query], {"out": tmp_path / "own"}, emitted)
    yield instance
    instance.stop(wait=True)


def test_standby_rehearses_four_times_before_ready_and_sixteen_in_all(standby: Warming, emitted: Emitted) -> None:
    standby.run_first(lambda: False)
    assert Scripted.instance.evaluated == ["out"]
    assert Scripted.instance.runs == [("out", True)] * 4 + [("out", False)]
    assert emitted == []
    standby.start()
    eventually(lambda: emitted, "it is warm")
    assert Scripted.instance.runs.count(("out", True)) == 16
    assert emitted[0][1]["state"] == {"out": "nothing"}
    assert emitted[0][1]["epoch_s"] == 0.5, "of the slowest query"


def test_standby_rehearses_again_when_there_is_more_to_read(standby: Warming, emitted: Emitted, tmp_path: Path) -> None:
    standby.run_first(lambda: False)
    standby.start()
    eventually(lambda: emitted, "it is warm")
    Scripted.state = "snapshot"
    for folder in ("commits", "state"):
        (tmp_path / "own" / folder).mkdir()
    (tmp_path / "own" / "state" / "1.zip").touch()
    (tmp_path / "own" / "commits" / "1").touch()
    eventually(lambda: len(emitted) > 1, "it is warm again")
    assert emitted[1][1]["state"] == {"out": "snapshot"}
    assert Scripted.instance.runs.count(("out", True)) == 16 + 1 + 4
    standby.stop(wait=True)
    assert Scripted.instance.runs.count(("out", True)) == 16 + 1 + 4, "there is no more than that"


def test_promotion_interrupts_the_first_rehearsals(standby: Warming) -> None:
    standby.run_first(lambda: True)
    assert Scripted.instance.runs == []


def test_failed_rehearsal_is_reported_once(standby: Warming, emitted: Emitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "trouble", NotRehearsed("why"))
    standby.run_first(lambda: False)
    ((name, fields),) = emitted
    assert (name, fields["what"]) == ("not-rehearsed", "why")
    monkeypatch.setattr(Scripted, "trouble", ValueError("later"))
    monkeypatch.setattr(warming, "_REPEAT_S", 0.0)
    standby.start()
    eventually(lambda: len(emitted) > 1, "that too")
    assert emitted[1][1]["what"] == "later"
    # The failure may be temporary.
    monkeypatch.setattr(Scripted, "trouble", None)
    eventually(lambda: Scripted.instance.runs, "it is rehearsed")
    assert [event for event, _ in emitted].count("not-rehearsed") == 2


def test_other_failure_before_ready_stops_the_standby(standby: Warming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "trouble", ValueError("no such column"))
    with pytest.raises(ValueError, match="no such column"):
        standby.run_first(lambda: False)
