"""How often a standby rehearses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.standby import warming
from clonos.standby.rehearsal import NotRehearsed
from clonos.standby.warming import Warming
from observe import eventually


class Scripted:
    """Rehearses nothing, and notes how often."""

    state = "nothing"
    trouble: Exception | None = None

    def __init__(self, *_: Any) -> None:
        self.runs: list[tuple[str, bool]] = []
        Scripted.made = self

    def run(self, query: Any, *, newest: bool, times: int, enough: Callable[[], bool], own: Path | None = None) -> str:
        if self.trouble is not None:
            raise self.trouble
        self.runs += [(query.name, newest)] * times
        return self.state if newest else "nothing"

    made: Scripted


class Told(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: str, **fields: Any) -> None:
        # As it was then: it is the standby's to change.
        self.append((event, {name: dict(one) if isinstance(one, dict) else one for name, one in fields.items()}))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def standby(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warming]:
    for name, value in {"state": "nothing", "trouble": None}.items():
        monkeypatch.setattr(Scripted, name, value)
    monkeypatch.setattr(warming, "_LOOK_S", 0.01)
    query: Any = SimpleNamespace(name="out", sink=SimpleNamespace(output_mode="append"))
    scripted: Any = Scripted()
    (tmp_path / "own").mkdir()
    made = Warming(scripted, [query], [query], {"out": tmp_path / "own"}, told)
    yield made
    made.end(wait=True)


def test_four_times_before_it_is_ready_and_sixteen_in_all(standby: Warming, told: Told) -> None:
    standby.first(lambda: False)
    assert Scripted.made.runs == [("out", True)] * 4 + [("out", False)]
    assert told == []
    standby.go_on()
    eventually(lambda: told, "it is warm")
    assert Scripted.made.runs.count(("out", True)) == 16
    assert told[0][1]["state"] == {"out": "nothing"}


def test_more_of_them_when_there_is_more_to_read(standby: Warming, told: Told, tmp_path: Path) -> None:
    standby.first(lambda: False)
    standby.go_on()
    eventually(lambda: told, "it is warm")
    Scripted.state = "snapshot"
    for folder in ("commits", "state"):
        (tmp_path / "own" / folder).mkdir()
    (tmp_path / "own" / "state" / "1.zip").touch()
    (tmp_path / "own" / "commits" / "1").touch()
    eventually(lambda: len(told) > 1, "it is warm again")
    assert told[1][1]["state"] == {"out": "snapshot"}
    assert Scripted.made.runs.count(("out", True)) == 16 + 1 + 4
    standby.end(wait=True)
    assert Scripted.made.runs.count(("out", True)) == 16 + 1 + 4, "there is no more than that"


def test_it_stops_half_way_when_it_is_to_take_over(standby: Warming) -> None:
    standby.first(lambda: True)
    assert Scripted.made.runs == []


def test_what_cannot_be_rehearsed_is_told(standby: Warming, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "trouble", NotRehearsed("why"))
    standby.first(lambda: False)
    assert told == [("not-rehearsed", {"what": "why"})]
    monkeypatch.setattr(Scripted, "trouble", ValueError("later"))
    monkeypatch.setattr(warming, "_AGAIN_S", 0.0)
    standby.go_on()
    eventually(lambda: len(told) > 1, "that too")
    assert told[1] == ("not-rehearsed", {"what": "later"})
    # It may be only for a while.
    monkeypatch.setattr(Scripted, "trouble", None)
    eventually(lambda: Scripted.made.runs, "it is rehearsed")
    assert [event for event, _ in told].count("not-rehearsed") == 2


def test_what_fails_otherwise_before_it_is_ready_ends_the_standby(
    standby: Warming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "trouble", ValueError("no such column"))
    with pytest.raises(ValueError, match="no such column"):
        standby.first(lambda: False)
