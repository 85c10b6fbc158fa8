"""What a Kafka source may be told to read; without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.errors import SpecError
from clonos.job import JobContext, job
from clonos.settings import KafkaSettings
from clonos_connectors.kafka import PADDING_TOPIC, KafkaSource

EVERYTHING = {"orders": {0: 5, 1: 6}, "payments": {0: 7}, PADDING_TOPIC: {0: 0}}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topics": ("a",), "pattern": "b"},
        {"topics": ("a",), "assign": {"b": (0,)}},
        {"pattern": "a", "assign": {"b": (0,)}},
    ],
)
def test_exactly_one_of_three(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="exactly one"):
        KafkaSource(given.pop("topics", ()), **given)


@pytest.mark.parametrize("given", [{"topics": ("a", "")}, {"pattern": ""}, {"assign": {}}, {"assign": {"a": ()}}])
def test_what_reads_nothing(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="names no topic"):
        KafkaSource(given.pop("topics", ()), **given)


@pytest.mark.parametrize(
    ("source", "mine"),
    [
        (KafkaSource(("orders",)), {"orders"}),
        (KafkaSource(assign={"orders": (1,)}), {"orders"}),
        (KafkaSource(pattern="o.*"), {"orders", "payments"}),
    ],
)
def test_progress_without_the_padding(source: KafkaSource, mine: set[str]) -> None:
    """A pattern's topics are those of the query's progress: another source's are shown in the same group."""
    assert set(source._read(EVERYTHING)) == mine


def test_reserved_options_name_the_argument() -> None:
    for option, argument in (("subscribePattern", "pattern="), ("assign", "assign=")):
        with pytest.raises(SpecError) as refused:
            KafkaSource(("a",), options={option: "x"})
        assert argument in refused.value.hint


def test_the_context_passes_all_three_on() -> None:
    made = job(name="a")(lambda ctx: None)
    context = JobContext(None, made.spec, KafkaSettings())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="exactly one"):
        context.source("a", pattern="b", assign={"c": [0]})
    with pytest.raises(SpecError, match="exactly one"):
        context.source()
