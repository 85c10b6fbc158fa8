"""One broker and one PostgreSQL for the whole session; topics and databases of their own for every test.

`--kafka` says where brokers run: `embedded` (processes of this machine, the default) or `container` (testcontainers).
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import settings

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import Stack, eventually
from support.brokers.interface import KafkaCluster
from support.postgres import PostgresServer
from support.reporting import left_out, summarise, used

# A busy machine may take longer than 200 ms for an example.
settings.register_profile("clonos", deadline=None)
settings.load_profile("clonos")
# The optimising compiler pays off in minutes, and most JVMs of the tests run for seconds: a quarter less CPU time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
# Without bytecode in the cache, each of hundreds of Python processes compiles what it imports: two seconds of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session")
def start_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], AbstractContextManager[KafkaCluster]]:
    """Starts clusters of N brokers on the backend of `--kafka`."""

    @contextmanager
    def start(brokers: int) -> Iterator[KafkaCluster]:
        cluster: KafkaCluster
        if pytestconfig.getoption("--kafka") == "container":
            from support.brokers.container import ContainerCluster

            cluster = ContainerCluster(brokers=brokers)
        else:
            from support.brokers.embedded import EmbeddedCluster

            cluster = EmbeddedCluster(tmp_path_factory.mktemp("kafka"), brokers=brokers)
        cluster.start()
        used(pytestconfig, "Kafka", cluster.description)
        try:
            yield cluster
        finally:
            cluster.stop()

    return start


@pytest.fixture(scope="session")
def kafka(start_cluster: Callable[[int], AbstractContextManager[KafkaCluster]]) -> Iterator[KafkaSettings]:
    """A real broker."""
    with start_cluster(1) as cluster:
        yield cluster.kafka


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A real PostgreSQL. A test that stops it must start it again."""
    server = PostgresServer()
    try:
        server.start()
        used(pytestconfig, "PostgreSQL", server.description)
        yield server
    finally:
        server.remove()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A local platform that is not started yet; it is stopped at the end."""
    stack = Stack(tmp_path / "home")
    yield stack
    stack.down()


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of asynchronous tests."""
    return "asyncio"


@pytest.fixture
def name() -> str:
    """A job name that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def make_topic(kafka: KafkaSettings) -> Callable[..., str]:
    """Creates topics."""
    admin = AdminClient(client_config(kafka))

    def make(partitions: int = 1, prefix: str = "topic", *, exactly: str = "", **config: str) -> str:
        topic = exactly or f"{prefix}-{secrets.token_hex(4)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        created: Future[Any] = admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic]
        created.result(60)
        # The controller answers before each broker knows the topic.
        eventually(lambda: _has_leaders(admin, topic), f"the partitions of {topic} have leaders", timeout_s=60)
        return topic

    return make


def _has_leaders(admin: AdminClient, topic: str) -> bool:
    metadata = admin.list_topics(topic, timeout=60).topics[topic]
    return metadata.error is None and all(partition.leader >= 0 for partition in metadata.partitions.values())


KINDS = ("core", "turn", "ci", "full")
TURNS = 16  # CI runs the tests of one turn; a commit's hash decides which (docs/testing.md)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kafka", choices=("embedded", "container"), default="embedded", help="where brokers run")
    parser.addoption(
        "--tests",
        choices=("core", "ci", "all"),
        default="all",
        help="core: without the tests marked ci or full (`make test`); ci: without those marked full (CI)",
    )
    parser.addoption(
        "--turn",
        type=lambda text: int(text, 16),
        default=0,
        help=f"with --tests ci: a hexadecimal number, modulo {TURNS} the turn whose tests run (CI: the commit's hash)",
    )
    parser.addoption(
        "--every-point",
        action="store_true",
        help="chaos tests: every point and twenty races; property tests: four times as many requests (slow)",
    )
    parser.addoption("--kills", type=int, default=10, help="random kills of each live job in tests/chaos")
    parser.addoption("--seed", type=int, default=secrets.randbits(32), help="of the moments of random kills")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_containers = config.getoption("--kafka") == "container"
    selection = config.getoption("--tests")
    turn = config.getoption("--turn") % TURNS

    def kind(item: pytest.Item) -> str:
        """The closest of the marks: a test's own has priority over its module's."""
        marks = [(node, mark) for node, mark in item.iter_markers_with_node() if mark.name in KINDS]
        closest = [mark for node, mark in marks if node is marks[0][0]]
        mark = min(closest, key=lambda mark: KINDS.index(mark.name), default=None)
        if mark is None or mark.name != "turn":
            return mark.name if mark else "core"
        numbers = mark.args or (zlib.crc32(item.nodeid.encode()) % TURNS,)
        if not set(numbers) <= set(range(TURNS)):
            raise pytest.UsageError(f"{item.nodeid}: turn{numbers} never comes; use turn(0) to turn({TURNS - 1}).")
        return "ci" if turn in numbers else "full"

    for mark, out in (
        ("embedded", [item for item in items if in_containers and item.get_closest_marker("embedded")]),
        ("engine", [item for item in items if not in_containers and item.get_closest_marker("engine")]),
        ("ci", [item for item in items if selection == "core" and kind(item) == "ci"]),
        ("full", [item for item in items if selection != "all" and kind(item) == "full"]),
    ):
        if out:
            config.hook.pytest_deselected(items=out)
            items[:] = [item for item in items if item not in out]
            left_out(config, mark, len(out))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    summarise(terminalreporter, config)


@pytest.fixture
def moments(pytestconfig: pytest.Config) -> random.Random:
    """The moments of random kills; `--seed` repeats them."""
    seed = pytestconfig.getoption("--seed")
    print("--seed", seed, flush=True)
    return random.Random(seed)


@pytest.fixture(scope="session")
def every_point(request: pytest.FixtureRequest) -> bool:
    """Whether the chaos tests go through all points (`make chaos-full`) or a selection (`make test`)."""
    return bool(request.config.getoption("--every-point"))
