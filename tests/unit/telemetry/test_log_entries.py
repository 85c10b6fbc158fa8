"""Log lines of drivers, Spark's JVM, Python workers and the job, as they are written, become entries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import to_json

from clonos.telemetry.log_entries import EpochSpan, LogEntry, LogFilter, LogParser, collapse_epochs

# Lines of drivers that an agent started (JSON), and of `clonos run` (console).
STATE = '{"event": "state", "job": "shout", "generation": 1, "state": "RUNNING", "at": 1795728165.6689487}'
SESSION = (
    '{"event": "session", "job": "shout", "generation": 0, "master": "local[4]", "application_id": '
    '"local-1795728159328", "ui": "", "cluster": "", "at": 1795728162.3549116}'
)
EPOCH = json.loads(
    '{"event": "epoch", "job": "shout", "generation": 1, "query": "output", "epoch": 0, "replay": false, '
    '"records_in": 1998, "records_out": 1998, "published_lanes": 1, "skipped_lanes": 0, "diverged_lanes": 0, '
    '"recorded_determinants": 3, "recorded_bytes": 480, "replayed_determinants": 0, "dead_letters": 0, "dropped": 0, '
    '"duration_ms": 11241, "spans": [{"name": "plan", "duration_ms": 242.3}], "operators": {}, '
    '"offsets": {"lines": {"0": 666}}, "at": 1795728178.1}'
)
LAG = (
    '{"event": "lag", "job": "shout", "generation": 2, "query": "output", "topics": {"lines": 3276}, '
    '"partitions": {"lines": {"1": 1131, "0": 1090, "2": 1055}}, "at": 1795728190.2597165}'
)
FAILED = (
    '{"event": "failed", "job": "shout", "generation": 1, "error": "job-code-failed", "what": "score failed.", '
    '"kept": "what was published.", "hint": "correct the function.", "stack": "Traceback (most recent call last):\\n'
    '  File \\"job.py\\", line 12, in score\\nOSError: away\\n", "at": 1795728165.7}'
)
JVM = (
    '{"job":"stamped","level":"WARN","logger":"org.apache.kafka.clients.NetworkClient","event":"[AdminClient '
    "clientId=adminclient-2] Connection to node 0 (/127.0.0.1:44033) could not be established. Node may not be "
    'available.","timestamp":"2026-11-26T10:17:05.348Z"}'
)
JVM_ERROR = (
    '{"job":"stamped","level":"ERROR","logger":"org.apache.spark.sql.execution.streaming.MicroBatchExecution",'
    '"event":"Query out terminated with error","exception":"java.lang.IllegalStateException: gone\\n\\tat '
    'org.apache.spark.A.b(A.scala:1)\\n","timestamp":"2026-11-26T10:17:06.000Z"}'
)
WORKER = (
    '{"lane": 2, "event": "slow answer", "job": "shout", "generation": 7, "query": "words", "epoch": 12, "task": 3, '
    '"logger": "udf", "level": "warning", "timestamp": "2026-11-26T10:17:05.348001Z"}'
)


def parse(*lines: str, standbys: tuple[str, ...] = ()) -> list[LogEntry]:
    return LogParser(standbys).parse(("r1", line) for line in lines)


def only(*lines: str, standbys: tuple[str, ...] = ()) -> LogEntry:
    (entry,) = parse(*lines, standbys=standbys)
    return entry


def epoch(number: int, query: str = "output", **fields: object) -> str:
    return json.dumps({**EPOCH, "epoch": number, "query": query, **fields})


def test_events_of_a_driver_are_short_texts() -> None:
    session, state, committed, lag = parse(SESSION, STATE, epoch(3), LAG)
    assert session.time == datetime(2026, 11, 26, 21, 22, 42, 354912, tzinfo=UTC)
    assert (session.process, session.level, session.generation) == ("driver", "info", None)
    assert session.message == "Spark session local-1795728159328 on local[4]"
    assert (state.message, state.generation) == ("state RUNNING", 1)
    assert committed.message == "epoch 3 of output: 1998 records in, 1998 out, 11241 ms"
    assert (committed.query, committed.epoch, committed.routine) == ("output", 3, True)
    assert (lag.message, lag.routine) == ("lag of output: lines 3276", True)


def test_a_failed_driver_says_why_and_what_to_do() -> None:
    entry = only(FAILED)
    assert (entry.level, entry.message) == ("error", "failed: job-code-failed: score failed.")
    assert entry.lines[:2] == ("Kept safe: what was published.", "What to do: correct the function.")
    assert entry.lines[-1] == "OSError: away"


def test_an_event_of_another_version_has_its_fields() -> None:
    assert only('{"event": "epoch", "generation": 1, "number": 3, "at": 1.0}').message == "epoch number=3"
    assert only('{"event": "brand-new", "size": 2.5, "at": 1.0}').message == "brand-new size=2.5"


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"event": "restart", "error": "e", "what": "w"}, "warning"),
        ({"event": "waiting", "error": "e", "what": "w"}, "warning"),
        ({"event": "superseded", "error": "e", "what": "w"}, "error"),
        ({"event": "standby-trouble", "error": "e", "what": "w"}, "warning"),
        ({"event": "kafka", "silent_since": 1.0, "brokers": 1, "under_replicated": 0}, "warning"),
        ({"event": "kafka", "silent_since": None, "brokers": 1, "under_replicated": 0}, "info"),
        ({**EPOCH, "diverged_lanes": 1}, "error"),
        ({**EPOCH, "late_rows": 1}, "warning"),
    ],
)
def test_the_level_of_an_event_without_one(fields: dict[str, object], level: str) -> None:
    assert only(json.dumps(fields)).level == level


def test_lines_of_sparks_jvm_have_the_generation_of_their_run() -> None:
    _, jvm, other = LogParser().parse([("r1", STATE), ("r1", JVM), ("r2", JVM)])
    assert (jvm.process, jvm.level, jvm.generation) == ("spark-jvm", "warning", 1)
    assert jvm.message.startswith("NetworkClient: [AdminClient clientId=adminclient-2] Connection to node 0 ")
    assert jvm.time == datetime(2026, 11, 26, 10, 17, 5, 348000, tzinfo=UTC)
    assert other.generation is None
    error = only(JVM_ERROR)
    assert error.message == "MicroBatchExecution: Query out terminated with error"
    assert error.lines == ("java.lang.IllegalStateException: gone", "\tat org.apache.spark.A.b(A.scala:1)")


def test_lines_of_python_workers_have_their_epoch() -> None:
    entry = only(WORKER)
    assert (entry.process, entry.level, entry.generation) == ("python-worker", "warning", 7)
    assert (entry.query, entry.epoch, entry.routine) == ("words", 12, False)
    assert entry.message == "udf: slow answer lane=2 query=words epoch=12 task=3"


def test_a_standby_is_one_until_its_claim() -> None:
    standby = '{"event": "standby", "job": "shout", "generation": 0, "state": "READY", "at": 1.0}'
    ready, printed, running, after = parse(standby, "printed", STATE, "printed", standbys=("r1",))
    assert (ready.process, ready.message) == ("standby", "standby READY")
    assert [entry.process for entry in (printed, running, after)] == ["standby", "driver", "driver"]
    assert only(standby).process == "driver"


def test_lines_of_logging_and_of_log4j() -> None:
    raised = [
        "2026-11-26 10:17:06,250 - orders.rates - CRITICAL - the rates are old",
        "Traceback (most recent call last):",
        '  File "job.py", line 30, in lines',
        "ValueError: oops",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "job.py", line 32, in lines',
        "RuntimeError: again",
    ]
    python = only(*raised)
    assert (python.process, python.level) == ("driver", "error")
    assert python.message == "orders.rates - the rates are old"
    assert python.time == datetime(2026, 11, 26, 10, 17, 6, 250000, tzinfo=UTC)
    assert list(python.lines) == raised[1:]
    spark = only(
        "26/11/26 10:17:06 WARN TaskSetManager: Lost task 0.0", "java.io.IOException: gone", "\tat A.b(A.java:1)"
    )
    assert spark.time == datetime(2026, 11, 26, 10, 17, 6, tzinfo=UTC)
    assert (spark.process, spark.level, spark.message) == ("spark-jvm", "warning", "TaskSetManager: Lost task 0.0")
    assert len(spark.lines) == 2
    prose = only("2026-11-26 10:17:06 error rates are low")
    assert (prose.level, prose.message) == ("info", "error rates are low")
    basic = only("WARNING:orders:the rates are old")
    assert (basic.level, basic.message) == ("warning", "orders:the rates are old")


def test_a_traceback_is_one_entry_whose_message_is_the_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner',
        "    self.run()",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "job.py", line 12, in score',
        "job.RatesUnavailable.Error: no answer",
    ]
    entry, printed = parse(*lines, "ready")
    assert (entry.level, entry.message) == ("error", "job.RatesUnavailable.Error: no answer")
    assert list(entry.lines) == lines
    assert (printed.level, printed.message) == ("info", "ready")


def test_a_traceback_over_two_pages_keeps_its_level() -> None:
    parser = LogParser()
    (first,) = parser.parse([("r1", "Traceback (most recent call last):"), ("r1", '  File "job.py", line 1')])
    (second,) = parser.parse([("r1", "ValueError: oops")])
    assert (first.level, second.level) == ("error", "error")
    assert second.message == "ValueError: oops"


def test_an_error_of_clonos_is_one_entry() -> None:
    entry, printed = parse(
        "job-file-invalid: job.py holds no job.",
        "Kept safe: nothing was started.",
        "What to do: decorate one function in it with @clonos.job(name=…).",
        "Kept for later",
    )
    assert (entry.level, entry.message) == ("error", "job-file-invalid: job.py holds no job.")
    assert len(entry.lines) == 2
    assert printed.message == "Kept for later"


def test_lines_of_the_jvm_itself() -> None:
    assert only("Picked up JAVA_TOOL_OPTIONS: -XX:TieredStopAtLevel=1").process == "spark-jvm"
    died = only(
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "\tat java.base/A.b(A.java:1)"
    )
    assert (died.process, died.level, len(died.lines)) == ("spark-jvm", "error", 1)


def test_lines_that_fit_no_format() -> None:
    for line in ("attempt 1", "", "{not json", "[1, 2]", "12", '{"no": "event"}', "ERROR", "2026-11-26"):
        assert (only(line).message, only(line).level, only(line).time) == (line, "info", None), line
    assert [entry.message for entry in parse("one", "two", "{}")] == ["one", "two", "{}"]
    assert only("a table", "  with a second row").lines == ("  with a second row",)
    # A cut-off first line, of a traceback.
    first, second = parse("    self.run()", STATE)
    assert (first.message, first.level, second.message) == ("    self.run()", "info", "state RUNNING")
    assert only('{"message": "rates are old", "level": "error"}').message == "rates are old"


def test_a_line_without_a_time_has_the_time_of_the_line_before_it() -> None:
    state, printed = parse(STATE, "printed")
    assert printed.time == state.time
    for time in ('"yesterday"', "1e300", "null", '"2026-13-01T00:00:00Z"'):
        assert only(f'{{"event": "x", "timestamp": {time}}}').time is None


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z"])
def test_a_time_that_not_every_zone_can_show_is_unknown(time: str) -> None:
    assert only(f"{time} [info     ] started").time is None
    assert only(f'{{"event": "x", "timestamp": "{time}"}}').time is None


@pytest.mark.parametrize("at", ["1e999", "-1e999", "NaN", "-62135596800", "253402300799", "9" * 400])
def test_a_number_that_is_not_a_time_is_unknown(at: str) -> None:
    entry = only(f'{{"event": "x", "at": {at}}}')
    assert (entry.time, to_json(entry)[:12]) == (None, b'{"time":null')


def test_colours_and_control_characters_are_removed() -> None:
    entry = only("\x1b[2m2026-11-26 10:17:06,250\x1b[0m \x1b[33m\x1b[1mWARNING\x1b[0m \x1b[1mslow\x1b[0m")
    assert (entry.level, entry.message) == ("warning", "slow")
    assert only("\x1b]0;title\x07text\x08").message == "text�"
    assert only("[Stage 1:>   (0 + 1) / 1]\r[Stage 1:===>(1 + 0) / 1]\r").message == "[Stage 1:===>(1 + 0) / 1]"
    assert only('{"event": "red \\u001b[31malert", "level": "info"}').message == "red alert"


def test_line_separators_do_not_split_a_line() -> None:
    line = "before\u2028\u2029after"
    assert only(line).message == line
    assert only(json.dumps({"event": line, "level": "info"})).message == line


def test_very_long_lines() -> None:
    assert len(only("x" * 70_000).message) == 4_000
    # The store returns a line of more than 65,536 characters in pieces.
    long = JVM_ERROR.replace("gone", "plan " * 20_000)
    head = parse(long[:65_537], long[65_537:])[0]
    assert (head.level, head.process) == ("error", "spark-jvm")
    assert head.message == "MicroBatchExecution: Query out terminated with error"


def test_an_entry_has_at_most_500_lines_of_continuation() -> None:
    entries = parse("a table", *(f"  row {number}" for number in range(1_200)))
    assert [len(entry.lines) for entry in entries] == [500, 500, 198]


def test_deeply_nested_json_is_a_line_like_others() -> None:
    assert only('{"event": ' + "[" * 100_000).level == "info"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=4), values, max_size=2),
    max_leaves=4,
)
_LOGGED = ("message", "level", "timestamp", "task", "error", "what", "state", "logger", "exception", "topics")
_FIELDS = st.sampled_from([*EPOCH, *_LOGGED, "silent_since", "brokers"])


@given(st.dictionaries(_FIELDS, _JSON), st.sampled_from(["epoch", "lag", "kafka", "state", None]))
def test_any_json_is_an_entry_that_rest_can_send(fields: dict[str, object], event: str | None) -> None:
    line = json.dumps(fields if event is None else {**fields, "event": event})
    to_json(only(line))
    for end in range(1, len(line), 7):
        to_json(parse(line[:end]))


def test_numbers_that_are_too_large() -> None:
    assert only('{"event": "x", "generation": %s' % ("9" * 5_000)).generation is None
    assert only('{"event": "x", "at": 1e999}').time is None
    assert only(epoch(3, duration_ms=10**400)).message.startswith("epoch query=output epoch=3 ")


def test_a_message_of_several_lines() -> None:
    entry = only('{"event": "plan:\\n  Project\\n  Scan", "level": "info"}')
    assert (entry.message, entry.lines) == ("plan:", ("  Project", "  Scan"))


@example([" 0", " 0"])
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=60), max_size=20))
def test_no_line_is_lost(lines: list[str]) -> None:
    entries = LogParser().parse([("r1", line) for line in lines])
    # The message of a traceback is one of its lines.
    tracebacks = sum(entry.lines[0].startswith("Traceback (most") for entry in entries if entry.lines)
    assert sum(1 + len(entry.lines) for entry in entries) - tracebacks == len(lines)


def test_filters() -> None:
    entries = parse(STATE, FAILED, JVM, "printed Text")

    def shown(wanted: LogFilter) -> list[str]:
        return [entry.message[:6] for entry in entries if wanted.matches(entry, [])]

    assert shown(LogFilter()) == ["state ", "failed", "Networ", "printe"]
    assert shown(LogFilter(level="warning")) == ["failed", "Networ"]
    assert shown(LogFilter(search="PRINTED text")) == ["printe"]
    assert shown(LogFilter(search="oserror")) == ["failed"], "lines of continuation count"
    assert shown(LogFilter(since=datetime(2026, 11, 26, 21, tzinfo=UTC))) == ["state ", "failed"]
    assert LogFilter(search="claim_id").matches(entries[0], ['{"claim_id": 1}']), "and so do raw lines"
    assert not LogFilter()
    assert LogFilter(level="debug")


def test_normal_epochs_are_collapsed() -> None:
    lines = [epoch(47), LAG.replace('"generation": 2', '"generation": 1'), epoch(48), epoch(49), "printed", epoch(50)]
    span, printed, single = collapse_epochs(parse(*lines))
    assert isinstance(span, EpochSpan)
    assert str(span) == "epochs 47–49 committed, 4 lines"
    assert (span.first.epoch, span.last.epoch) == (47, 49)
    assert isinstance(printed, LogEntry)
    assert isinstance(single, LogEntry), "one line needs no summary"
    (span,) = collapse_epochs(parse(epoch(1), epoch(7, "counts"), epoch(2)))
    assert str(span) == "output: epochs 1–2, counts: epoch 7 committed, 3 lines"


@pytest.mark.parametrize(
    "fields",
    [
        {"replay": True},
        {"diverged_lanes": 1},
        {"skipped_lanes": 1},
        {"dead_letters": 2},
        {"dropped": 1},
        {"late_rows": 1},
    ],
)
def test_an_unusual_epoch_is_not_collapsed(fields: dict[str, object]) -> None:
    shown = collapse_epochs(parse(epoch(1), epoch(2), epoch(3, **fields), epoch(4), epoch(5)))
    assert [type(entry) for entry in shown] == [EpochSpan, LogEntry, EpochSpan]


def test_epochs_of_two_generations_and_lags_alone_are_not_collapsed() -> None:
    assert len(collapse_epochs(parse(epoch(1), epoch(2), epoch(3, generation=2), epoch(4, generation=2)))) == 2


def test_lines_about_the_lag_are_one_line_while_no_epoch_ends() -> None:
    other = LAG.replace('"query": "output"', '"query": "counts"')
    assert other != LAG
    assert all(isinstance(entry, LogEntry) for entry in collapse_epochs(parse(LAG, other))), "one of each query"
    (span,) = collapse_epochs(parse(LAG, other, LAG, LAG.replace("3276", "4000")))
    assert str(span) == "lag of output: lines 4000; lag of counts: lines 3276 (newest of 4 lines)"


def test_samples_are_lines_that_the_code_writes() -> None:
    """The code that writes the samples uses the same names of fields."""
    source = (Path(__file__).parents[3] / "platform/clonos/embedded/spark-log4j2.properties").read_text()
    for field in json.loads(JVM_ERROR):
        assert f'"{field}"' in source
