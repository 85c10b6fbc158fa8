"""Ids of topics in plans: topics that were created again, and topics that the job left."""

from __future__ import annotations

import pytest

from clonos.driver import topic_ids as topic_ids_module
from clonos.driver.topic_ids import TopicIds, check_deleted_topics, check_source_topics, created_again, deleted
from clonos.errors import SourceOffsetsExpired
from clonos.settings import KafkaSettings


def test_a_topic_that_the_job_left_may_be_created_again() -> None:
    known = {"a": "1", "b": deleted("2")}
    assert created_again(known, {"a": "1", "b": "3", "c": "4"}) == []
    assert created_again(known, {"a": "9", "b": "3"}) == ["a"]
    check_source_topics(known, {"b": "3"})
    check_deleted_topics(known, {"b": "3", "c": "4"})
    assert deleted(deleted("2")) == deleted("2")


def test_a_forgotten_topic_does_not_change_the_mappings_that_a_check_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in another thread: it may be iterating over them."""
    monkeypatch.setattr(topic_ids_module, "topic_ids", lambda _kafka, names: dict.fromkeys(names & {"c"}, "3"))
    watch = TopicIds(KafkaSettings())
    watch._ids, watch._now = {"a": "1", "b": "2"}, {"a": "1"}
    before = iter(watch._ids.items()), iter(watch._now.items())
    watch.forget(["a"])
    assert watch.of(["c"]) == {"c": "3"}
    assert [dict(items) for items in before] == [{"a": "1", "b": "2"}, {"a": "1"}]
    assert (watch._ids, watch._now) == ({"b": "2", "c": "3"}, {})


def test_a_topic_that_was_shown_as_deleted_is_not_read_again() -> None:
    """Its records would be published a second time."""
    with pytest.raises(SourceOffsetsExpired, match=r"\['b'\]"):
        check_deleted_topics({"b": deleted("2")}, {"b": "2"})
