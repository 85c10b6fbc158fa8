"""`clonos logs` against a fake control plane: filters, and the log for people, as JSON and as it was written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from clonos.errors import SpecError
from clonos.resources.jobs import JobState
from clonos.telemetry.log_entries import LogParser
from component.cli.conftest import Clonos
from component.cli.service import FakeService

STATE = '{"event": "state", "job": "wordcount", "generation": 2, "state": "RUNNING", "at": 1795728165.6}'
EPOCH = (
    '{"event": "epoch", "job": "wordcount", "generation": 2, "query": "out", "epoch": %d, "replay": false, '
    '"records_in": 20, "records_out": 20, "duration_ms": 393, "at": 1795728166.1}'
)
JVM = (
    '{"job":"wordcount","level":"WARN","logger":"org.apache.kafka.clients.NetworkClient",'
    '"event":"Connection reset [/127.0.0.1:9092]","timestamp":"2026-11-26T21:22:47.348Z"}'
)
TRACEBACK = ["Traceback (most recent call last):", '  File "job.py", line 12, in score', "OSError: [Errno 5] away"]


@pytest.fixture
def log(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The log of a job that has ended, and a zone of this machine."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    service.add("wordcount", JobState.FINISHED)
    service.log = [STATE, *(EPOCH % number for number in range(47, 113)), JVM, *TRACEBACK, "the job's own line"]
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("log")
def test_logs_are_for_people(clonos: Clonos) -> None:
    lines = [re.sub(r"^\d\d-\d\d ", "", line) for line in clonos("logs", "wordcount").stdout.splitlines()]
    assert lines == [
        "22:22:45  info     driver g2         state RUNNING",
        "22:22:46  info     driver g2         epochs 47–112 committed, 66 lines",
        "22:22:47  warning  Spark JVM g2      NetworkClient: Connection reset [/127.0.0.1:9092]",
        "22:22:47  error    driver g2         OSError: [Errno 5] away",
        *(f"    {line}" for line in TRACEBACK),
        "22:22:47  info     driver g2         the job's own line",
    ]
    assert "epoch 47 of out: 20 records in, 20 out, 393 ms" in clonos("logs", "wordcount", "--epochs").stdout


@pytest.mark.usefixtures("log")
def test_logs_are_filtered(clonos: Clonos, service: FakeService) -> None:
    warnings = clonos("logs", "wordcount", "--level", "warning", "--search", "CONNECTION reset", "--since", "1d")
    (request,) = service.requests("GET", "/jobs/wordcount/logs")
    assert "level=warning&search=CONNECTION" in request[0]
    assert "tail=10000" in request[0]
    assert warnings.stdout == "" or "NetworkClient" in warnings.stdout, "the sample may be older than a day"
    assert "NetworkClient" in clonos("logs", "wordcount", "--level", "warning", "--search", "CONNECTION reset").stdout
    nothing = clonos("logs", "wordcount", "--search", "nosuch")
    assert (nothing.stdout, nothing.stderr) == ("", "No line matches.\n")
    service.log = []
    assert clonos("logs", "wordcount").stderr == "The job's drivers have written no log lines.\n"
    with pytest.raises(SpecError, match="not a duration"):
        clonos("logs", "wordcount", "--since", "soon")
    assert clonos("logs", "wordcount", "--level", "loud", ok=False).exit_code == 2


@pytest.mark.usefixtures("log")
def test_logs_as_json_and_as_they_were_written(clonos: Clonos, service: FakeService) -> None:
    entries = [json.loads(line) for line in clonos("logs", "wordcount", "--json").stdout.splitlines()]
    assert len(entries) == 70, "epochs are not collapsed"
    state = {"time": "2026-11-26T21:22:45.600000Z", "level": "info", "process": "driver", "generation": 2}
    assert entries[0].items() >= {**state, "message": "state RUNNING", "run": "r"}.items()
    assert clonos("logs", "wordcount", "--raw").stdout.splitlines() == service.log
    lines = json.loads(clonos("logs", "wordcount", "-o", "json").stdout)
    assert (lines["lines"], lines["entries"]) == (service.log, [])
    with pytest.raises(SpecError, match="exclude each other"):
        clonos("logs", "wordcount", "--raw", "--json")


def test_logs_follow_entries_and_lines(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    heartbeat = b"event: heartbeat\n\n"

    def follow(*options: str) -> str:
        service.change("wordcount", state=JobState.RUNNING)
        # The first request asks whether the job has ended already, the second one whether it has ended since.
        service.on_follow = lambda: service.change("wordcount", state=JobState.FINISHED)
        return clonos("logs", "-f", "wordcount", *options).stdout

    entries = LogParser().parse([("r", STATE), ("r", "printed")])
    data = [json.dumps({**entry.__dict__, "time": str(entry.time)}) for entry in entries]
    service.streams.append(f"data: {data[0]}\n\ndata: {data[1]}\nid: 5\n\n".encode() + heartbeat)
    shown = follow("--level", "info").splitlines()
    assert [line.split("  ")[-1].strip() for line in shown] == ["state RUNNING", "printed"]
    service.streams.append(b"data: one\n\ndata: two\nid: 7\n\n" + heartbeat)
    assert follow("--raw").splitlines() == ["one", "two"]
    queries = [request[0] for request in service.requests("GET", "/jobs/wordcount/logs")]
    assert ["parsed=true" in query and "follow=true" in query for query in queries] == [True, False]
