"""The pure part of ingestion: event lines as facts."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from clonos.errors import SpecError
from clonos.resources.failures import kind_of
from clonos.resources.jobs import Executors
from clonos.telemetry.driver_events import Lag, from_fields, from_line
from clonos_api.store.columns import IngestState, plain, read
from clonos_api.store.ingest import (
    Claimed,
    EpochDone,
    ErrorReported,
    Unreadable,
    fold,
    read_lines,
)
from support.stored import EventFile

LINES = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=20), max_size=12)


PUSHES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=8)


@given(LINES, PUSHES)
@example(["\ud800", "a"], [])
def test_pushes_cover_each_byte_once(lines: list[str], pushes: list[tuple[int, int]]) -> None:
    """Each line is read once, for any repeated and overlapping pushes."""
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode("utf-8", "surrogatepass")) + 1)
    have, read = 0, 0
    for back, more in [*pushes, (0, len(lines))]:
        first = max(0, read - back)
        last = min(len(lines), first + more)
        events, have = read_lines(have, starts[first], lines[first:last])
        assert len(events) == max(0, last - read)
        read = max(read, last)
        assert have == starts[read]
    assert read == len(lines)
    assert read_lines(have, 0, lines) == ([], have)


@given(LINES, st.integers(0, 200), st.integers(0, 200), st.booleans())
def test_the_offset_never_goes_back(lines: list[str], have: int, offset: int, gap: bool) -> None:
    try:
        events, end = read_lines(have, offset, lines, gap=gap)
    except SpecError:
        assert offset < have
        return
    assert end >= have
    assert not events or end > have
    if offset > have and not gap:
        assert (events, end) == ([], have)


def an_event(chance: random.Random) -> dict[str, Any]:
    """Return an event as drivers write it, with some invalid fields."""
    event: dict[str, Any] = {
        "event": chance.choice(["state", "claimed", "epoch", "restart", "failed", "stopped", "lag", "truncated"]),
        "state": chance.choice(["CLAIMING", "RESTARTING", "RUNNING", "STOPPED"]),
        "generation": chance.randint(0, 5),
        "lineage": 1,
        "query": "out",
        "epoch": chance.randint(0, 9),
        "duration_ms": 5.5,
        "topics": {"in": 3},
        "error": "epoch-failed",
        "at": chance.random() * 1e9,
    }
    for name in chance.sample(sorted(event), chance.choice([0, 0, 0, 1, 2])):
        event[name] = chance.choice([None, -1, 2**70, "", "x", [], {}, {"a": []}, True, float("nan"), 1.5])
    return event


@given(st.integers(0, 2**32), st.integers(0, 30))
def test_splitting_a_push_anywhere_has_the_same_result(seed: int, cut: int) -> None:
    chance = random.Random(seed)
    lines = [json.dumps(an_event(chance)) for _ in range(30)]
    events, _ = read_lines(0, 0, lines)
    whole = IngestState()
    facts = fold(whole, events)
    first = IngestState()
    pieces = fold(first, events[:cut])
    second = read(IngestState, json.dumps(plain(first)))  # as it is stored between pushes
    pieces += fold(second, events[cut:])
    assert pieces == facts
    assert second == whole


def facts_of(file: EventFile) -> list[Any]:
    events, _ = read_lines(0, 0, file.lines)
    return fold(IngestState(), events)


def test_causes() -> None:
    file = EventFile()
    file.start(1)
    file.epoch(0)
    file.restart(2)
    file.restart(3)  # again, before any epoch
    file.epoch(1)
    file.start(4)  # killed
    file.write_event("stopped")
    file.start(5)
    actual = facts_of(file)
    claims = [fact for fact in actual if isinstance(fact, Claimed)]
    assert [(item.generation, item.cause, item.attempt) for item in claims] == [
        (1, None, 1),
        (2, "restart", 1),
        (3, "restart", 1),
        (4, "crash", 2),
        (5, "start", 3),
    ]
    first, second = (fact for fact in actual if isinstance(fact, ErrorReported))
    assert claims[1].failed_at == claims[2].failed_at == first.at, "one failure until an epoch is finished"
    assert second.at > first.at
    done = [fact for fact in actual if isinstance(fact, EpochDone)]
    assert done[1].marks is not None
    assert done[1].marks["failed"] == first.at
    assert claims[3].failed_at == done[1].at, "the last word of the process that was killed"


def test_a_torn_line_hides_only_itself() -> None:
    file = EventFile()
    file.start(1)
    file.epoch(0)
    file.lines[-1] = file.lines[-1][:20] + file.lines[0]
    file.epoch(1)
    actual = facts_of(file)
    assert sum(isinstance(fact, Unreadable) for fact in actual) == 1
    assert [fact.checkpoint.epoch for fact in actual if isinstance(fact, EpochDone)] == [1]


def test_errors_have_a_domain() -> None:
    assert kind_of("job-code-failed") == ("user", False)
    assert kind_of("broker-unavailable") == ("environment", True)
    assert kind_of("replay-divergence") == ("consistency", False)
    assert kind_of("epoch-failed") == ("run", True)
    assert kind_of("unexpected") == ("internal", False)


def test_a_session_is_the_newest_application() -> None:
    state, file = IngestState(), EventFile()
    for identity, ui, shown in (
        ("app-1", "http://10.0.0.1:4040", "http://10.0.0.1:4040"),
        ("app-2", "https://[fd00::1]:4041/path", "https://[fd00::1]:4041/path"),
        ("app-3", "", ""),
        ("app-4", "javascript:alert(1)", ""),  # a job's code can write events
        ("app-5", 'http://x/" onclick="', ""),
        ("app-6", None, ""),
    ):
        file.write_event("session", master="spark://m:7077", application_id=identity, ui=ui)
        assert fold(state, [from_line(file.lines[-1])]) == []
        assert (state.application_id, state.spark_ui) == (identity, shown)
    assert read(IngestState, json.dumps(plain(state))) == state


def test_executors_are_those_of_the_newest_application() -> None:
    state, file = IngestState(), EventFile()

    def take(event: str, **fields: Any) -> list[Any]:
        file.write_event(event, **fields)
        return fold(state, read_lines(0, 0, [file.lines[-1]])[0])

    log = "http://[fd00::1]:8081/logPage/?appId=app-1&executorId=0&logType=stderr"
    executor = {"id": "0", "host": "w", "cores": 2, "stdout": 'http://w/" onclick="', "stderr": log, "other": 1}
    assert take("executors", wanted=30, registered=30, executors=[executor] * 30) == []
    assert state.executors is not None
    assert (state.executors.wanted, state.executors.registered) == (30, 30)
    kept = {"id": "0", "host": "w", "cores": 2, "stdout": "", "stderr": log}
    assert plain(state.executors.listed) == [kept] * 20, "a run's row stays small"
    assert Executors.model_validate(plain(state.executors)).listed[0].stderr == log
    for wrong in ({"wanted": -1}, {"registered": "1"}, {"executors": [{**executor, "host": 5}]}, {"executors": 3}):
        event = {"wanted": 1, "registered": 1, "executors": []} | wrong
        assert [type(fact) for fact in take("executors", **event)] == [Unreadable], wrong
    assert state.executors.wanted == 30
    take("session", master="spark://m:7077", application_id="app-2", ui="")
    assert state.executors is None


def test_of_many_topics_a_part_is_stored() -> None:
    """Job code writes these events, and each topic is stored and shown."""
    topics = {f"topic-{number}": number for number in range(500)}
    event = {"event": "lag", "at": 1.0, "query": "out", "topics": topics, "partitions": {}}
    (lag,) = fold(IngestState(), [from_fields(event)])
    assert isinstance(lag, Lag)
    assert len(lag.topics) == 100
