"""Each event of the control plane has a sentence that names its job and host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

import clonos_api
from clonos.resources.event_types import EVENT_KINDS, EventType, sentence_of

SOURCES = Path(clonos_api.__file__).parent
TYPES = set(get_args(EventType))
FAILURE = {"error": "spec-invalid", "what": "The topic is missing."}


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("artifact.created", {"name": "job.py", "size_bytes": 2048}, "The code job.py was uploaded (2.0 KiB)"),
    ("artifact.deleted", {"name": "job.py"}, "The code job.py was deleted"),
    ("cluster.created", {"cluster": "east"}, "The Spark cluster east was added"),
    ("cluster.deleted", {"cluster": "east"}, "The Spark cluster east was removed"),
    (
        "cluster.state",
        {"cluster": "east", "from": "CHECKING", "to": "READY"},
        "The Spark cluster east changed from CHECKING to READY",
    ),
    ("cluster.updated", {"cluster": "east", "version": 2}, "The Spark cluster east has version 2"),
    ("host.back", {}, "The host host-3 is connected again"),
    ("host.drained", {}, "The host host-3 is draining: no driver is placed on it"),
    ("host.lost", {"heartbeat_at": "…"}, "The host host-3 is LOST: its heartbeats stopped"),
    ("host.registered", {}, "The host host-3 registered"),
    ("host.removed", {}, "The host host-3 was removed"),
    ("host.undrained", {}, "The host host-3 takes drivers again"),
    ("job.created", {}, "fraud was created"),
    ("job.deleted", {}, "fraud was deleted"),
    ("job.desired", {"desired_state": "STOPPED", "restart": False}, "A stop of fraud was requested"),
    ("job.desired", {"desired_state": "RUNNING", "restart": True}, "A restart of fraud was requested"),
    (
        "job.exception",
        {"generation": 2, **FAILURE},
        "fraud: generation 2 reported spec-invalid: The topic is missing.",
    ),
    (
        "job.generation",
        {"generation": 3, "host": "host-1", "cause": "crash"},
        "Generation 3 of fraud claimed the causal log on host-1 after a crash",
    ),
    ("job.generation", {"generation": 1, "cause": "start"}, "Generation 1 of fraud claimed the causal log"),
    ("job.move.began", {"cause": "upgrade"}, "fraud is being upgraded"),
    ("job.move.ended", {"cause": "drain", "failure": None}, "The move of fraud is completed"),
    (
        "job.move.ended",
        {"cause": "upgrade", "failure": FAILURE},
        "The upgrade of fraud failed: The topic is missing",
    ),
    (
        "job.recovery.began",
        {"cause": "host-lost", "failed_generation": 2},
        "fraud: generation 2 lost its host, and a recovery began",
    ),
    (
        "job.recovery.began",
        {"cause": "move", "failed_generation": 2},
        "fraud: generation 2 hands over to its successor in a planned move",
    ),
    (
        "job.recovery.ended",
        {"generation": 3, "downtime_ms": 812.0, "outcome": "COMPLETED"},
        "fraud recovered: generation 3 publishes after 812 ms without output",
    ),
    (
        "job.recovery.ended",
        {"generation": 3, "downtime_ms": 640.0, "outcome": "IDLE"},
        "fraud recovered: generation 3 is ready to read after 640 ms, and no record was unread",
    ),
    ("job.recovery.ended", {"outcome": "ABANDONED"}, "The recovery of fraud ended: the job stopped"),
    (
        "job.state",
        {"from": "STARTING", "to": "FAILED", "failure": FAILURE},
        "fraud changed from STARTING to FAILED: The topic is missing",
    ),
    ("job.updated", {"version": 3, "again": 1}, "fraud has version 3, which repeats version 1"),
    ("job.updated", {"version": 1, "instead": 2}, "fraud has version 1 again, instead of version 2"),
    ("operation.began", {"kind": "delete-savepoint"}, "The operation delete savepoint of fraud began"),
    ("operation.ended", {"kind": "move", "state": "COMPLETED"}, "The operation move of fraud is completed"),
    (
        "operation.ended",
        {"kind": "move", "state": "FAILED", "failure": FAILURE},
        "The operation move of fraud failed: The topic is missing",
    ),
    (
        "run.created",
        {"version": 2, "standby": True, "why": "least loaded"},
        "A standby of fraud (version 2) was placed on host-3: least loaded",
    ),
    (
        "run.state",
        {"state": "EXITED", "exit_code": -9},
        "The driver of fraud on host-3 is EXITED: killed by SIGKILL",
    ),
    ("run.state", {"state": "EXITED", "exit_code": 74}, "The driver of fraud on host-3 is EXITED with exit code 74"),
    ("run.state", {"state": "RUNNING", "exit_code": None}, "The driver of fraud on host-3 is RUNNING"),
    ("savepoint.completed", {"name": "before"}, "The savepoint before of fraud is completed"),
    ("savepoint.created", {"name": "before"}, "The savepoint before of fraud was requested"),
    ("savepoint.deleted", {"name": "before"}, "The savepoint before of fraud was deleted"),
    ("savepoint.deleting", {"name": "before"}, "The savepoint before of fraud is being deleted"),
    ("savepoint.failed", {"name": "before"}, "The savepoint before of fraud failed"),
    ("standby.state", {"state": "READY"}, "The standby of fraud on host-3 is READY"),
    (
        "token.created",
        {"name": "ci", "role": "operator", "subject": "ada"},
        "The token ci (operator of ada) was created",
    ),
    ("token.revoked", {"name": "ci"}, "The token ci was revoked"),
    ("job.paused", {}, "job.paused: fraud on host-3"),  # of a newer version
]


def test_each_type_is_described() -> None:
    assert set(EVENT_KINDS) == TYPES
    assert {kind for kind, *_ in CASES} >= TYPES


@pytest.mark.parametrize(("kind", "data"), [(kind, data) for kind, data, *_ in CASES if kind in TYPES])
def test_the_fields_of_each_type_are_listed(kind: EventType, data: dict[str, Any]) -> None:
    assert data.keys() <= set(EVENT_KINDS[kind].fields)


def test_pages_follow_each_type() -> None:
    script = (SOURCES / "dashboard" / "static" / "follow.js").read_text()
    listed = script.partition("export const TYPES = [")[2].partition("]")[0]
    assert set(re.findall(r'"([a-z.]+)"', listed)) == TYPES


@pytest.mark.parametrize(("kind", "data", "text"), CASES)
def test_a_sentence_names_job_and_host(kind: str, data: dict[str, Any], text: str) -> None:
    assert sentence_of(kind, data, job="fraud", host="host-3") == text


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_an_event_without_fields_has_a_sentence(kind: str) -> None:
    """Versions store other fields, and retention removes rows with names."""
    text = sentence_of(kind, {})
    assert text
    assert "None" not in text
    assert "  " not in text


def test_a_long_error_is_cut() -> None:
    text = sentence_of("job.exception", {"generation": 1, "error": "e", "what": "x\n" * 1000}, job="fraud")
    assert len(text) == 300
    assert "\n" not in text
