"""The HTTP servers and inputs of the examples, the demo's killer, its event log and its arithmetic of time."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import SpecError
from clonos.settings import KafkaSettings
from clonos.standby.states import StandbyState
from clonos.testing.harness import Killed
from clonos_demo import run as run_module
from clonos_demo.demo import cold, planned
from clonos_demo.environment import Topics, answer_server, event_counters
from clonos_demo.evidence import read_answers
from clonos_demo.example import example_directory, example_module, load_example
from clonos_demo.gaps import Gap, Kill, median_s, side_by_side, times_shorter
from clonos_demo.hosted import HostedJob
from clonos_demo.producer import SteadyProducer
from clonos_demo.reader import OutputReader, longest_gap
from clonos_demo.run import Run, kill_delays
from clonos_demo.screen import Counters


def test_every_answer_is_unique_and_recorded_before_the_response(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    with example_module("wordcount", "answers").AnswerServer(record) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = server.url.removeprefix("http://")

        def ask(number: int) -> list[tuple[str, dict[str, Any]]]:
            connection = HTTPConnection(address, timeout=10)
            answers = []
            for word in ("rabbit", "she'd", f"word{number}"):
                connection.request("GET", f"/banned?word={word}")
                reply = json.loads(connection.getresponse().read())
                answers.append((reply["answer"], {**reply, "word": word}))
                assert read_answers(record)[reply["answer"]] == answers[-1][1]
            connection.close()
            return answers

        with ThreadPoolExecutor(8) as pool:
            replies = [pair for answers in pool.map(ask, range(16)) for pair in answers]
        server.shutdown()
        thread.join()
    assert len(dict(replies)) == len(replies) == 48
    assert read_answers(record) == dict(replies)


def test_the_list_of_banned_words_changes(tmp_path: Path) -> None:
    words = example_module("wordcount", "answers").BannedWords(tmp_path / "answers.jsonl")
    # A hundred editions have the word or not, each with a probability of a quarter.
    assert {words.answer("rabbit")["banned"] for _ in range(1000)} == {True, False}
    words.close()


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


def test_events_are_summed_and_a_torn_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert event_counters(file) == Counters()
    epoch = (
        '{"event":"epoch","generation":%d,"skipped_lanes":%d,"recorded_determinants":5,"replayed_determinants":%d}\n'
    )
    file.write_text('{"event":"claimed","generation":1}\n' + epoch % (1, 0, 0) + '{"event":"ep')
    assert event_counters(file) == Counters(1, 0, 5, 0)
    with file.open("a") as more:
        more.write('och","recorded_determinants":1}\n' + epoch % (2, 3, 4))
    assert event_counters(file) == Counters(2, 3, 11, 4)


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


def test_each_second_kill_waits_for_a_standby_over_all_examples() -> None:
    def waits(kills: list[Kill]) -> list[bool]:
        return [kill.standby for kill in kills]

    local = partial(planned, standby=True, executors=False)
    assert [kill.delay_s for kill in local([1.0, 2.0, 3.0])] == [1.0, 2.0, 3.0]
    assert waits(local([1.0] * 4)) == [False, True, False, True]
    assert waits(local([1.0] * 2, before=1)) == [True, False]
    assert waits(cold([1.0] * 2)) == [False, False]


def test_on_a_cluster_executors_are_killed_in_turn() -> None:
    kills = planned([1.0] * 4, standby=True, executors=True)
    assert [(kill.target, kill.standby) for kill in kills] == [
        ("driver", False),
        ("executor", False),
        ("driver", True),
        ("driver", False),
    ]
    kills = planned([1.0] * 3, before=1, standby=False, executors=True)
    assert [kill.target for kill in kills] == ["executor", "driver", "executor"]
    assert not any(kill.standby for kill in kills)


def test_in_every_second_round_drivers_are_killed_while_an_epoch_is_in_doubt() -> None:
    kills = planned([1.0] * 6, standby=True, executors=True)
    assert [kill.in_doubt for kill in kills] == [True, False, True, False, False, False]
    assert [kill.in_doubt for kill in planned([1.0] * 5, standby=False, executors=False)] == [True, False] * 2 + [True]


GAPS = (Gap("cold", 12.0), Gap("standby", 0.5), Gap("cold", 14.0), Gap("standby", 0.6), Gap("standby", 3.0))


def test_gaps_are_compared_by_their_medians() -> None:
    assert (median_s(GAPS, "cold"), median_s(GAPS, "standby")) == (13.0, 0.6)
    assert times_shorter(GAPS) == pytest.approx(21.67, abs=0.01)
    assert side_by_side(GAPS) == {
        "cold": {"p50_s": 13.0, "n": 2, "raw_s": [12.0, 14.0]},
        "standby": {"p50_s": 0.6, "n": 3, "raw_s": [0.5, 0.6, 3.0]},
        "executor": None,
        "times_shorter": 21.7,
    }
    assert side_by_side(GAPS[:1]) == {
        "cold": {"p50_s": 12.0, "n": 1, "raw_s": [12.0]},
        "standby": None,
        "executor": None,
        "times_shorter": None,
    }
    assert times_shorter([]) is None


class Record:
    """A record as the client gives it."""

    def __init__(self, offset: int, written: float) -> None:
        self._offset = offset
        self._written = written

    def error(self) -> None: ...

    def headers(self) -> None: ...

    def topic(self) -> str:
        return "words"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"{}"

    def timestamp(self) -> tuple[int, int]:
        return 1, int(self._written * 1000)


def test_what_was_committed_before_a_kill_does_not_end_the_gap() -> None:
    """Old output may reach a reader after the kill; only records written after the kill are of the next driver."""
    reader = OutputReader(KafkaSettings(bootstrap_servers="127.0.0.1:1"), {"words": 1}, watched="words")
    try:
        reader.take(Record(0, 99.9), 7.0)  # type: ignore[arg-type]
        assert reader.await_written_after(100.0, 0.0) is None
        assert reader.await_written_after(0.0, 0.0) == 7.0
        reader.take(Record(1, 100.5), 7.5)  # type: ignore[arg-type]
        reader.take(Record(2, 100.6), 7.6)  # type: ignore[arg-type]
        assert reader.await_written_after(100.0, 0.0) == 7.5
    finally:
        reader.stop()


def test_input_slows_down_for_a_while_and_is_never_made_faster() -> None:
    def pace(per_second: float) -> tuple[float, float, float]:
        producer = SteadyProducer(KafkaSettings(), "lines", iter(()), per_second=per_second)
        before = producer._pause_s
        with producer.slowly(1.0):
            inside = producer._pause_s
        return before, inside, producer._pause_s

    assert pace(20.0) == (0.05, 1.0, 0.05)
    assert pace(0.5) == (2.0, 2.0, 2.0)


class Platform:
    """A control plane with two hosts, a driver on the first and a standby on the second, if it is let."""

    def __init__(self, driver: int, standby: int) -> None:
        self.drained: set[str] = set()
        self.driving = "driver"
        self.since = datetime.now(UTC)  # of the standby's state
        self.pids = {"driver": driver, "standby": standby}
        self.jobs = self.hosts = self

    def list(self) -> SimpleNamespace:
        return SimpleNamespace(data=[SimpleNamespace(name="host-2"), SimpleNamespace(name="host-1")])

    def drain(self, host: str) -> None:
        self.drained.add(host)

    def undrain(self, host: str) -> None:
        self.drained.discard(host)

    def get(self, _job: str) -> SimpleNamespace:
        return SimpleNamespace(run=self.driving, host="host-1" if self.driving == "driver" else "host-2")

    def run(self, _job: str, run: str) -> SimpleNamespace:
        return SimpleNamespace(pid=self.pids[run], state="RUNNING", ended_at=None)

    def standbys(self, _job: str, *, states: set[StandbyState]) -> SimpleNamespace:
        promoted = self.driving == "standby"
        state = StandbyState.PROMOTED if promoted else StandbyState.FAILED if self.drained else StandbyState.READY
        return SimpleNamespace(
            data=[SimpleNamespace(id="standby", host="host-2", state=state, since=self.since)]
            if state in states
            else []
        )


def test_a_hosted_job_has_a_standby_when_it_is_let_and_its_driver_is_killed(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    driver, standby = (subprocess.Popen(sleep, start_new_session=True) for _ in range(2))
    platform: Any = Platform(driver.pid, standby.pid)
    job = HostedJob(platform, Path(), "words", {}, tmp_path, standbys=1)
    try:
        job._submitted = True
        job._drain_others(False)
        assert platform.drained == {"host-2"}
        assert job.allow_standby(allowed=False)
        assert job.standby_phase() == "none is left"
        assert not job.allow_standby(allowed=True), "it is READY, and rehearses"
        assert job.standby_phase() == "on host-2 it is READY for 0 s: it can take over, and continues its rehearsals"
        platform.since -= timedelta(seconds=21)
        assert job.allow_standby(allowed=True), "a busy machine does not delay the demo for minutes"
        platform.since += timedelta(seconds=21)
        assert not job.allow_standby(allowed=True)
        assert platform.drained == set()
        run = tmp_path / "agent" / "host-2" / "runs" / "standby"
        run.mkdir(parents=True)
        (run / "events.jsonl").write_text('{"event": "rehearsed", "seconds": 30.0, "state": {}}\n')
        assert job.allow_standby(allowed=True)
        reaped = threading.Thread(target=driver.wait)
        reaped.start()
        assert job.kill().processes == 1
        reaped.join()
        assert (driver.returncode, standby.poll()) == (-9, None)
        assert not job.taken_over()
        platform.driving = "standby"
        assert job.taken_over()
        assert job.allow_standby(allowed=False)
        assert platform.drained == {"host-1"}
    finally:
        for process in (driver, standby):
            process.kill()
            process.wait()


def test_the_control_plane_is_not_asked_in_the_second_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the demo took CPU time from the takeover that it measured (ADR 48)."""
    asked: list[str] = []
    job: Any = SimpleNamespace(
        check_running=lambda: asked.append("job"),
        kill=lambda _target: Killed(1, time.monotonic()),
        start=lambda: None,
        next_driver_since=lambda killed_at: killed_at,
        taken_over=lambda: True,
    )
    counters = Counters(generation=2)
    screen: Any = SimpleNamespace(say=lambda *_a, **_k: None, show=lambda progress: asked.append(progress.counters))
    run = Run(
        title="Clonos",
        example=load_example("wordcount"),
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        topics=Topics("", ("lines", "words", "sample", "totals")),
        job=job,
        log="",
        producer=SimpleNamespace(acked=0),  # type: ignore[arg-type]
        kills=[],
        counters=lambda: asked.append("counters") or counters,  # type: ignore[func-returns-value]
        answers=dict,
        screen=screen,
    )

    def output(_since: float, phase: str) -> float:
        run._observe(phase)
        return time.monotonic()

    try:
        run._observe("starting")
        assert asked == ["job", "counters", counters]
        monkeypatch.setattr(run, "_await_output", output)
        monkeypatch.setattr(run_module, "_REQUESTS_EVERY_S", 600.0)
        monkeypatch.setattr(run, "_await_claim", lambda killed_at: killed_at)
        monkeypatch.setattr(run, "_next_request_at", 0.0)
        run._kill(1, Kill(0.0))
        assert asked == ["job", "counters", counters, counters]
        monkeypatch.setattr(run, "_next_request_at", 0.0)
        run._observe("the last stretch")
        assert asked[4:] == ["job", "counters", counters]
    finally:
        run._reader.stop()


