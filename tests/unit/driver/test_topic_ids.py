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
    check_source_topics(known, {"b": "3"}, job="j")
    check_deleted_topics(known, {"b": "3", "c": "4"})
    assert deleted(deleted("2")) == deleted("2")


def test_a_forgotten_topic_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"a": "1", "b": "2"}
    monkeypatch.setattr(
        topic_ids_module, "topic_ids", lambda _kafka, names: {name: found[name] for name in names & found.keys()}
    )
    ids = TopicIds(KafkaSettings())
    assert ids.of(["a", "b"]) == {"a": "1", "b": "2"}
    del found["a"]
    ids.forget(["a"])
    found["a"] = "3"
    assert ids.of(["a", "b"]) == {"a": "3", "b": "2"}


def test_a_topic_that_was_shown_as_deleted_is_not_read_again() -> None:
    """Its records would be published a second time."""
    with pytest.raises(SourceOffsetsExpired, match=r"\['b'\]"):
        check_deleted_topics({"b": deleted("2")}, {"b": "2"})
