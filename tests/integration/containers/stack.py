"""The platform of ``docker/compose.yaml``, as a separate project on the container engine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from clonos.embedded.layout import free_ports

ROOT: Final = Path(__file__).parents[3]
_PROJECT: Final = "com.docker.compose.project"
_PREFIX: Final = "clonos-test"
_KINDS: Final = ("container", "volume", "network")


@functools.cache
def compose_command() -> list[str]:
    """The command of Docker Compose: its plugin, or else the program in our environment."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return ["docker", "compose"] if plugin.returncode == 0 else [str(Path(sys.executable).with_name("docker-compose"))]


def images() -> dict[str, str]:
    """Build missing images; return the variables that name the images."""
    build = subprocess.run([sys.executable, str(ROOT / "docker" / "images.py")], stdout=subprocess.PIPE, text=True)
    assert build.returncode == 0, "the images cannot be built"
    return dict(line.split("=", 1) for line in build.stdout.splitlines())


class Stack:
    """One compose project."""

    def __init__(self, images: dict[str, str], folder: Path) -> None:
        process = psutil.Process()
        self.images = sorted(images.values())
        self.project = f"{_PREFIX}-{process.pid}-{int(process.create_time() * 100)}"
        ports = free_ports(7)
        self.apis = [f"https://127.0.0.1:{port}" for port in ports[:2]]
        self.kafka = ",".join(f"127.0.0.1:{port}" for port in ports[2:5])
        self.prometheus = f"http://127.0.0.1:{ports[5]}"
        self.spark_ui = f"http://127.0.0.1:{ports[6]}"
        self.ca = folder / "ca.pem"
        names = ("PORT_1", "PORT_2", "KAFKA_PORT_1", "KAFKA_PORT_2", "KAFKA_PORT_3", "PROMETHEUS_PORT", "SPARK_PORT")
        variables = {**images, **{f"CLONOS_{name}": str(port) for name, port in zip(names, ports, strict=True)}}
        self._file = folder / "compose.env"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))

    def compose(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """Run a compose command; return its standard output."""
        command = [*compose_command(), "--project-name", self.project, "--env-file", str(self._file)]
        command += ["--file", str(ROOT / "docker" / "compose.yaml"), "--profile", "example", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> None:
        """Start all services; return when all are healthy."""
        sweep()
        self._up()
        self.ca.write_text(self.read("control-plane-1", "/run/clonos/ca/ca.pem"))

    def add_spark(self) -> None:
        """Start the Spark cluster beside the other services; return when its processes are healthy."""
        self._up("--profile", "spark")

    def _up(self, *profile: str) -> None:
        try:
            self.compose(*profile, "up", "--detach", "--no-build", "--wait", "--wait-timeout", "240", timeout_s=300)
        except AssertionError as error:
            error.add_note(self.compose(*profile, "logs", "--tail", "15", "--no-color"))
            raise

    def read(self, service: str, file: str) -> str:
        """The content of a file in a running service."""
        return self.compose("exec", "--no-TTY", service, "cat", file)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The current result of a Prometheus query."""
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expression}, timeout=60).json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self.project}-{service}-1"

    def kill(self, service: str) -> None:
        """Send SIGKILL to a service's container."""
        docker("kill", self.container(service))

    def stop(self, service: str) -> float:
        """Send SIGTERM to a service's container; return the seconds until it stopped."""
        started = time.monotonic()
        docker("stop", "--time", "30", self.container(service))
        return time.monotonic() - started

    def inspect(self) -> list[dict[str, Any]]:
        """The engine's description of each container of the project."""
        containers: list[dict[str, Any]] = json.loads(docker("inspect", *_of("container", self.project)))
        return containers

    def down(self) -> None:
        """Remove all containers, volumes and networks of the project."""
        remove(self.project)
        assert not any(_of(kind, self.project) for kind in _KINDS)


@contextmanager
def stack() -> Iterator[Stack]:
    """Start the platform; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="clonos-compose-") as folder:
        platform = Stack(images(), Path(folder))
        with ExitStack() as after:
            after.callback(platform.down)
            platform.up()
            yield platform


def docker(*arguments: str) -> str:
    """Run a docker command; return its standard output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def remove(project: str) -> None:
    """Remove all objects with the label of a project."""
    for kind, how in zip(_KINDS, (("rm", "--force", "--volumes"), ("rm", "--force"), ("rm",)), strict=True):
        if ids := _of(kind, project):
            docker(kind, *how, *ids)


def sweep() -> None:
    """Remove the projects of test processes that have exited."""
    for kind in _KINDS:
        listed = docker(kind, "ls", "--filter", f"label={_PROJECT}", "--format", f'{{{{.Label "{_PROJECT}"}}}}')
        for project in set(listed.split()):
            if project.startswith(_PREFIX + "-") and not _alive(project):
                remove(project)


def _of(kind: str, project: str) -> list[str]:
    every = ["--all"] if kind == "container" else []
    return docker(kind, "ls", *every, "--quiet", "--filter", f"label={_PROJECT}={project}").split()


def _alive(project: str) -> bool:
    pid, created = project.removeprefix(_PREFIX + "-").split("-")
    try:
        return str(int(psutil.Process(int(pid)).create_time() * 100)) == created
    except psutil.NoSuchProcess:
        return False
