"""Arguments of the Kafka source, without a broker."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from clonos.errors import SpecError
from clonos.jobs.context import JobContext
from clonos.jobs.definition import job
from clonos.settings import KafkaSettings
from clonos_connectors.kafka import KafkaSource
from support.busy import within

EVERYTHING = {"orders": {0: 5, 1: 6}, "payments": {0: 7}}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topics": ("a",), "pattern": "b"},
        {"topics": ("a",), "assign": {"b": (0,)}},
        {"pattern": "a", "assign": {"b": (0,)}},
    ],
)
def test_source_needs_exactly_one_selection(arguments: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="exactly one"):
        KafkaSource(arguments.pop("topics", ()), **arguments)


@pytest.mark.parametrize("arguments", [{"topics": ("a", "")}, {"pattern": ""}, {"assign": {}}, {"assign": {"a": ()}}])
def test_empty_selection_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="names no topic"):
        KafkaSource(arguments.pop("topics", ()), **arguments)


@pytest.mark.parametrize(
    ("source", "topics"),
    [
        (KafkaSource(("orders",)), {"orders"}),
        (KafkaSource(assign={"orders": (1,)}), {"orders"}),
        (KafkaSource(pattern="o.*"), {"orders", "payments"}),
    ],
)
def test_progress_is_that_of_the_sources_own_topics(source: KafkaSource, topics: set[str]) -> None:
    """A pattern includes all topics of the query's progress, topics of other sources too."""
    assert set(source._read(EVERYTHING)) == topics


def test_reserved_option_error_names_the_argument() -> None:
    for option, argument in (
        ("subscribePattern", "pattern="),
        ("assign", "assign="),
        ("kafka.isolation.level", "aborted"),
    ):
        with pytest.raises(SpecError) as refused:
            KafkaSource(("a",), options={option: "x"})
        assert argument in refused.value.hint


def test_options_of_spark_and_kafka_pass() -> None:
    KafkaSource(("a",), options={"minpartitions": "5", "kafka.max.poll.records": "5", "groupIdPrefix": "x"})


def test_context_source_passes_all_selections_on() -> None:
    context = JobContext(None, job(name="a")(lambda ctx: None).spec, KafkaSettings())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="exactly one"):
        context.source("a", pattern="b", assign={"c": [0]})
    with pytest.raises(SpecError, match="exactly one"):
        context.source()


def test_a_process_ends_soon_although_its_last_progress_cannot_be_committed() -> None:
    """While Kafka is away, or refuses the group, librdkafka waits at the end of a consumer."""
    source = KafkaSource(("in",))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{unused.getsockname()[1]}")
        source.publish_progress(kafka, "clonos.orders.output", {"in": {0: 1}})
        with within(20.0):  # three seconds on an idle machine, and 45 without a limit
            del source
