"""The HTTP servers and inputs of the examples, the demo's killer, its event log and its arithmetic of time."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from clonos.demo.evidence import read_answers
from clonos.demo.reader import longest_gap
from clonos.demo.run import kill_delays
from clonos.demo.scenes.enrich import read_event
from clonos.demo.scenes.orders import Order
from clonos.demo.screen import Counters
from clonos.demo.stage import EventLog, Topics, answer_server, example_directory, messages_of
from clonos.demo.victim import Victim
from clonos.errors import ClonosError, SpecError

# A leader that starts a child in a process group of its own (as PySpark's daemon is), which starts a
# grandchild in a session of its own; each tells its pid through the file named by the first argument.
FAMILY = """
import os, subprocess, sys, time
def tell():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
tell()
if len(sys.argv) < 4:
    options = {"process_group": 0} if len(sys.argv) == 2 else {"start_new_session": True}
    subprocess.Popen([sys.executable, *sys.orig_argv[1:], "x"], **options)
time.sleep(60)
"""


def example_module(example: str, name: str) -> ModuleType:
    file = example_directory(example) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_answer_is_unique_and_written_down_before_it_is_given(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    with example_module("wordcount", "answers").AnswerServer(record) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = server.url.removeprefix("http://")

        def ask(number: int) -> list[tuple[str, dict[str, Any]]]:
            connection = HTTPConnection(address, timeout=10)
            given = []
            for word in ("rabbit", "she'd", f"word{number}"):
                connection.request("GET", f"/banned?word={word}")
                reply = json.loads(connection.getresponse().read())
                given.append((reply["answer"], {**reply, "word": word}))
                assert read_answers(record)[reply["answer"]] == given[-1][1]
            connection.close()
            return given

        with ThreadPoolExecutor(8) as pool:
            replies = [pair for given in pool.map(ask, range(16)) for pair in given]
        server.shutdown()
        thread.join()
    assert len(dict(replies)) == len(replies) == 48
    assert read_answers(record) == dict(replies)
    assert {answer["banned"] for _, answer in replies if answer["word"] == "rabbit"} == {True, False}


def test_the_server_runs_as_a_process_and_refuses_other_paths(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    with answer_server(example_directory("wordcount") / "answers.py", record) as url:
        connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/list")
        response = connection.getresponse()
        response.read()
        assert response.status == 404
        connection.request("GET", "/banned?word=hat")
        assert json.loads(connection.getresponse().read())["answer"] in read_answers(record)
        connection.close()


def test_a_torn_last_answer_is_left_out(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    record.write_bytes(b'{"answer":"a-0","banned":true,"word":"hat"}\n{"answer":"a-1","ban')
    assert read_answers(record) == {"a-0": {"answer": "a-0", "banned": True, "word": "hat"}}


def test_kill_reaches_other_process_groups_and_sessions(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    victim = Victim([sys.executable, "-c", FAMILY, str(pids)], {}, tmp_path / "log")
    victim.start()
    seen: list[int] = []
    while len(seen) < 3:
        with pids.open() as fifo:
            seen += [int(row) for row in fifo]
    assert len(set(seen)) == 3
    assert victim.kill() == 3
    assert not victim.running
    assert not [pid for pid in seen if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert victim.kill() == 0


def test_a_job_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    victim = Victim([sys.executable, "-c", "print('no topic'); raise SystemExit(4)"], {}, tmp_path / "log")
    victim.must_run()
    victim.start()
    # Waits for the exit and leaves the exit status to the victim.
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ClonosError, match="exit code 4:\nno topic"):
        victim.must_run()


def test_stop_is_gentle_and_returns_the_exit_code(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "signal.pause()\n"
    )
    victim = Victim([sys.executable, "-c", code], {}, tmp_path / "log")
    victim.start()
    ready.read_text()
    assert victim.stop() == 3


def test_events_are_summed_and_a_torn_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    log = EventLog(file)
    assert log.counters() == Counters()
    epoch = '{"event":"epoch","generation":%d,"skipped_lanes":%d,"recorded":5,"replayed":%d}\n'
    file.write_text('{"event":"claimed","generation":1}\n' + epoch % (1, 0, 0) + '{"event":"ep')
    assert log.counters() == Counters(1, 0, 5, 0)
    with file.open("a") as more:
        more.write('och","recorded":1}\n' + epoch % (2, 3, 4))
    assert log.counters() == Counters(2, 3, 11, 4)
    assert log.counters() == Counters(2, 3, 11, 4)


def test_the_longest_gap_counts_only_while_input_flows() -> None:
    assert longest_gap([], until=9.0) == 0.0
    assert longest_gap([1.0, 2.0, 5.0], until=6.0) == 3.0
    assert longest_gap([1.0, 2.0], until=8.0) == 6.0
    assert longest_gap([1.0, 2.0, 3.0, 30.0], until=2.5) == 1.0
    assert longest_gap([1.0, 9.0], until=5.0) == 8.0


def test_kill_moments_depend_on_the_seed_only() -> None:
    first = kill_delays(random.Random(7), 50, hasty=False)
    assert first == kill_delays(random.Random(7), 50, hasty=False)
    assert all(0 <= delay <= 3 for delay in first)
    assert any(delay < 0.1 for delay in first)
    assert any(delay > 1 for delay in first)
    assert max(kill_delays(random.Random(7), 50, hasty=True)) <= 0.1


def test_topics_of_two_runs_do_not_meet() -> None:
    topics = Topics("orders-", ("orders", "totals"))
    assert topics.of("totals") == "orders-totals"
    assert topics.params() == {"orders": "orders-orders", "totals": "orders-totals"}


def first(example: str, count: int) -> list[tuple[str, bytes]]:
    return list(itertools.islice(messages_of(example_directory(example), random.Random(7)), count))


def test_the_shipped_text_is_plain_ascii_without_comments() -> None:
    lines = [value for _, value in first("wordcount", 300)]
    assert 200 < len(set(lines)) < 300
    assert all(line.isascii() and line and not line.startswith(b"#") for line in lines)


def test_customers_come_in_turns_and_some_orders_are_late() -> None:
    sent = [(key, Order(**json.loads(value))) for key, value in first("orders", 600)]
    assert all(key == order.customer for key, order in sent)
    assert len({order.order for _, order in sent}) == 600
    assert len({key for key, _ in sent[:200]}) <= 6 < len({key for key, _ in sent})
    late = sum(order.at < time.time() * 1000 - 15_000 for _, order in sent)
    assert 10 <= late <= 60


def test_some_events_do_not_decode_and_some_devices_are_unknown() -> None:
    events = [read_event(value) for _, value in first("enrich", 600)]
    assert 10 <= sum(event is None for event in events) <= 40
    assert 5 <= sum(event is not None and event.device.startswith("x") for event in events) <= 25


def test_every_answer_about_devices_is_written_down_before_it_is_given(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    server_module = example_module("enrich", "devices")
    with server_module.serving(record) as server:
        threading.Thread(target=server.serve_forever).start()
        server_module.SLOW_S = 0.0

        def ask(number: int) -> list[tuple[int, str, dict[str, Any]]]:
            connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            given = []
            for device in ("d01", "x1", f"d{number}"):
                for _ in range(10):
                    connection.request("GET", f"/device?id={device}")
                    response = connection.getresponse()
                    reply = json.loads(response.read())
                    assert read_answers(record)[reply["answer"]].items() >= {"device": device, **reply}.items()
                    given.append((response.status, device, reply))
            connection.request("GET", "/devices")
            assert connection.getresponse().status == 400
            connection.close()
            return given

        with ThreadPoolExecutor(8) as pool:
            replies = [one for given in pool.map(ask, range(16)) for one in given]
        server.shutdown()
    assert len({reply["answer"] for _, _, reply in replies}) == len(replies) == 480
    assert {status for status, device, _ in replies if device == "x1"} == {404}
    assert {status for status, device, _ in replies if device != "x1"} == {200, 503}
    assert len({reply["site"] for status, device, reply in replies if device == "d01" and status == 200}) > 1
    assert {given["slow"] for given in read_answers(record).values()} == {True, False}


def test_an_example_without_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        messages_of(tmp_path, random.Random())


def test_the_servers_own_command_line_works() -> None:
    script = example_directory("wordcount") / "answers.py"
    shown = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "banned words" in shown.stdout
