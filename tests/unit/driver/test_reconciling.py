"""Spark's checkpoint against the causal log, before a query starts."""

from __future__ import annotations

import json
from typing import cast

import pytest

from clonos.driver.checkpoint import CheckpointDirectory, check_restart, epoch_time, progress_of, reconcile
from clonos.errors import CausalLogDamaged, CheckpointDamaged, CheckpointMismatch, SourceOffsetsExpired
from clonos.extend.source import Progress
from clonos.log.control import ControlState
from clonos.log.records import InputSlice, Owner, Plan

OWNER = Owner(1, 1, "a")


def entry(*sources: str, at: int = 1_700_000_000_123) -> str:
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at, "conf": {"a": "b"}})
    return "\n".join(["v1", metadata, *sources])


class FakeCheckpoint:
    """The parts of a checkpoint that reconciling touches."""

    def __init__(self, offsets: dict[int, str], commits: list[int]) -> None:
        self.entries = dict(offsets)
        self._commits = commits
        self.location = "checkpoint"
        self.state = True
        self.lost = False
        self.metadata = True

    def lacks_state(self) -> bool:
        return self.lost

    def set_aside(self) -> str:
        self.entries.clear()
        self._commits.clear()
        self.lost = False
        return "aside"

    def commits(self) -> list[int]:
        return sorted(self._commits)

    def offsets(self) -> list[int]:
        return sorted(self.entries)

    def read_offsets(self, epoch: int) -> str | None:
        return self.entries.get(epoch)

    def write_offsets(self, epoch: int, text: str) -> None:
        self.entries[epoch] = text

    def drop_state(self) -> None:
        self.state = False

    def drop_offsets(self, epoch: int) -> None:
        self.entries.pop(epoch, None)

    def restore_metadata(self) -> bool:
        missing, self.metadata = not self.metadata, True
        return missing


def state(planned: list[int], committed: int = -1, query: str = "q") -> ControlState:
    plans = {
        (query, epoch): (epoch, Plan(OWNER, query, epoch, (), (), (), {}, 0, "code", f"plan {epoch}", 0))
        for epoch in planned
    }
    return ControlState(plans=plans, committed={query: committed} if committed >= 0 else {})


def run(checkpoint: FakeCheckpoint, log: ControlState, first: int = 0) -> list[str]:
    """Reconcile; the source holds the records from offset `first` on."""

    def check_retained(start: Progress) -> None:
        if any(offset < first for partitions in start.values() for offset in partitions.values()):
            raise SourceOffsetsExpired("in[0] needs 0, has 3..9.")

    return reconcile(cast("CheckpointDirectory", checkpoint), "q", log, check_retained)


def test_a_checkpoint_without_its_state_is_set_aside_if_the_log_can_replay_all() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 1: "plan 1"}, [0, 1])
    checkpoint.lost = True
    repairs = run(checkpoint, state([0, 1, 2], committed=1))
    assert repairs[0] == "set the checkpoint aside as aside: its state is missing, all epochs are replayed"
    assert checkpoint.entries == {0: "plan 0"}, "the first epoch is replayed from its plan"


def test_state_that_the_log_cannot_replay_is_refused_with_the_way_back() -> None:
    checkpoint = FakeCheckpoint({7: "plan 7", 8: "plan 8"}, [7, 8])
    checkpoint.lost = True
    with pytest.raises(CheckpointDamaged, match="no longer holds the plan of epoch 0") as refused:
        run(checkpoint, state([7, 8], committed=8))
    assert "savepoint" in refused.value.hint
    assert checkpoint.entries == {7: "plan 7", 8: "plan 8"}, "nothing is changed"


def test_a_checkpoint_is_not_set_aside_if_the_source_lacks_records_of_the_replay() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0"}, [0])
    checkpoint.lost = True
    with pytest.raises(CheckpointDamaged, match=r"a source no longer holds the records. in\[0\] needs 0") as refused:
        run(checkpoint, planned("in", 0, 0), first=3)
    assert "savepoint" in refused.value.hint
    assert checkpoint.entries == {0: "plan 0"}, "nothing is changed"


def test_a_first_start() -> None:
    checkpoint = FakeCheckpoint({}, [])
    assert run(checkpoint, state([])) == []
    assert checkpoint.entries == {}


def test_all_done() -> None:
    entries = {0: "plan 0", 1: "plan 1"}
    checkpoint = FakeCheckpoint(entries, [0, 1])
    assert run(checkpoint, state([0, 1], committed=1)) == []
    assert checkpoint.entries == entries


def test_matching_entry_of_the_epoch_in_doubt_stays() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 1: "plan 1"}, [0])
    assert run(checkpoint, state([0, 1], committed=0)) == []


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", entry(), entry("-"), entry('{"t": {"0"')])
def test_entry_without_a_plan_is_removed(text: str) -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 1: text}, [0])
    assert run(checkpoint, state([0], committed=0)) == ["removed offsets/1: it was not planned"]
    assert checkpoint.entries == {0: "plan 0"}


def test_valid_entry_of_the_first_epoch_stays() -> None:
    checkpoint = FakeCheckpoint({0: entry("-")}, [])
    assert run(checkpoint, state([])) == []
    assert checkpoint.entries == {0: entry("-")}
    assert checkpoint.state


def test_truncated_entry_of_the_first_epoch_is_removed() -> None:
    """Spark refuses a new checkpoint that has state."""
    checkpoint = FakeCheckpoint({0: "v1"}, [])
    assert run(checkpoint, state([])) == ["removed offsets/0: it was not planned"]
    assert checkpoint.entries == {}
    assert not checkpoint.state


