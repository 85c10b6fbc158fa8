"""The committed epochs that the auditor reads from a causal log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clonos.audit import committed_epochs
from clonos.audit.committed_epochs import CommittedEpochs
from clonos.log.history import Entered
from clonos.log.records import EpochCommitted, InputSlice, Marker, Owner
from clonos.settings import KafkaSettings


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
    monkeypatch.setattr(committed_epochs, "History", lambda _kafka, _job: scripted)
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
    log = CommittedEpochs(KafkaSettings(), "j")
    log.update()
    log.give_up()
    assert [(epoch.query, epoch.epoch) for epoch in log.epochs[1:]] == [("sample", 20), ("words", 572), ("totals", 401)]
    assert log.incomplete == []


def test_a_marker_that_is_missing_after_others_of_its_query_is_not_a_truncation(history: ScriptedHistory) -> None:
    history.entries = [*committed("words", 1, 9), *committed("words", 2, 9, marked=False), *committed("words", 3, 9)]
    log = CommittedEpochs(KafkaSettings(), "j")
    log.update()
    log.give_up()
    assert [epoch.epoch for epoch in log.epochs[1:]] == [1]
    assert log.incomplete == ["words epoch 2", "words epoch 3"]