def test_on_a_cluster_the_next_driver_begins_with_its_claim() -> None:
    """Executors of the killed driver may publish until the claim fences them."""
    claims = [datetime.fromtimestamp(at, UTC) for at in (90.0, 104.0, 110.0)]
    generations = SimpleNamespace(data=[SimpleNamespace(claimed_at=claimed_at) for claimed_at in claims])
    client: Any = SimpleNamespace(jobs=SimpleNamespace(generations=lambda _job: generations))
    job = HostedJob(client, Path(), "words", {}, Path(), cluster="local")
    assert job.next_driver_since(100.0) == 104.0
    assert job.next_driver_since(110.0) is None
    assert HostedJob(client, Path(), "words", {}, Path()).next_driver_since(100.0) == 100.0


def test_a_hosted_job_without_standbys_leaves_hosts_alone() -> None:
    job = HostedJob(None, Path(), "words", {}, Path())  # type: ignore[arg-type]
    assert job.allow_standby(allowed=False)
    assert not job.allow_standby(allowed=True)


def test_topics_of_two_runs_do_not_meet() -> None:
    topics = Topics("orders-", ("orders", "totals"))
    assert topics.of("totals") == "orders-totals"
    assert topics.params() == {"orders": "orders-orders", "totals": "orders-totals"}


