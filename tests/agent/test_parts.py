"""Parts of the agent that need no agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from clonos import errors
from clonos.agent.memory import MemoryLimits, join
from clonos.agent.place import KeptOrders, Place, RunPlace, RunRecord, write_atomically
from clonos.agent.told import Told
from clonos.agent.verdict import judge
from clonos.agent.waiting import happens
from clonos.errors import ClonosError, DirectoryTaken
from clonos.resources.hosts import Work

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ClonosError)]


def told(tmp_path: Path, *events: dict[str, object]) -> Told:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = Told(path, 0)
    found.read()
    return found


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exit_codes_decide_whether_it_is_tried_again(tmp_path: Path, kind: type[ClonosError]) -> None:
    verdict = judge(kind.exit_code, told(tmp_path))
    assert verdict.again == kind.retry
    assert verdict.failure is not None
    assert verdict.failure.error == kind.slug
    events = {"event": "failed", "error": kind.slug, "what": "why"}, {"event": "summary", "state": "FAILED"}
    unknown = judge(None, told(tmp_path, *events))
    assert (unknown.exit_code, unknown.again) == (kind.exit_code, kind.retry)
    assert unknown.failure is not None
    assert unknown.failure.what == "why"


@pytest.mark.parametrize(
    ("code", "again", "domain"),
    [(-9, True, "run"), (-15, True, "run"), (-64, True, "run"), (None, True, "run"), (99, False, "internal")],
)
def test_signals_and_silence_are_tried_again(tmp_path: Path, code: int | None, again: bool, domain: str) -> None:
    verdict = judge(code, told(tmp_path))
    assert verdict.again == again
    assert verdict.failure is not None
    assert verdict.failure.domain == domain


def test_a_driver_that_ended_well(tmp_path: Path) -> None:
    for code in (0, None):
        finished = judge(code, told(tmp_path, {"event": "summary", "state": "FINISHED"}))
        assert (finished.exit_code, finished.failure, finished.again) == (0, None, False)
        stopped = judge(code, told(tmp_path, {"event": "summary", "state": "STOPPED"}))
        assert (stopped.exit_code, stopped.failure, stopped.again) == (0, None, True)


def test_what_a_driver_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    found = Told(path, 0)
    found.read()
    path.write_text('half a li\n[]\n{"event": "claimed", "generation": 7}\n{"event": "state", "state": "RUN')
    found.read()
    assert (found.generation, found.state) == (7, None)
    with path.open("a") as out:
        out.write('NING"}\n{"event": "state", "state": "NONSENSE"}\n')
    found.read()
    assert found.state == "RUNNING"
    with path.open("a") as out:
        for epoch in range(30_000):
            out.write(json.dumps({"event": "epoch", "epoch": epoch, "generation": 8, "text": "x" * 40}) + "\n")
    late = Told(path, 0)  # an agent that adopts: the end is enough
    late.read()
    assert (late.generation, late.state) == (8, "RUNNING")


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.orders() is None
    place.write_orders(KeptOrders(agent="a", work=Work(revision=3)))
    orders = place.orders()
    assert orders is not None
    assert orders.work.revision == 3
    (tmp_path / "orders.json").write_text('{"agent": "a", "wo')
    assert place.orders() is None
    run = place.run("r1")
    assert run.record() == RunRecord()
    with pytest.raises(ValueError):
        place.run("../r1")
    write_atomically(tmp_path / "x", "1")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_a_cancellation_is_heard_in_the_moment_of_the_event() -> None:
    async def both_at_once() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(happens(event, 30.0))
        await asyncio.sleep(0)
        event.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await happens(event, 0.01)
        assert not await happens(asyncio.Event(), 0.01)

    asyncio.run(both_at_once())


def test_a_folder_has_one_agent(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.held(), pytest.raises(DirectoryTaken), Place(tmp_path).held():
        pass
    with place.held():
        pass


def test_a_half_line_is_ended_before_the_next_driver(tmp_path: Path) -> None:
    place = RunPlace(tmp_path / "r1")
    place.make("")
    assert place.events.read_bytes() == b""
    for before, after in ((b"a\n", b"a\n"), (b"a\nb", b"a\nb\n")):
        place.events.write_bytes(before)
        place.make("")
        assert place.events.read_bytes() == after


def test_a_memory_limit_needs_a_cgroup_that_may_be_changed(tmp_path: Path) -> None:
    assert not MemoryLimits(None).available
    assert not MemoryLimits(tmp_path).available, "no cgroup"
    (tmp_path / "cgroup.controllers").write_text("cpu hugetlb\n")
    assert not MemoryLimits(tmp_path).available, "without the memory controller"
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    limits = MemoryLimits(tmp_path)
    assert limits.available
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    group = limits.make("r1", 512)
    assert group == tmp_path / "clonos-r1"
    assert (group / "memory.max").read_text() == str(512 << 20)
    assert (group / "memory.oom.group").read_text() == "1"
    join(group, 4711)
    assert (group / "cgroup.procs").read_text() == "4711"
