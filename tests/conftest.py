"""One broker for the whole session, and topics of their own for every test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.kafka import client_config
from clonos.settings import KafkaSettings, Settings


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """A real broker."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), jars=ensure_jars(Settings())) as cluster:
        yield cluster.kafka


@pytest.fixture
def name() -> str:
    """A job name that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def make_topic(kafka: KafkaSettings) -> Callable[..., str]:
    """Creates topics."""
    admin = AdminClient(client_config(kafka))

    def make(partitions: int = 1, prefix: str = "topic", **config: str) -> str:
        topic = f"{prefix}-{secrets.token_hex(4)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        made: Future[Any] = admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic]
        made.result(15)
        return topic

    return make


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-point", action="store_true", help="chaos tests: every point and twenty races (slow)")


@pytest.fixture(scope="session")
def every_point(request: pytest.FixtureRequest) -> bool:
    """Whether the chaos tests go through all points (`make chaos-full`) or a selection (`make test`)."""
    return bool(request.config.getoption("--every-point"))
