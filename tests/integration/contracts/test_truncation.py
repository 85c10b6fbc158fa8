"""Truncation of control on a real broker, with a query that rests."""

from __future__ import annotations

import pytest

from clonos.extend.sink import SinkEpoch
from clonos.log import truncation
from clonos.log.claiming import Claimant, claim
from clonos.log.records import EpochIdentity, EpochParts, InputSlice, Marker, Resolution
from clonos.log.topic import CONTROL, log_topic
from clonos.log.truncation import truncate
from clonos.settings import KafkaSettings
from support.planning import planned


@pytest.fixture
def soon_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "_OLD_EPOCHS", 2)


@pytest.mark.usefixtures("soon_old")
def test_a_resting_query_does_not_keep_the_records_of_a_busy_one(kafka: KafkaSettings, name: str) -> None:
    own = claim(kafka, name)
    planned(own, "resting", 0)
    planned(own, "in-doubt", 0, committed=False)
    decision = Resolution(own.owner, "in-doubt", 0, "keep", "c")
    own.state.take(own.control.append(decision), decision)
    parts = EpochParts(own.owner, "in-doubt", 0, (b"part",), 1, b"digest")
    own.state.take(own.control.append(parts), parts)
    first, _ = own.state.plans["in-doubt", 0]
    for epoch in range(30):
        planned(own, "busy", epoch)
        if epoch in (14, 29):  # the claim that the first truncation renews bounds the second
            truncate(own, retained=2)
    low, high = own.reader.bounds(CONTROL)
    assert first < low
    assert high - low < 15 * 4 + 30
    after = claim(kafka, name).state
    assert set(after.plans) >= {("resting", 0), ("in-doubt", 0), ("busy", 28), ("busy", 29)}
    assert ("busy", 0) not in after.plans
    assert after.committed == {"resting": 0, "busy": 29}
    assert after.commits["resting"].records == 1
    assert after.resolutions["in-doubt", 0].action == "keep"
    assert after.parts["in-doubt", 0].payloads == (b"part",)
    assert after.plans["resting", 0][1].input_slices == (InputSlice("range", "in", 0, 0, 1),)


@pytest.mark.usefixtures("soon_old")
def test_a_renewed_decision_to_publish_again_is_carried_out_once(kafka: KafkaSettings, name: str) -> None:
    """Two truncations renew the decision while its epoch is replayed. A crash before the epoch's commit follows."""
    one = claim(kafka, name)
    planned(one, "in-doubt", 0, committed=False)
    decision = Resolution(one.owner, "in-doubt", 0, "republish", "c")
    one.state.take(one.control.append(decision), decision)
    marker = Marker(one.owner, "in-doubt", 0, 0, InputSlice("range", "in", 0, 0, 1), 1, b"")  # published again
    two = claim(kafka, name)
    for epoch in range(30):
        planned(two, "busy", epoch)
        if epoch in (14, 29):
            truncate(two, retained=2)
    for state in (two.state, claim(kafka, name).state):
        assert state.plans["in-doubt", 0][1].owner == two.owner, "the plan was renewed, and so was the decision"
        identity = EpochIdentity(name, log_topic(name), "in-doubt", 0, two.owner, replay=True)
        epoch_in_doubt = SinkEpoch(identity, kafka, (), resolution=state.resolutions["in-doubt", 0])
        assert epoch_in_doubt.counts(marker)


@pytest.mark.usefixtures("soon_old")
def test_truncation_again_and_again_stays_short(kafka: KafkaSettings, name: str) -> None:
    own = claim(kafka, name)
    planned(own, "resting", 0)
    lengths = []
    for round_ in range(4):
        for epoch in range(round_ * 20, round_ * 20 + 20):
            planned(own, "busy", epoch)
        truncate(own, retained=2)
        low, high = own.reader.bounds(CONTROL)
        lengths.append(high - low)
    assert max(lengths) < 20 * 4 + 30, lengths
    assert claim(kafka, name).state.plan("resting", 0) is not None


@pytest.mark.usefixtures("soon_old")
def test_plans_of_a_dropped_query_go(kafka: KafkaSettings, name: str) -> None:
    planned(claim(kafka, name), "removed", 0)
    own = Claimant(kafka, name).claim(sinks=["busy"], dropped=["removed"])
    for epoch in range(30):
        planned(own, "busy", epoch)
    truncate(own, retained=2)
    assert set(own.state.plans) == {("busy", 28), ("busy", 29)}
    assert "removed" not in {query for query, _ in claim(kafka, name).state.plans}
