"""Events and logs arrive exactly once, complete and in sequence, despite outages, lost responses and rotations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.agent.forwarding import RotatedLog, _Events, same_length, whole_characters
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec
from component.agent.test_supervising import reported

Host = Callable[..., ThreadAgent]
_TALKER = b"""
signal.signal(signal.SIGTERM, lambda *_: end("STOPPED"))
running()
number = 0
while True:
    emit("epoch", query="q", epoch=number, generation=1, duration_ms=1.0)
    print("line", number, flush=True)
    number += 1
    time.sleep(0.002)
"""


def epochs_of(lines: list[str]) -> list[int]:
    return [event["epoch"] for event in map(json.loads, lines) if event["event"] == "epoch"]


def stop_and_settle(api: FakeApi, run: str, code: str, home: Path) -> None:
    api.assign(run_spec(run, code, "STOPPED"))
    reported(api, run, "EXITED", final=True)
    size = (home / "agent" / "host-1" / "runs" / run / "events.jsonl").stat().st_size
    eventually(lambda: api.events_end[run] == size, "everything has arrived")


def test_outage_loses_and_duplicates_no_event(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.assign(run_spec(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 20, "events arrive")
    api.stop()
    file = tmp_path / "agent" / "host-1" / "runs" / run / "events.jsonl"
    before = file.stat().st_size
    eventually(lambda: file.stat().st_size > before + 50_000, "the driver continues")
    api.start()
    api.failing = 503
    before = file.stat().st_size
    eventually(lambda: file.stat().st_size > before + 20_000, "the driver continues")
    api.failing = 0
    stop_and_settle(api, run, code, tmp_path)
    epochs = epochs_of(api.events[run])
    assert epochs == list(range(len(epochs)))
    assert api.events[run] == file.read_text().splitlines()
    assert api.gaps == []


def test_events_lost_by_the_control_plane_are_sent_again(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.assign(run_spec(run, code))
    agent = host()
    eventually(lambda: len(api.events[run]) > 50, "events arrive")
    # Like a database restored from a backup.
    api.failing = 503
    api.events[run] = api.events[run][:10]
    api.events_end[run] = sum(len(line) + 1 for line in api.events[run])
    api.failing = 0
    eventually(lambda: len(api.events[run]) > 100, "the events arrive again")
    agent.stop()
    host()  # another agent requests the current offset
    stop_and_settle(api, run, code, tmp_path)
    epochs = epochs_of(api.events[run])
    assert epochs == list(range(len(epochs)))


def test_last_events_lost_by_the_control_plane_are_sent_again(
    api: FakeApi, host: Host, run: str, tmp_path: Path
) -> None:
    """A crash of the database may lose acknowledged events; only the final request of the run shows the loss."""
    code = api.upload(_TALKER)
    api.assign(run_spec(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 20, "events arrive")
    stop_and_settle(api, run, code, tmp_path)
    events = list(api.events[run])
    api.events[run] = events[:-2]
    api.events_end[run] = sum(len(line) + 1 for line in api.events[run])
    api.assign()
    eventually(lambda: not (tmp_path / "agent" / "host-1" / "runs" / run).exists(), "the run is removed")
    assert api.events[run] == events
    assert api.lasts == [run, run], "the repeated events are confirmed by another final request"


def test_logs_are_rotated_and_arrive(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.assign(run_spec(run, code))
    host(log_bytes=4096, events_bytes=4096)
    older = tmp_path / "agent" / "host-1" / "runs" / run / "driver.log.1"
    eventually(older.exists, "the log is rotated")
    size = api.log_end[run]
    eventually(lambda: api.log_end[run] > size + 10_000, "the log continues to arrive")
    assert older.with_suffix("").stat().st_size < 100_000
    stop_and_settle(api, run, code, tmp_path)
    logged = [int(line.partition(" ")[2]) for line in api.log[run].splitlines() if line.startswith("line ")]
    assert logged == sorted(set(logged))
    assert logged[0] == 0


def test_rejected_event_blocks_no_other(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    api.refuse_events = lambda lines: any('"epoch": 7,' in line for line in lines)
    code = api.upload(_TALKER)
    api.assign(run_spec(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 30, "events arrive")
    stop_and_settle(api, run, code, tmp_path)
    epochs = epochs_of(api.events[run])
    assert epochs == [number for number in range(len(epochs) + 1) if number != 7]


def test_incomplete_line_of_a_killed_driver_arrives_alone(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b'_out.write(\'{"event": "epo\'); _out.flush(); os.kill(os.getpid(), 9)')
    api.assign(run_spec(run, code, restart={"attempts": 1, "initial_backoff_ms": 1}))
    host()
    reported(api, run, "EXITED", final=True)
    eventually(lambda: api.events[run], "the line arrives")
    assert api.events[run] == ['{"event": "epo']


def test_disk_space_of_forwarded_events_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"number": number, "text": "x" * 1000}) for number in range(3000)]
    path.write_text("\n".join(lines) + "\n")
    events = _Events(path, 4096)
    offset, read = 0, list[str]()
    while (batch := events.read(offset))[1]:
        assert batch[0] == offset
        read += batch[1]
        offset = batch[2]
        events.free(offset)
    assert read == lines
    if path.stat().st_blocks * 512 > path.stat().st_size - (1 << 20):
        pytest.skip("this file system supports no holes")
    start, some, _ = events.read(0)
    assert start > 0
    assert all(line in lines for line in some), "whole lines after the hole"


def test_incomplete_and_overlong_lines_are_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = _Events(path, 4096)
    assert events.read(0) == (0, [], 0)
    path.write_bytes(b"one\nhalf")
    assert events.read(0) == (0, ["one"], 4)
    assert events.read(4) == (4, [], 4)
    path.write_bytes(b"x" * 2_000_000)
    assert events.read(0) == (0, [], 0), "the line may still be completed"
    path.write_bytes(b"x" * 2_000_000 + b"\nnext\n")
    assert events.read(0) == (2_000_001, [], 0), "the line is too long"
    assert events.read(2_000_001) == (2_000_001, ["next"], 2_000_006)
    path.write_bytes(b"x" * 500_000 + b"\nnext\n")
    assert events.read(0)[1] == ["x" * 500_000, "next"][: len(events.read(0)[1])]
    assert events.read(500_001) == (500_001, ["next"], 500_006)


@given(st.binary(max_size=40))
def test_text_has_the_length_of_its_bytes(data: bytes) -> None:
    text = same_length(data)
    assert len(text.encode()) == len(data)
    assert "\0" not in text


@given(st.text(max_size=20), st.integers(0, 80))
def test_no_character_is_cut(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    whole = whole_characters(data)
    assert data.startswith(whole)
    assert len(data) - len(whole) < 4
    assert text.startswith(whole.decode())


# Files that the killed agent had open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_interrupted_rotation_keeps_offsets(tmp_path: Path) -> None:
    """Interrupts the rotation at each line of its code; offsets do not change."""
    path = tmp_path / "driver.log"
    content = b"".join(b"line %d\n" % number for number in range(1000))

    class Killed(BaseException):
        pass

    def steps(kill_at: int) -> bool:
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(content)
        log = RotatedLog(path, 10)
        assert log.rotate()
        with path.open("ab") as out:
            out.write(content[::-1])
        left = [kill_at]

        def trace(_frame: object, event: str, _arg: object) -> object:
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
            return trace

        sys.settrace(lambda frame, event, arg: trace if frame.f_code is RotatedLog.rotate.__code__ else None)
        try:
            log.rotate()
            done = True
        except Killed:
            done = False
        finally:
            sys.settrace(None)
        again = RotatedLog(path, 10)
        assert again.end() == 2 * len(content)
        rest = b""
        offset = again.start()
        assert offset in (0, len(content))
        while piece := again.read(offset, 4000):
            rest += piece
            offset += len(piece)
        assert (content + content[::-1]).endswith(rest)
        assert rest.endswith(content[::-1])
        return done

    kill_at = 1
    while not steps(kill_at):
        kill_at += 1
    assert kill_at > 8


def test_rotations_during_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    log = RotatedLog(path, 100)
    for number in range(4):
        with path.open("ab") as out:
            out.write(b"%d" % number * 100)
        assert log.rotate()
    assert (log.start(), log.end()) == (300, 400)
    assert log.read(300, 1000) == b"3" * 100
    assert not log.rotate()
    assert path.stat().st_size == 0