@pytest.mark.parametrize("there", [None, "a zombie's"])
def test_entry_that_differs_from_the_plan_is_restored(there: str | None) -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", **({1: there} if there else {})}, [0])
    assert run(checkpoint, state([0, 1], committed=0)) == ["restored offsets/1 from the plan"]
    assert checkpoint.entries == {0: "plan 0", 1: "plan 1"}


def test_epoch_that_spark_has_not_committed_is_replayed() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0"}, [0])
    assert run(checkpoint, state([0, 1], committed=1)) == ["restored offsets/1 from the plan"]


def test_entries_beyond_the_epoch_in_doubt_are_removed() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 1: "plan 1", 2: "x", 3: "y"}, [0])
    assert run(checkpoint, state([0, 1], committed=0)) == ["removed offsets/2", "removed offsets/3"]
    assert checkpoint.entries == {0: "plan 0", 1: "plan 1"}


def test_entries_lost_in_a_host_crash_are_restored() -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 3: "plan 3"}, [0])
    assert run(checkpoint, state([0, 1, 2, 3], committed=2)) == [
        "restored offsets/1 from the plan",
        "removed offsets/3",
    ]
    assert checkpoint.entries == {0: "plan 0", 1: "plan 1"}


def test_an_empty_checkpoint_under_a_log_that_holds_all_plans() -> None:
    checkpoint = FakeCheckpoint({}, [])
    assert run(checkpoint, state([0, 1], committed=1)) == ["restored offsets/0 from the plan"]


def test_a_deleted_checkpoint_gets_metadata_beside_its_first_entry() -> None:
    """Spark refuses offsets without ``metadata`` (STREAMING_CHECKPOINT_MISSING_METADATA_FILE)."""
    checkpoint = FakeCheckpoint({}, [])
    checkpoint.metadata = False
    assert run(checkpoint, state([0, 1], committed=1)) == [
        "restored offsets/0 from the plan",
        "restored metadata with a new id",
    ]
    assert checkpoint.metadata


def test_a_first_start_leaves_metadata_to_spark() -> None:
    checkpoint = FakeCheckpoint({}, [])
    checkpoint.metadata = False
    assert run(checkpoint, state([])) == []
    assert not checkpoint.metadata


@pytest.mark.parametrize(("planned", "committed"), [([5], 4), ([], 3), ([2, 3], 1)])
def test_a_checkpoint_too_old_for_the_log(planned: list[int], committed: int) -> None:
    checkpoint = FakeCheckpoint({0: "plan 0", 9: "kept"}, [0])
    with pytest.raises(CheckpointMismatch, match="no longer holds the plan of 1"):
        run(checkpoint, state(planned, committed))
    assert checkpoint.entries == {0: "plan 0", 9: "kept"}  # nothing was touched


@pytest.mark.parametrize("committed", [-1, 1])
def test_log_with_fewer_commits_than_the_checkpoint_is_refused(committed: int) -> None:
    checkpoint = FakeCheckpoint({2: "plan 2"}, [2])
    with pytest.raises(CausalLogDamaged, match="committed epoch 2") as refused:
        run(checkpoint, state([2], committed))
    assert refused.value.hint
    assert checkpoint.entries == {2: "plan 2"}


def test_plans_of_other_queries_are_ignored() -> None:
    assert run(FakeCheckpoint({}, []), state([0, 1], committed=1, query="other")) == []


def planned(topic: str, epoch: int, committed: int) -> ControlState:
    scan = (InputSlice("range", topic, 0, 0, 5),)
    plan = Plan(OWNER, "q", epoch, scan, (scan,), (1,), {}, 0, "code", "", 0)
    return ControlState(plans={("q", epoch): (1, plan)}, committed={"q": committed} if committed >= 0 else {})


@pytest.mark.parametrize(
    ("topic", "committed", "partial", "refused"),
    [
        ("again", 1, False, "is published, but not in the checkpoint"),
        ("other", 1, False, ""),  # the claim of the new lineage keeps it
        ("again", 0, True, "readers may have a part of it"),
        ("other", 0, True, "readers may have a part of it"),  # the new lineage would publish it again
        ("again", 0, False, ""),
    ],
)
def test_a_part_of_an_epoch_that_readers_have_is_not_published_again(
    topic: str, committed: int, partial: bool, refused: str
) -> None:
    checkpoint = cast("CheckpointDirectory", FakeCheckpoint({0: "plan 0", 1: "plan 1"}, [0]))
    log = planned(topic, 1, committed)
    if not refused:
        check_restart(checkpoint, "q", log, ["again"], partial=partial)
        return
    with pytest.raises(CheckpointMismatch, match=refused) as error:
        check_restart(checkpoint, "q", log, ["again"], partial=partial)
    assert "a new --checkpoint and a new output topic" in error.value.hint


def test_a_new_checkpoint_is_the_way_on_although_the_log_holds_the_first_plan() -> None:
    checkpoint = cast("CheckpointDirectory", FakeCheckpoint({}, []))
    check_restart(checkpoint, "q", planned("again", 0, 7), ["again"], partial=True)


def test_epoch_time() -> None:
    assert epoch_time(entry("{}", at=42)) == 42


def test_progress() -> None:
    text = entry('{"in":{"0":5,"10":7},"more":{"0":0}}', "-", '{"in":{"1":3},"b":{"0":1}}')
    assert progress_of(text) == {"in": {0: 5, 10: 7, 1: 3}, "more": {0: 0}, "b": {0: 1}}


@pytest.mark.parametrize("source", ["-", "17", '{"offset":3}', "[1]"])
def test_progress_ignores_other_sources(source: str) -> None:
    assert progress_of(entry(source)) == {}
