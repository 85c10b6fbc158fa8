"""The log for people: void records, order, lines and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from clonos.cli import causal_log, record_text
from clonos.errors import SpecError
from clonos.log.exported import ExportedDeterminants, ExportedPlan, export
from clonos.log.history import Entered, _Partition
from clonos.log.records import (
    VERSION,
    AssignLanes,
    Claim,
    Determinant,
    Determinants,
    EpochCommitted,
    EpochParts,
    InputSlice,
    LaneAssignment,
    Marker,
    Owner,
    Plan,
    Record,
    Resolution,
    encode,
)

OLD, NEW = Owner(1, 1, "aaaaaaaaaaaaaaaa"), Owner(1, 2, "bbbbbbbbbbbbbbbb")
AT = 1_700_000_000_000
HELD = InputSlice("range", "lines", 0, 10, 20)
KEY = bytes(range(16))
ANSWER = Determinant(KEY, msgspec.msgpack.encode({"banned": True}), service="job.ask")
FAILED = Determinant(KEY, b"The service x gave no answer.", failed=True, service="x")


def plan(owner: Owner, epoch: int = 3) -> Plan:
    return Plan(owner, "words", epoch, (HELD,), ((HELD,),), (1,), {1: 0}, 2**62 + 5, "c0de", "v1\n{}\n{}", AT)


def answers(owner: Owner, *entries: Determinant) -> Determinants:
    return Determinants(owner, "words", 3, "judge", 1, entries or (ANSWER,))


def marker(owner: Owner) -> Marker:
    return Marker(owner, "words", 3, 0, HELD, 7, b"d" * 16)


class Message:
    """What Kafka hands out."""

    def __init__(self, value: bytes | None, at: int = AT) -> None:
        self._value, self._at = value, at

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return (1, self._at)


def entered(partition: int, records: Iterable[Record | bytes | None]) -> list[Entered]:
    state = _Partition(partition)
    values = [logged if isinstance(logged, bytes | None) else encode(logged) for logged in records]
    return [state.enter(offset, Message(value)) for offset, value in enumerate(values)]  # type: ignore[arg-type]


def void(partition: int, records: Iterable[Record | bytes | None]) -> list[bool]:
    return [bool(logged.void) for logged in entered(partition, records)]


def test_determinants_of_an_older_owner_are_void_after_a_newer_claim_or_marker() -> None:
    records = [Claim(OLD, AT), answers(OLD), Claim(NEW, AT), answers(OLD), answers(NEW), marker(NEW), answers(OLD)]
    assert void(1, records) == [False, False, False, True, False, False, True]
    late = entered(1, records)[3]
    assert late.void == "1.2/bbbbbbbb owned the partition since offset 2"


def test_determinants_without_a_claim_before_them_are_void() -> None:
    assert void(1, [answers(OLD)]) == [True]


def test_records_of_a_superseded_owner_on_control_are_void() -> None:
    late: list[Record] = [
        plan(OLD),
        AssignLanes(OLD, ()),
        EpochCommitted(OLD, "words", 3, 1),
        Resolution(OLD, "words", 3, "new-code", "c"),
    ]
    assert void(0, [Claim(OLD, AT), plan(OLD), Claim(NEW, AT), *late]) == [False] * 3 + [True] * 4
    assert void(0, [Claim(NEW, AT), plan(NEW), EpochCommitted(NEW, "words", 3, 1)]) == [False] * 3


@pytest.mark.parametrize("value", [None, b"", b"hello", VERSION + b"hello"])
def test_foreign_record_is_shown_and_reading_continues(value: bytes | None) -> None:
    foreign, after = entered(0, [value, Claim(OLD, AT)])
    assert (foreign.kind, foreign.record, foreign.size) == ("foreign", None, len(value or b""))
    assert "offset 0" in foreign.foreign
    assert after.kind == "claim"
    assert "holds a record that Clonos did not write" in text(foreign)


def test_merged_by_time_but_never_against_a_partitions_order() -> None:
    state = _Partition(1)
    logged, later = (state.enter(n, Message(encode(Claim(OLD, AT)), at)) for n, at in enumerate((50, 40)))  # type: ignore[arg-type]
    assert [key[:3] for key in state.ordered([logged, later])] == [(50, 1, 0), (50, 1, 1)]


# Filters.


def filtered(**options: Any) -> list[str]:
    arguments = {"epoch": None, "query": None, "partitions": None, "kinds": None, **options}
    keep = causal_log.record_filter(**arguments)
    control = entered(0, [Claim(OLD, AT), plan(OLD, 2), plan(OLD, 3), EpochCommitted(OLD, "words", 3, 1), b"foreign"])
    lane = entered(1, [Claim(OLD, AT), answers(OLD), marker(OLD)])
    return [f"{logged.partition}:{logged.kind}" for logged in [*control, *lane] if keep(logged)]


def test_filters() -> None:
    assert len(filtered()) == 8
    assert filtered(epoch="3") == ["0:plan", "0:epoch-committed", "1:determinants", "1:marker"]
    assert filtered(epoch="0..2") == ["0:plan"]
    assert filtered(query="totals") == []
    assert filtered(partitions=[1]) == ["1:claim", "1:determinants", "1:marker"]
    assert filtered(kinds="marker, foreign") == ["0:foreign", "1:marker"]
    assert filtered(kinds="plan", epoch="2..9", query="words", partitions=[0]) == ["0:plan", "0:plan"]


@pytest.mark.parametrize(
    "wrong", [{"epoch": "x"}, {"epoch": "5..3"}, {"epoch": "-1"}, {"kinds": "plans"}, {"kinds": ","}]
)
def test_filters_that_cannot_be_understood(wrong: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        filtered(**wrong)


# Lines and JSON.


def text(logged: Entered, entries: int = 10) -> str:
    return "\n".join(line.plain for line in record_text.lines_of(logged, entries))


def test_lines() -> None:
    claim = Claim(NEW, AT, marker(OLD), (LaneAssignment("words", 0, 1),), {"words": 2})
    shown = [text(logged) for logged in entered(0, [claim, plan(NEW), EpochCommitted(NEW, "words", 3, 7), plan(OLD)])]
    assert shown[0].endswith("claim           on the marker of words epoch 3; 1 lanes; committed words 2")
    assert "2023-11-14 22:13:20.000  0@1        1.2/bbbbbbbb  plan" in shown[1]
    assert shown[1].endswith("words epoch 3: [lines[0] 10..20] → 1 lanes, code c0de")
    assert shown[2].endswith("words epoch 3: 7 records")
    assert "void: 1.2/bbbbbbbb owned" in shown[3]
    lane = entered(1, [Claim(NEW, AT), answers(NEW, ANSWER, FAILED, ANSWER), marker(NEW)])
    lines = text(lane[1], 2).splitlines()
    assert lines[0].endswith("words epoch 3: judge task 1, 3 determinants")
    assert [line.strip() for line in lines[1:]] == [
        'job.ask(00010203) = {"banned":true}',
        'x(00010203) failed: "The service x gave no answer."',
        "… and 1 more",
    ]
    assert len(text(lane[1], 0).splitlines()) == 1
    assert text(lane[2]).endswith("lane 0: 7 records from lines[0] 10..20, digest 64646464")


def test_every_kind_is_json_with_the_documented_keys() -> None:
    common = {"job", "partition", "offset", "at", "bytes", "kind", "void"}
    owner = {"lineage", "generation", "claim_id"}
    expected = {
        "claim": {
            "marker",
            "assignments",
            "committed",
            "request_key",
            "code",
            "code_parts",
            "topic_ids",
            "dropped",
            "platform",
        },
        "assign-lanes": {"assignments"},
        "plan": {
            "query",
            "epoch",
            "now",
            "seed",
            "code",
            "scans",
            "input_slices",
            "log_partitions",
            "start_offsets",
            "offsets",
            "topic_ids",
            "static_inputs",
            "finished_topics",
            "live",
            "rescaled_to",
        },
        "determinants": {"query", "epoch", "operator", "task", "determinants"},
        "marker": {
            *("query", "epoch", "lane", "input_slice", "records", "digest"),
            *("step", "total", "next_offsets", "time"),
        },
        "epoch-parts": {"query", "epoch", "payloads", "records", "digest"},
        "epoch-committed": {"query", "epoch", "records", "duration_ms", "offsets"},
        "resolution": {"query", "epoch", "action", "code", "topic"},
    }
    records: list[Record] = [
        Claim(OLD, AT, marker(OLD), (LaneAssignment("words", 0, 1),), {"words": 2}),
        AssignLanes(OLD, (LaneAssignment("words", 0, 1),)),
        plan(OLD),
        answers(OLD, ANSWER, FAILED),
        marker(OLD),
        EpochParts(OLD, "words", 3, (b"part",), 7, b"digest"),
        EpochCommitted(OLD, "words", 3, 7),
        Resolution(OLD, "words", 3, "new-code", "c"),
    ]
    shown = [json.loads(msgspec.json.encode(export("j", logged))) for logged in entered(0, [*records, b"foreign"])]
    assert {logged["kind"]: logged.keys() - common - owner for logged in shown[:-1]} == expected
    assert shown[-1].keys() == common | {"foreign", "start"}
    assert set(expected) | {"foreign"} == set(causal_log.KINDS)
    assert shown[2]["seed"] == "4000000000000005"
    assert shown[3]["determinants"][0]["value"] == {"banned": True}
    assert shown[3]["determinants"][1] == {
        "service": "x",
        "key": KEY.hex(),
        "value": "The service x gave no answer.",
        "failed": True,
        "msgpack": "VGhlIHNlcnZpY2UgeCBnYXZlIG5vIGFuc3dlci4=",
    }


def test_exported_plan_and_determinants_can_be_read_back() -> None:
    lines = [
        msgspec.json.encode(export("j", logged))
        for logged in entered(0, [Claim(OLD, AT), plan(OLD), answers(OLD, ANSWER)])
    ]
    back = msgspec.json.decode(lines[1], type=ExportedPlan)
    assert (int(back.seed, 16), round(back.now.timestamp() * 1000)) == (2**62 + 5, AT)
    assert msgspec.json.decode(lines[2], type=ExportedDeterminants).determinants[0].entry() == ANSWER


@pytest.mark.parametrize("value", [float("nan"), b"\xff\x00", {1: 2, (1, 2): 3}, None, "x" * 500])
def test_any_answer_can_be_shown(value: Any) -> None:
    entry = Determinant(KEY, msgspec.msgpack.encode(value))
    logged = entered(1, [Claim(OLD, AT), answers(OLD, entry)])[1]
    assert json.loads(msgspec.json.encode(export("j", logged)))["determinants"][0]["service"] == ""
    assert len(text(logged).splitlines()) == 2
    assert max(len(line) for line in text(logged).splitlines()) < 200


def test_an_answer_that_is_not_msgpack_is_shown_as_bytes() -> None:
    logged = entered(1, [Claim(OLD, AT), answers(OLD, Determinant(KEY, b"\xc1"))])[1]
    assert '= "0xc1"' in text(logged)
