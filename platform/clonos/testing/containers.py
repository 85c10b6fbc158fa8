"""Kafka in a container for the tests of jobs, and a Spark session that uses it, as fixtures of pytest.

The fixtures need a Docker engine on this machine and the packages of ``clonos[testing]``. This line in the
``conftest.py`` of a test folder defines the fixtures `kafka` and `spark`::

    pytest_plugins = ["clonos.testing.containers"]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import pytest
from pyspark.sql import SparkSession
from testcontainers.core.container import DockerContainer

from clonos.causal.epoch_scope import worker_environment
from clonos.embedded.cluster import random_id
from clonos.embedded.layout import HOST, Ports, free_ports, server_properties
from clonos.kafka import await_brokers
from clonos.settings import KafkaSettings
from clonos.spark.session import build_session

# The version that Clonos is tested with.
IMAGE: Final = "apache/kafka:4.3.1"
IMAGE_VARIABLE: Final = "CLONOS_KAFKA_IMAGE"
DATA: Final = Path("/var/lib/kafka/data")
_INSIDE: Final = Ports(client=9092, controller=9093, internal=9094)
_READY_S: Final = 120.0
_LAST_LINES: Final = 15


class KafkaContainer:
    """One broker of Apache Kafka in a container, with the settings of the embedded Kafka; a context manager.

    Args:
        image: An image that ``KAFKA_…`` variables configure, like ``apache/kafka``. Default: the image in the
            environment variable ``CLONOS_KAFKA_IMAGE``, or else `IMAGE`.

    Attributes:
        kafka: Settings of clients on this machine.

    Raises:
        BrokerUnavailable: (on entry) The broker did not answer within two minutes; a note has the end of its log.

    Example::

        with KafkaContainer() as container:
            run_through(job, spark=spark, kafka=container.kafka, checkpoint=tmp_path)
    """

    def __init__(self, image: str = "") -> None:
        # The port is chosen before the start, because the broker advertises it.
        (port,) = free_ports(1)
        address = f"{HOST}:{port}"
        self.kafka = KafkaSettings(bootstrap_servers=address)
        properties = server_properties(0, [_INSIDE], DATA, client=KafkaSettings(), extra={})
        inside = {"CLIENT": _INSIDE.client, "INTERNAL": _INSIDE.internal, "CONTROLLER": _INSIDE.controller}
        properties |= {
            "listeners": ",".join(f"{name}://:{number}" for name, number in inside.items()),
            "advertised.listeners": f"CLIENT://{address},INTERNAL://localhost:{_INSIDE.internal}",
            "controller.quorum.voters": f"0@localhost:{_INSIDE.controller}",
        }
        variables = {**image_variables(properties), "CLUSTER_ID": random_id(), "KAFKA_HEAP_OPTS": "-Xmx384m"}
        self._container = DockerContainer(image or os.environ.get(IMAGE_VARIABLE) or IMAGE, env=variables)
        # testcontainers' own method binds on every interface.
        self._container.ports[f"{_INSIDE.client}/tcp"] = (HOST, port)  # type: ignore[assignment]

    def __enter__(self) -> Self:
        """Start the broker, and wait until it answers."""
        self._container.start()
        try:
            await_brokers(self.kafka, timeout_s=_READY_S)
        except BaseException as error:
            said = self._container.get_wrapped_container().logs(tail=_LAST_LINES).decode(errors="replace")
            error.add_note(f"The end of the container's log:\n{said}")
            self._container.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        """Remove the container and its data."""
        self._container.stop()


def image_variables(properties: Mapping[str, str]) -> dict[str, str]:
    """Broker settings as the environment variables of the image.

    Example:
        >>> image_variables({"node.id": "0"})
        {'KAFKA_NODE_ID': '0'}
    """
    spelt = {name.replace("_", "__").replace("-", "___").replace(".", "_").upper(): v for name, v in properties.items()}
    return {f"KAFKA_{name}": value for name, value in spelt.items()}


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaSettings]:
    """Kafka in a container, for all tests of the run."""
    with KafkaContainer() as container:
        yield container.kafka


@pytest.fixture(scope="session")
def spark(kafka: KafkaSettings) -> Iterator[SparkSession]:
    """Yield a Spark session whose Python workers use `kafka`; a process can have only one."""
    os.environ.update(worker_environment(kafka))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with build_session("tests", master="local[4]") as session:
        yield session.spark
