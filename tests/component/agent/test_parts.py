"""Parts of the agent, without a running agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from clonos.agent.directories import AgentDirectory, RunDirectory, RunRecord, StoredWork
from clonos.agent.driver_status import DriverStatus
from clonos.agent.memory import MemoryLimits, join
from clonos.agent.restart_policy import outcome_of
from clonos.deadline import is_set_within
from clonos.errors import CLASSES, ClonosError, DirectoryInUse
from clonos.private_folders import write_private
from clonos.resources.hosts import Work
from clonos.telemetry.driver_events import Epoch, as_line


def status_of(tmp_path: Path, *events: dict[str, object]) -> DriverStatus:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    status = DriverStatus(path, 0)
    status.read()
    return status


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exit_code_decides_whether_the_run_is_retried(tmp_path: Path, kind: type[ClonosError]) -> None:
    outcome = outcome_of(kind.exit_code, status_of(tmp_path))
    assert outcome.retry == kind.retry
    assert outcome.failure is not None
    assert outcome.failure.error == kind.slug
    events = {"event": "failed", "error": kind.slug, "what": "why"}, {"event": "summary", "state": "FAILED"}
    unknown = outcome_of(None, status_of(tmp_path, *events))
    assert (unknown.exit_code, unknown.retry) == (kind.exit_code, kind.retry)
    assert unknown.failure is not None
    assert unknown.failure.what == "why"


@pytest.mark.parametrize(
    ("code", "again", "domain"),
    [(-9, True, "run"), (-15, True, "run"), (-64, True, "run"), (None, True, "run"), (99, False, "internal")],
)
def test_signals_are_retried_and_internal_errors_are_not(
    tmp_path: Path, code: int | None, again: bool, domain: str
) -> None:
    outcome = outcome_of(code, status_of(tmp_path))
    assert outcome.retry == again
    assert outcome.failure is not None
    assert outcome.failure.domain == domain


def test_successful_driver_has_no_failure(tmp_path: Path) -> None:
    for code in (0, None):
        finished = outcome_of(code, status_of(tmp_path, {"event": "summary", "state": "FINISHED"}))
        assert (finished.exit_code, finished.failure, finished.retry) == (0, None, False)
        stopped = outcome_of(code, status_of(tmp_path, {"event": "summary", "state": "STOPPED"}))
        assert (stopped.exit_code, stopped.failure, stopped.retry) == (0, None, True)


def test_driver_status_reads_complete_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    status = DriverStatus(path, 0)
    status.read()
    path.write_text(
        'half a li\n[]\n{"event": "claimed", "generation": 7, "lineage": 1}\n{"event": "state", "state": "RUN'
    )
    status.read()
    assert (status.generation, status.state) == (7, None)
    status._apply(b'{"event": "state", "state": "RUNNING", "at": "soon"}')  # a job can write into its event file
    status._apply(b'{"event": "primary-stalled", "at": [1]}')
    assert (status.state, status.stalled_at) == (None, 0.0)
    with path.open("a") as out:
        out.write('NING"}\n{"event": "state", "state": "NONSENSE"}\n')
    status.read()
    assert status.state == "RUNNING"
    with path.open("a") as out:
        for epoch in range(30_000):
            out.write(as_line(Epoch(query="q", epoch=epoch, duration_ms=1.0, generation=8)) + "\n")
    late = DriverStatus(path, 0)  # an adopting agent reads only the end of the file
    late.read()
    assert (late.generation, late.state) == (8, "RUNNING")


def test_an_agent_that_restarts_knows_the_state_of_a_standby(tmp_path: Path) -> None:
    """A standby reports its state when it changes, which may be hours ago, and the epochs that it follows."""
    path = tmp_path / "events.jsonl"
    with path.open("a") as out:
        out.write('{"event": "standby", "state": "READY", "at": 5.5}\n')
        for epoch in range(20_000):
            out.write(json.dumps({"event": "following", "epochs": {"q" * 30: epoch}, "state": "READY"}) + "\n")
    status = DriverStatus(path, 0)
    status.read()
    assert (status.standby, status.state) == ("READY", None)
    assert status.changed_at == 0.0, "the change itself was not read"
    with path.open("a") as out:
        out.write('{"event": "standby", "state": "PROMOTING", "at": 7.5}\n')
    status.read()
    assert (status.standby, status.changed_at) == ("PROMOTING", 7.5)


def test_incomplete_work_file_is_ignored(tmp_path: Path) -> None:
    directory = AgentDirectory(tmp_path)
    assert directory.work() is None
    directory.write_work(StoredWork(agent="a", work=Work(revision=3)))
    stored = directory.work()
    assert stored is not None
    assert stored.work.revision == 3
    (tmp_path / "work.json").write_text('{"agent": "a", "wo')
    assert directory.work() is None
    run = directory.run("r1")
    assert run.record() == RunRecord()
    with pytest.raises(ValueError):
        directory.run("../r1")
    write_private(tmp_path / "x", "1")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_cancellation_together_with_the_event_is_not_lost() -> None:
    async def both_at_once() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(is_set_within(event, 30.0))
        await asyncio.sleep(0)
        event.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await is_set_within(event, 0.01)
        assert not await is_set_within(asyncio.Event(), 0.01)

    asyncio.run(both_at_once())


def test_directory_is_locked_by_one_agent(tmp_path: Path) -> None:
    directory = AgentDirectory(tmp_path)
    with directory.locked(), pytest.raises(DirectoryInUse), AgentDirectory(tmp_path).locked():
        pass
    with directory.locked():
        pass


def test_incomplete_line_is_ended_before_the_next_driver(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.create("")
    assert directory.events.read_bytes() == b""
    for before, after in ((b"a\n", b"a\n"), (b"a\nb", b"a\nb\n")):
        directory.events.write_bytes(before)
        directory.create("")
        assert directory.events.read_bytes() == after


def test_memory_limit_needs_a_writable_cgroup(tmp_path: Path) -> None:
    assert not MemoryLimits(None).available
    assert not MemoryLimits(tmp_path).available, "no cgroup"
    (tmp_path / "cgroup.controllers").write_text("cpu hugetlb\n")
    assert not MemoryLimits(tmp_path).available, "without the memory controller"
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    limits = MemoryLimits(tmp_path)
    assert limits.available
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    group = limits.create("r1", 512)
    assert group == tmp_path / "clonos-r1"
    assert (group / "memory.max").read_text() == str(512 << 20)
    assert (group / "memory.oom.group").read_text() == "1"
    join(group, 4711)
    assert (group / "cgroup.procs").read_text() == "4711"
