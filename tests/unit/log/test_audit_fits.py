"""Which moments of an output fit which epochs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clonos.log import output_audit
from clonos.log.history import Entered
from clonos.log.output_audit import CommittedEpoch, Sum, _fit
from clonos.log.records import EpochCommitted, InputSlice, Marker, Owner
from clonos.settings import KafkaSettings

# Epochs of different sizes: equal ones have the same distance from each other.
TOTALS = [Sum(), Sum(10, 1000), Sum(25, 2600), Sum(31, 3333)]
EPOCHS = [CommittedEpoch("out", number - 1, total) for number, total in enumerate(TOTALS)]


NOTHING, FIRST, SECOND, THIRD = TOTALS
IN_BETWEEN = Sum(14, 1400)
SECOND_TWICE_3, THIRD_TWICE_3 = Sum(26, 2607), Sum(32, 3340)


@pytest.mark.parametrize(
    ("snapshots", "whole", "epochs", "newest"),
    [
        ([NOTHING, THIRD], True, [-1, 2], True),
        ([NOTHING, FIRST, IN_BETWEEN], True, [-1, 0], False),
        ([FIRST, IN_BETWEEN, SECOND], False, [0, 1], True),
        ([THIRD], False, [], False),
        # A record was repeated: epochs after it fit each other, but not the beginning.
        ([NOTHING, SECOND_TWICE_3, THIRD_TWICE_3], True, [], False),
        ([SECOND_TWICE_3, THIRD_TWICE_3], False, [1, 2], True),
        # A record is repeated during the audit.
        ([FIRST, SECOND, THIRD_TWICE_3], False, [0, 1], False),
        ([NOTHING, SECOND, THIRD_TWICE_3], True, [-1, 1], False),
        # As many records, one of them with other content.
        ([NOTHING, Sum(31, 3334)], True, [], False),
    ],
)
def test_only_the_same_distance_proves_epochs(
    snapshots: list[Sum], whole: bool, epochs: list[int], newest: bool
) -> None:
    fit = _fit(EPOCHS, snapshots, whole=whole)
    proved = [fit.epochs[0].epoch, fit.epochs[-1].epoch] if len(fit.epochs) > 1 else []
    assert (proved, fit.newest) == (epochs, newest)


class ScriptedHistory:
    """A log whose entries the test sets; each read passes those that were added since the last one."""

    def __init__(self) -> None:
        self.entries: list[Entered] = []

    def read(self, take: Callable[[Entered], bool]) -> None:
        for entered in self.entries:
            take(entered)
        self.entries = []


OWNER = Owner(lineage=1, generation=1, claim_id="c")


def committed(query: str, epoch: int, records: int, *, marked: bool = True) -> list[Entered]:
    """A committed epoch with one lane; without `marked`, its marker was truncated."""
    marker = Marker(OWNER, query, epoch, 0, InputSlice("task", "", 0, 0, 0), records, bytes(16))
    commit = EpochCommitted(OWNER, query, epoch, records)
    return [Entered(1, 500 + epoch, 0, 0, marker)] * marked + [Entered(0, 500 + epoch, 0, 0, commit)]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ScriptedHistory:
    scripted = ScriptedHistory()
    monkeypatch.setattr(output_audit, "History", lambda _kafka, _job: scripted)
    return scripted


def test_truncated_markers_of_queries_end_at_different_commits(history: ScriptedHistory) -> None:
    """The lanes of each query are truncated on their own."""
    history.entries = [
        *committed("totals", 400, 3),  # its marker is still there
        *committed("words", 571, 9, marked=False),
        *committed("sample", 20, 0),
        *committed("words", 572, 9),
        *committed("totals", 401, 3),
    ]
    log = output_audit._Log(KafkaSettings(), "j")
    log.update()
    log.give_up()
    assert [(epoch.query, epoch.epoch) for epoch in log.epochs[1:]] == [("sample", 20), ("words", 572), ("totals", 401)]
    assert log.incomplete == []


def test_a_marker_that_is_missing_after_others_of_its_query_is_no_truncation(history: ScriptedHistory) -> None:
    history.entries = [*committed("words", 1, 9), *committed("words", 2, 9, marked=False), *committed("words", 3, 9)]
    log = output_audit._Log(KafkaSettings(), "j")
    log.update()
    log.give_up()
    assert [epoch.epoch for epoch in log.epochs[1:]] == [1]
    assert log.incomplete == ["words epoch 2", "words epoch 3"]


@pytest.mark.parametrize("snapshots", [[Sum(), Sum(10, 1000)], [Sum(10, 1000)]], ids=["complete", "truncated"])
def test_an_output_that_does_not_change_is_named(history: ScriptedHistory, snapshots: list[Sum]) -> None:
    history.entries = committed("words", 1, 9)
    log = output_audit._Log(KafkaSettings(), "j")
    log.update()
    assert "Nothing was published during the audit" in output_audit._reason(log, ["out"], snapshots, None)
