"""Brokers in containers of a Docker engine on this machine, by testcontainers."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import psutil
from docker.models.containers import Container
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from clonos.embedded.cluster import random_id
from clonos.embedded.layout import HOST, Ports, free_ports, server_properties
from clonos.kafka import await_brokers
from clonos.settings import KafkaSettings
from clonos.testing.containers import DATA, IMAGE_VARIABLE, image_variables
from support.brokers.interface import HEAP_MB

_BUILD = Path(__file__).parents[3] / "docker" / "kafka" / "build.py"
_CLIENT, _INTERNAL, _CONTROLLER = 9092, 9094, 9093
_READY_S = 60.0
_PULL_S = 20.0
# The owner of a container: a later test process removes the containers of a killed one.
_LABEL = "clonos.tests.owner"


class ContainerCluster:
    """Brokers in containers, on a network of their own.

    ``CLONOS_KAFKA_IMAGE`` names the image, else it is ours (``docker/kafka``), which is built if need be. Either is
    configured by ``KAFKA_*`` variables, as the published image is.
    """

    def __init__(self, *, brokers: int = 1) -> None:
        self._image = kafka_image()
        self._ports = free_ports(brokers)
        self._cluster_id = random_id()
        self._network: Network | None = None
        self._containers: list[DockerContainer] = []

    @property
    def description(self) -> str:
        return f"container (testcontainers {importlib.metadata.version('testcontainers')}, image {self._image})"

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers=",".join(map(_address, self._ports)))

    def start(self) -> None:
        _settle_reaper()
        _sweep()
        try:
            self._network = Network(docker_network_kw={"labels": _labels()}).create()
            for node, port in enumerate(self._ports):
                container = DockerContainer(
                    self._image,
                    env=self._environment(node),
                    network=self._network,
                    network_aliases=[_name(node)],
                    labels=_labels(),
                )
                # Bound beforehand: a port that Docker picks changes when a container is started again, and the
                # broker would advertise the old one. (testcontainers' own method binds on every interface.)
                container.ports[f"{_CLIENT}/tcp"] = (HOST, port)  # type: ignore[assignment]
                self._containers.append(container)
                container.start()
            await_brokers(self.kafka, brokers=len(self._ports), timeout_s=_READY_S)
        except BaseException as error:
            error.add_note(self._last_lines())
            self.stop()
            raise

    def stop(self) -> None:
        for container in self._containers:
            container.stop()
        self._containers.clear()
        if self._network is not None:
            self._network.remove()
            self._network = None

    def kill(self, node: int) -> None:
        container = self._container(node)
        container.kill()
        container.wait()

    def restart(self, node: int) -> None:
        self._container(node).start()
        # Asked at the broker itself: it lists itself only once it takes part.
        own = KafkaSettings(bootstrap_servers=_address(self._ports[node]))
        running = sum(self._status(each) == "running" for each in range(len(self._ports)))
        await_brokers(own, brokers=running, timeout_s=_READY_S)

    def pause(self, node: int) -> None:
        self._container(node).pause()

    def unpause(self, node: int) -> None:
        self._container(node).unpause()

    def _container(self, node: int) -> Container:
        return self._containers[node].get_wrapped_container()

    def _status(self, node: int) -> str:
        container = self._container(node)
        container.reload()
        return str(container.status)

    def _environment(self, node: int) -> dict[str, str]:
        """The embedded cluster's settings, with addresses as they are here."""
        inside = [Ports(_CLIENT, _CONTROLLER, _INTERNAL)] * len(self._ports)
        properties = server_properties(node, inside, DATA, client=KafkaSettings(), extra={})
        voters = ",".join(f"{each}@{_name(each)}:{_CONTROLLER}" for each in range(len(self._ports)))
        properties |= {
            "listeners": f"CLIENT://:{_CLIENT},INTERNAL://:{_INTERNAL},CONTROLLER://:{_CONTROLLER}",
            "advertised.listeners": f"CLIENT://{_address(self._ports[node])},INTERNAL://{_name(node)}:{_INTERNAL}",
            "controller.quorum.voters": voters,
        }
        return {
            **image_variables(properties),
            "CLUSTER_ID": self._cluster_id,
            "KAFKA_HEAP_OPTS": f"-Xms128m -Xmx{HEAP_MB}m",
            # A container that is started again may have another address; Java would remember the old one for 30 s.
            "KAFKA_OPTS": "-Dsun.net.inetaddr.ttl=1",
        }

    def _last_lines(self, count: int = 15) -> str:
        lines: list[str] = []
        for node, container in enumerate(self._containers):
            if container.status != "not_started":
                said = container.get_wrapped_container().logs(tail=count).decode(errors="replace")
                lines += [f"broker {node}: {line}" for line in said.splitlines()]
        return "\n".join(lines)


def _name(node: int) -> str:
    return f"kafka-{node}"


def _address(port: int) -> str:
    return f"{HOST}:{port}"


@functools.cache
def kafka_image() -> str:
    """The name of the image to run."""
    chosen = os.environ.get(IMAGE_VARIABLE)
    if chosen:
        return chosen
    built = subprocess.run([sys.executable, str(_BUILD)], capture_output=True, text=True)
    if built.returncode:
        raise RuntimeError(f"There is no image of Kafka: {built.stderr}")
    return built.stdout.strip()


@functools.cache
def _settle_reaper() -> None:
    """Disable testcontainers' reaper if its image is unavailable; the next test run removes leftover containers."""
    if testcontainers_config.ryuk_disabled:
        return
    image = testcontainers_config.ryuk_image
    for command in (["docker", "image", "inspect", image], ["docker", "pull", "--quiet", image]):
        try:
            if not subprocess.run(command, capture_output=True, timeout=_PULL_S).returncode:
                return
        except subprocess.TimeoutExpired:
            pass
    testcontainers_config.ryuk_disabled = True


def _labels() -> dict[str, str]:
    return {_LABEL: f"{os.getpid()}@{psutil.Process().create_time():.2f}"}


def _sweep() -> None:
    """Remove the containers and networks of test processes that have exited."""
    engine = DockerClient().client
    try:
        for container in engine.containers.list(all=True, filters={"label": _LABEL}):
            if not _alive(container.labels[_LABEL]):
                container.remove(force=True, v=True)
        for network in engine.networks.list(filters={"label": _LABEL}):
            if not _alive(network.attrs["Labels"][_LABEL]):
                network.remove()
    finally:
        engine.close()


def _alive(owner: str) -> bool:
    pid, _, created = owner.partition("@")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == created
    except psutil.NoSuchProcess:
        return False
