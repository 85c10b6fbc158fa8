"""What drivers tell arrives once, in order and whole: through outages, lost answers and rotations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api import FakeApi
from agent.hosts import ThreadAgent, order
from agent.test_supervising import reported
from clonos.agent.forward import _Events, same_length, whole_characters
from clonos.agent.rotation import RotatedLog
from observe import eventually

Host = Callable[..., ThreadAgent]
_TALKER = b"""
signal.signal(signal.SIGTERM, lambda *_: end("STOPPED"))
running()
number = 0
while True:
    emit("epoch", query="q", epoch=number, generation=1)
    print("line", number, flush=True)
    number += 1
    time.sleep(0.002)
"""


def numbers(lines: list[str]) -> list[int]:
    return [one["epoch"] for one in map(json.loads, lines) if one["event"] == "epoch"]


def stop_and_settle(api: FakeApi, run: str, code: str, home: Path) -> None:
    api.order(order(run, code, "STOP"))
    reported(api, run, "EXITED", final=True)
    size = (home / "agent" / "host-1" / "runs" / run / "events.jsonl").stat().st_size
    eventually(lambda: api.events_end[run] == size, "everything has arrived")


def test_an_outage_loses_nothing_and_doubles_nothing(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.order(order(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 20, "events arrive")
    api.stop()
    file = tmp_path / "agent" / "host-1" / "runs" / run / "events.jsonl"
    before = file.stat().st_size
    eventually(lambda: file.stat().st_size > before + 50_000, "the driver goes on")
    api.start()
    api.failing = 503
    before = file.stat().st_size
    eventually(lambda: file.stat().st_size > before + 20_000, "the driver goes on")
    api.failing = 0
    stop_and_settle(api, run, code, tmp_path)
    found = numbers(api.events[run])
    assert found == list(range(len(found)))
    assert api.events[run] == file.read_text().splitlines()
    assert api.gaps == []


def test_a_control_plane_that_lost_some_gets_it_again(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.order(order(run, code))
    agent = host()
    eventually(lambda: len(api.events[run]) > 50, "events arrive")
    # As a database that was restored from a copy.
    api.failing = 503
    api.events[run] = api.events[run][:10]
    api.events_end[run] = sum(len(line) + 1 for line in api.events[run])
    api.failing = 0
    eventually(lambda: len(api.events[run]) > 100, "they arrive again")
    agent.stop()
    host()  # and another agent asks how far they have come
    stop_and_settle(api, run, code, tmp_path)
    found = numbers(api.events[run])
    assert found == list(range(len(found)))


def test_the_last_words_are_told_again_if_they_are_forgotten(
    api: FakeApi, host: Host, run: str, tmp_path: Path
) -> None:
    """A database that crashes forgets what it had not written; nobody tells more, which would find it out."""
    code = api.upload(_TALKER)
    api.order(order(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 20, "events arrive")
    stop_and_settle(api, run, code, tmp_path)
    told = list(api.events[run])
    api.events[run] = told[:-2]
    api.events_end[run] = sum(len(line) + 1 for line in api.events[run])
    api.order()
    eventually(lambda: not (tmp_path / "agent" / "host-1" / "runs" / run).exists(), "the run is forgotten")
    assert api.events[run] == told
    assert api.lasts == [run, run], "what was told after that is asked for again"


def test_logs_are_rotated_and_arrive(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(_TALKER)
    api.order(order(run, code))
    host(log_bytes=4096, events_bytes=4096)
    older = tmp_path / "agent" / "host-1" / "runs" / run / "driver.log.1"
    eventually(older.exists, "the log is rotated")
    size = api.log_end[run]
    eventually(lambda: api.log_end[run] > size + 10_000, "it goes on to arrive")
    assert older.with_suffix("").stat().st_size < 100_000
    stop_and_settle(api, run, code, tmp_path)
    found = [int(line.partition(" ")[2]) for line in api.log[run].splitlines() if line.startswith("line ")]
    assert found == sorted(set(found))
    assert found[0] == 0


def test_an_event_that_nobody_takes_does_not_hold_up_the_others(
    api: FakeApi, host: Host, run: str, tmp_path: Path
) -> None:
    api.refuse_events = lambda lines: any('"epoch": 7,' in line for line in lines)
    code = api.upload(_TALKER)
    api.order(order(run, code))
    host()
    eventually(lambda: len(api.events[run]) > 30, "events arrive")
    stop_and_settle(api, run, code, tmp_path)
    found = numbers(api.events[run])
    assert found == [number for number in range(len(found) + 1) if number != 7]


def test_a_half_line_of_a_killed_driver_spoils_no_other(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b'_out.write(\'{"event": "epo\'); _out.flush(); os.kill(os.getpid(), 9)')
    api.order(order(run, code, restart={"attempts": 1, "backoff_ms": 1}))
    host()
    reported(api, run, "EXITED", final=True)
    eventually(lambda: api.events[run], "it arrives")
    assert api.events[run] == ['{"event": "epo']


def test_what_was_told_is_given_back_to_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"number": number, "text": "x" * 1000}) for number in range(3000)]
    path.write_text("\n".join(lines) + "\n")
    events = _Events(path, 4096)
    offset, read = 0, list[str]()
    while (answer := events.read(offset))[1]:
        assert answer[0] == offset
        read += answer[1]
        offset = answer[2]
        events.give_back(offset)
    assert read == lines
    if path.stat().st_blocks * 512 > path.stat().st_size - (1 << 20):
        pytest.skip("this file system makes no holes")
    start, some, _ = events.read(0)
    assert start > 0
    assert all(line in lines for line in some), "whole lines after the hole"


def test_lines_that_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = _Events(path, 4096)
    assert events.read(0) == (0, [], 0)
    path.write_bytes(b"one\nhalf")
    assert events.read(0) == (0, ["one"], 4)
    assert events.read(4) == (4, [], 4)
    path.write_bytes(b"x" * 2_000_000)
    assert events.read(0) == (0, [], 0), "it may still end"
    path.write_bytes(b"x" * 2_000_000 + b"\nnext\n")
    assert events.read(0) == (2_000_001, [], 0), "too long for anybody"
    assert events.read(2_000_001) == (2_000_001, ["next"], 2_000_006)
    path.write_bytes(b"x" * 500_000 + b"\nnext\n")
    assert events.read(0)[1] == ["x" * 500_000, "next"][: len(events.read(0)[1])]
    assert events.read(500_001) == (500_001, ["next"], 500_006)


@given(st.binary(max_size=40))
def test_text_has_as_many_bytes_as_its_bytes(data: bytes) -> None:
    text = same_length(data)
    assert len(text.encode()) == len(data)
    assert "\0" not in text


@given(st.text(max_size=20), st.integers(0, 80))
def test_characters_are_not_torn(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    whole = whole_characters(data)
    assert data.startswith(whole)
    assert len(data) - len(whole) < 4
    assert text.startswith(whole.decode())


# Files that the killed agent had open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_rotation_that_was_interrupted(tmp_path: Path) -> None:
    """The agent is killed at each step of it; offsets stay what they were."""
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


def test_a_log_that_ran_away_during_an_outage(tmp_path: Path) -> None:
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
