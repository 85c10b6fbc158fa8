"""Sentences, losses, comparisons and post-mortems of recoveries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.incidents import (
    Incident,
    QueryContinuity,
    compare,
    downtime_of,
    incident,
    kind_of,
    loss_of,
    post_mortem,
    sentence,
)
from clonos.resources.jobs import Failure, Phase, Recovery
from clonos.resources.verification import Verification

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
KILLED = Failure(error="driver-crashed", what="The driver was killed by SIGKILL.")
PHASES = [("detect", 506.0), ("decide", 10.0), ("wake", 28.0), ("claim", 83.0), ("replay", 150.0), ("commit", 23.0)]


def recovery(**fields: Any) -> Recovery:
    began, phases = AT, []
    for name, ms in PHASES:
        phases.append(Phase(name=name, started_at=began, duration_ms=ms))
        began += timedelta(milliseconds=ms)
    defaults: dict[str, Any] = {
        "id": "01a206fb-0000-7000-8000-000000000001",
        "job": "j",
        "cause": "crash",
        "standby": "s",
        "failure": KILLED,
        "failed_generation": 2,
        "generation": 3,
        "from_host": "host-1",
        "to_host": "host-3",
        "started_at": AT,
        "ended_at": began,
        "outcome": "COMPLETED",
        "downtime_ms": 800.0,
        "phases": phases,
        "replayed_records": 311,
        "skipped_lanes": 1,
        "replayed_determinants": 20,
    }
    return Recovery.model_validate({**defaults, **fields})


OPEN: dict[str, Any] = {
    "ended_at": None,
    "outcome": None,
    "downtime_ms": None,
    "phases": [],
    "replayed_records": 0,
    "skipped_lanes": 0,
    "replayed_determinants": 0,
}
ENDED = {**OPEN, "ended_at": AT + timedelta(seconds=1)}
CONSECUTIVE = [QueryContinuity("out", 46, 47)]


def explained(row: Recovery, queries: list[QueryContinuity], *earlier: Recovery, **loss: Any) -> Incident:
    judged = loss_of(row, queries, **{"exactly_once": True, "diverged": 0, **loss})
    at = AT + timedelta(seconds=4)
    return incident(row, "fraud", judged, compare(row, earlier), at=at, silent_since=AT)


def test_the_sentence_of_a_takeover() -> None:
    assert explained(recovery(), CONSECUTIVE).summary == (
        "fraud: the driver on host-1 was killed by SIGKILL; the standby on host-3 took over; no output for 800 ms; "
        "nothing was lost"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"standby": None, "failure": None, "to_host": "host-1"},
            "the driver on host-1 crashed; a new driver on the same host took over; no output for 800 ms",
        ),
        (
            {"failure": Failure(error="driver-unresponsive", what="No heartbeat.")},
            "the driver on host-1 failed (driver-unresponsive); the standby on host-3 took over; no output for 800 ms",
        ),
        (
            {"cause": "host-lost", "alive_at": datetime(2026, 11, 1, tzinfo=UTC)},
            "host-1 was lost although its driver worked; the standby on host-3 took over; no output for 800 ms",
        ),
        ({"cause": "host-lost"}, "host-1 was lost; the standby on host-3 took over; no output for 800 ms"),
        (
            {"cause": "restart", "failure": Failure(error="epoch-failed", what="A worker was lost."), "standby": None},
            "a query on host-1 failed (epoch-failed); the driver restarted its queries; no output for 800 ms",
        ),
        (
            {"cause": "rollback", "failure": Failure(error="epoch-failed", what="A bug.")},
            "the new version on host-1 failed (epoch-failed); the standby on host-3 took over; no output for 800 ms",
        ),
        (
            {"cause": "shutdown", "failure": None},
            "the driver on host-1 was stopped with its agent; the standby on host-3 took over; no output for 800 ms",
        ),
        (
            {"cause": "upgrade", "failure": None},
            "the driver on host-1 handed over in a planned upgrade; the standby on host-3 took over; "
            "no output for 800 ms",
        ),
        (
            {**OPEN, "generation": None, "to_host": None, "standby": None},
            "the driver on host-1 was killed by SIGKILL; a new driver is being placed; no output yet",
        ),
        (
            {**OPEN, "generation": None},
            "the driver on host-1 was killed by SIGKILL; the standby on host-3 starts to claim the causal log; "
            "no output yet",
        ),
        (
            {**OPEN, "cause": "move", "generation": None},
            "the driver on host-1 handed over in a planned move; the standby on host-3 starts to claim the causal log; "
            "the old driver still publishes",
        ),
        (
            {**ENDED, "outcome": "ABANDONED", "generation": None},
            "the driver on host-1 was killed by SIGKILL; no driver took over; the job stopped",
        ),
        (
            {**ENDED, "outcome": "SUPERSEDED"},
            "the driver on host-1 was killed by SIGKILL; the standby on host-3 took over; "
            "the next failure occurred before all queries had returned",
        ),
        (
            {"from_host": "", "failure": None, "cause": "start"},
            "generation 2 ended; the standby on host-3 took over; no output for 800 ms",
        ),
    ],
)
def test_the_sentence_has_cause_successor_and_gap(fields: dict[str, Any], text: str) -> None:
    assert sentence(recovery(**fields)) == text


def test_a_recovery_in_progress_counts_from_the_failure() -> None:
    shown = explained(recovery(**OPEN), [QueryContinuity("out", 46, None)])
    assert shown.summary.endswith("the standby on host-3 took over; no output for 4.0 s so far")
    assert shown.silent_since == AT
    assert shown.loss.verdict == "pending"
    assert explained(recovery(), CONSECUTIVE).silent_since is None
    planned = explained(recovery(**OPEN, cause="move", generation=None), [])
    assert planned.silent_since is None, "the old driver still publishes"


@pytest.mark.parametrize(
    ("queries", "fields", "more", "verdict", "said"),
    [
        (CONSECUTIVE, {}, {}, "nothing", "out: epoch 46 before the failure and epoch 47 after it are consecutive."),
        ([QueryContinuity("out", None, 0)], {}, {}, "nothing", "out: epoch 0 is the first one that is stored."),
        (
            [*CONSECUTIVE, QueryContinuity("slow", 3, None)],
            {},
            {},
            "nothing",
            "slow: no epoch has finished since the failure; the newest one is epoch 3.",
        ),
        (
            [QueryContinuity("out", 46, 50)],
            {},
            {},
            "unknown",
            "out: the control plane has no report of epochs 47 to 49.",
        ),
        ([QueryContinuity("out", 46, 48)], {}, {}, "unknown", "out: the control plane has no report of epoch 47."),
        ([QueryContinuity("out", None, 50)], {}, {}, "unknown", "The epochs before the failure are no longer stored."),
        ([], {}, {}, "unknown", "The epochs before the failure are no longer stored."),
        (CONSECUTIVE, {}, {"diverged": 2}, "unknown", "2 lanes of replays of this job differed"),
        (CONSECUTIVE, {}, {"exactly_once": False}, "duplicates", "configured to deliver at least once"),
        (
            [QueryContinuity("out", 46, None)],
            {**ENDED, "outcome": "ABANDONED"},
            {},
            "pending",
            "The causal log keeps the epoch in doubt until its replay.",
        ),
        (
            CONSECUTIVE,
            {},
            {},
            "nothing",
            "The epoch in doubt (311 records) was replayed with 20 recorded determinants.",
        ),
        (CONSECUTIVE, {}, {}, "nothing", "1 lane of it was already published, as markers prove, and was skipped."),
        (CONSECUTIVE, {"replayed_records": 0, "skipped_lanes": 0}, {}, "nothing", "No epoch was in doubt"),
        (CONSECUTIVE, {}, {}, "nothing", "Generation 2 is fenced"),
        (
            CONSECUTIVE,
            {},
            {"verification": Verification(at=AT, clean=True, verified={"out": (40, 50)})},
            "nothing",
            "A verification at 2026-01-01 12:00:00Z read the output of out: epochs 40 to 50 were published once",
        ),
        (
            CONSECUTIVE,
            {},
            {"verification": Verification(at=AT, clean=False, contradicted=True, repeated=["out/47/0"])},
            "unknown",
            "A verification at 2026-01-01 12:00:00Z found that the output contradicts the causal log.",
        ),
    ],
)
def test_what_was_lost_and_how_it_is_known(
    queries: list[QueryContinuity], fields: dict[str, Any], more: dict[str, Any], verdict: str, said: str
) -> None:
    loss = explained(recovery(**fields), queries, **more).loss
    assert loss.verdict == verdict
    assert said in " ".join(loss.evidence)
    known = verdict in ("nothing", "duplicates")
    assert (loss.records, loss.epochs) == ((0, 0) if known else (None, None))


def test_a_verification_of_other_epochs_is_not_evidence() -> None:
    older = Verification(at=AT, clean=True, verified={"out": (1, 46)})
    assert "verification" not in " ".join(explained(recovery(), CONSECUTIVE, verification=older).loss.evidence)


def taking(*downtimes_ms: float, **fields: Any) -> list[Recovery]:
    return [recovery(downtime_ms=downtime_ms, **fields) for downtime_ms in downtimes_ms]


def test_a_recovery_is_compared_with_earlier_ones_of_its_kind() -> None:
    others = taking(9000.0, standby=None) + taking(1.0, cause="move") + taking(2.0, cause="restart")
    result = compare(recovery(), [*taking(600.0, 700.0, 900.0), *others])
    assert (result.kind, result.earlier, result.median_ms, result.rank) == ("takeover", 3, 700.0, 3)
    assert result.summary == (
        "The job's 3 earlier takeovers by a standby had a median downtime of 700 ms. "
        "This one took 800 ms: number 3, from the shortest, of 4."
    )
    assert "the shortest of 2" in compare(recovery(), taking(900.0)).summary
    assert "the longest of 2" in compare(recovery(), taking(700.0)).summary
    assert {kind_of(other) for other in others} == {"cold restart", "planned move", "query restart"}


def test_an_unfinished_recovery_has_no_rank() -> None:
    running = recovery(**OPEN)
    result = compare(running, taking(600.0))
    assert (result.median_ms, result.rank) == (600.0, None)
    assert result.summary == "The job's only earlier takeover by a standby took 600 ms."
    unfinished = recovery(**{**ENDED, "outcome": "SUPERSEDED"})
    assert compare(running, [unfinished]).earlier == 0
    assert "nothing to compare with" in compare(running, []).summary


def test_the_post_mortem() -> None:
    text = post_mortem(explained(recovery(), CONSECUTIVE, *taking(600.0, 700.0)))
    assert text.startswith(
        "# fraud: recovery at 2026-01-01 12:00:00Z\n\n## Summary\n\nThe driver on host-1 was killed by SIGKILL; "
    )
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Summary",
        "## Timeline (UTC)",
        "## Impact",
        "## Cause",
        "## What happened automatically",
        "## Numbers",
    ]
    assert "| 2026-01-01 12:00:00.000 | The driver on host-1 was killed by SIGKILL. |" in text
    assert "| 2026-01-01 12:00:00.506 | The failure was detected. |" in text
    assert "| 2026-01-01 12:00:00.800 | That epoch was committed. |" in text
    assert "- Readers got no output for 800 ms." in text
    assert "- Lost: nothing was lost (0 records, 0 epochs)." in text
    assert "~~~text\ndriver-crashed: The driver was killed by SIGKILL.\n~~~" in text
    assert "1. The failure was detected after 506 ms.\n2. The standby on host-3 took over.\n" in text
    assert "| phase replay | 150 ms |" in text
    assert "had a median downtime of 650 ms" in text


@pytest.mark.parametrize("outcome", [None, "COMPLETED", "IDLE"])
def test_nothing_is_said_about_losses_before_all_queries_have_returned(outcome: str | None) -> None:
    idle = {"out": {"at": AT, "downtime_ms": None}}
    row = recovery(**{**(OPEN if outcome is None else ENDED), "outcome": outcome, "returned": idle, "waits": ["stats"]})
    loss = explained(row, [*CONSECUTIVE, QueryContinuity("stats", 3, None)]).loss
    assert (loss.verdict, loss.summary) == ("pending", "stats has not finished an epoch since the failure")


def test_a_recovery_without_input_lost_nothing() -> None:
    idle = recovery(**{**ENDED, "outcome": "IDLE", "returned": {"out": {"at": AT}}})
    loss = explained(idle, [QueryContinuity("out", 46, None)]).loss
    assert (loss.verdict, loss.records) == ("nothing", 0)


@pytest.mark.parametrize(
    ("first_s", "said"), [(None, "no record has come since"), (2.0, "the first record was published 2.0 s later")]
)
def test_a_takeover_without_input_says_how_long_it_took_and_when_the_first_record_came(
    first_s: float | None, said: str
) -> None:
    ended = AT + timedelta(milliseconds=650)
    first = None if first_s is None else ended + timedelta(seconds=first_s)
    returned = {"out": {"at": ended, "downtime_ms": 640.0, "idle": True}}
    phases = [*recovery().phases[:4], Phase(name="ready", started_at=ended, duration_ms=13.0)]
    row = recovery(
        outcome="IDLE", ended_at=ended, downtime_ms=640.0, first_record_at=first, returned=returned, phases=phases
    )
    shown = explained(row, [QueryContinuity("out", 46, None)])
    assert (
        f"the standby on host-3 took over; ready to read after 640 ms, without unread records; {said};" in shown.summary
    )
    assert "had no input" not in shown.summary
    text = post_mortem(shown)
    assert "| until ready to read | 640 ms |" in text
    assert ("| first record after it | none yet |" in text) is (first_s is None)
    assert "| phase ready | 13 ms |" in text
    assert shown.comparison.rank is None
    assert downtime_of(row.returned["out"]) == "640 ms, no input"


def test_the_post_mortem_of_a_recovery_that_did_not_complete() -> None:
    abandoned = recovery(**{**ENDED, "outcome": "ABANDONED", "generation": None})
    text = post_mortem(explained(abandoned, [QueryContinuity("out", 46, None)]))
    assert "| 2026-01-01 12:00:01.000 | The recovery ended: the job stopped. |" in text
    assert "- Lost: no epoch has finished since the failure." in text
    assert "Readers: no output for 4.0 s so far." in post_mortem(explained(recovery(**OPEN), []))


def test_texts_of_a_driver_are_not_markdown() -> None:
    failure = Failure(error="unexpected", what="a | b\n~~~\n# heading")
    text = post_mortem(explained(recovery(failure=failure, from_host="a|b"), CONSECUTIVE))
    assert "~~~text\nunexpected: a | b ~~~ # heading\n~~~" in text
    assert "| hosts | a\\|b → host-3 |" in text