def first(example: str, count: int) -> list[tuple[str, bytes]]:
    return list(itertools.islice(load_example(example).messages(random.Random(7)), count))


def test_the_shipped_text_is_plain_ascii_without_comments() -> None:
    lines = [value for _, value in first("wordcount", 300)]
    assert 200 < len(set(lines)) < 300
    assert all(line.isascii() and line and not line.startswith(b"#") for line in lines)


def test_customers_come_in_turns_and_some_orders_are_late() -> None:
    sent = [(key, example_module("orders", "check").Order(**json.loads(value))) for key, value in first("orders", 600)]
    assert all(key == order.customer for key, order in sent)
    assert len({order.order for _, order in sent}) == 600
    assert len({key for key, _ in sent[:200]}) <= 6 < len({key for key, _ in sent})
    late = sum(order.at < time.time() * 1000 - 15_000 for _, order in sent)
    assert 10 <= late <= 60


def test_some_events_do_not_decode_and_some_devices_are_unknown() -> None:
    events = [example_module("enrich", "check").read_event(value) for _, value in first("enrich", 600)]
    assert 10 <= sum(event is None for event in events) <= 40
    assert 5 <= sum(event is not None and event.device.startswith("x") for event in events) <= 25


def test_every_answer_about_devices_is_recorded_before_the_response(tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    server_module = example_module("enrich", "devices")
    with server_module.serving(record) as server:
        threading.Thread(target=server.serve_forever).start()
        server_module.SLOW_S = 0.0

        def ask(number: int) -> list[tuple[int, str, dict[str, Any]]]:
            connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            answers = []
            for device in ("d01", "x1", f"d{number}"):
                for _ in range(10):
                    connection.request("GET", f"/device?id={device}")
                    response = connection.getresponse()
                    reply = json.loads(response.read())
                    assert read_answers(record)[reply["answer"]].items() >= {"device": device, **reply}.items()
                    answers.append((response.status, device, reply))
            connection.request("GET", "/devices")
            assert connection.getresponse().status == 400
            connection.close()
            return answers

        with ThreadPoolExecutor(8) as pool:
            replies = [answer for answers in pool.map(ask, range(16)) for answer in answers]
        server.shutdown()
    assert len({reply["answer"] for _, _, reply in replies}) == len(replies) == 480
    assert {status for status, device, _ in replies if device == "x1"} == {404}
    assert {status for status, device, _ in replies if device != "x1"} == {200, 503}
    assert len({reply["site"] for status, device, reply in replies if device == "d01" and status == 200}) > 1
    assert {answer["slow"] for answer in read_answers(record).values()} == {True, False}


def test_an_example_without_a_checker_or_input_is_refused() -> None:
    with pytest.raises(SpecError):
        load_example("absent")
    with pytest.raises(SpecError):
        example_module("wordcount", "absent")


def test_the_servers_own_command_line_works() -> None:
    script = example_directory("wordcount") / "answers.py"
    shown = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "banned words" in shown.stdout
