"""A control plane and hosts as processes; each host has a disk of its own, which is lost with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import psutil
from drivers import JOBS

from clonos.agent import AgentSettings
from clonos.client import Client
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, PlatformJob, eventually, processes_of_home
from clonos.testing.harness.platform import TIMEOUT_S
from clonos.testing.harness.processes import kill_together
from component.agent.hosts import HERE
from support.scripted import upload
from support.serving import ApiProcess

__all__ = ["TIMEOUT_S", "Host", "HostedJob", "Platform"]

LEASE_S: Final = 4.0


class Host:
    """An agent with its drivers, and a directory that only they use.

    Args:
        name: Its name, and its failure domain.
        folder: The host's disk: the agent's home, and the local files of its drivers and their Sparks.
        environment: The way to Kafka.
        settings: Of the agent.
    """

    def __init__(self, name: str, folder: Path, environment: dict[str, str], **settings: Any) -> None:
        self.name = name
        self._folder = folder
        local = folder / "local"
        local.mkdir(parents=True)
        token = folder / "token"
        token.write_text(settings.pop("token"))
        agent = AgentSettings(
            name=name,
            home=folder / "home",
            token_file=token,
            # An agent passes on no options of Java; see tests/conftest.py.
            driver_environment={
                "SPARK_LOCAL_DIRS": str(local),
                "TMPDIR": str(local),
                "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", ""),
            },
            **settings,
        )
        self._home = agent.home
        self.agent = ChildProcess(
            [sys.executable, str(HERE / "run_agent.py"), agent.model_dump_json()],
            {**environment, "CLONOS_HOME": str(agent.home)},
            folder.parent / f"{name}.log",
            own_settings=True,
        )

    def drivers(self) -> Iterator[psutil.Process]:
        """All processes of the host but the agent."""
        return (process for process, _run in processes_of_home(self._home) if process.pid != self.agent.pid)

    def signal_drivers(self, number: int) -> None:
        for process in self.drivers():
            process.send_signal(number)

    def pause(self) -> None:
        """Stop all its processes with SIGSTOP."""
        self.agent.pause()
        self.signal_drivers(signal.SIGSTOP)

    def lose(self) -> None:
        """Kill all its processes at once and delete its disk."""
        moved = self._folder.with_name(f"{self.name}-lost")
        kill_together(self.agent, also=list(self.drivers()))
        self._folder.rename(moved)
        self.agent.wait(60)
        eventually(self._empty, f"all processes of {self.name} exited")
        shutil.rmtree(moved)

    def _empty(self) -> bool:
        # A process that was forked during the first kill.
        return not kill_together(also=list(self.drivers())).processes

    def events(self, run: str) -> list[dict[str, Any]]:
        """The events of one of its drivers."""
        lines = (self._home / "agent" / self.name / "runs" / run / "events.jsonl").read_text().splitlines()
        return [json.loads(line.lstrip("\0")) for line in lines if line.endswith("}")]


class Platform:
    """A control plane, and any number of hosts that share one directory for checkpoints.

    Args:
        folder: An empty directory.
        kafka: The Kafka cluster.
    """

    def __init__(self, folder: Path, kafka: KafkaSettings) -> None:
        self._folder = folder
        self._kafka = kafka
        self.hosts: dict[str, Host] = {}
        (folder / "control").mkdir()
        self.control = self._serve(0)
        self.http = self.control.served.client()
        self.client = Client(self.control.served.url, self.control.served.admin)

    def _serve(self, port: int) -> ApiProcess:
        return ApiProcess(
            self._folder / "control",
            log=self._folder / "control.log",
            port=port,
            reconcile=True,
            shared_checkpoints=str(self._folder / "shared"),
            host_lease_s=LEASE_S,
            standby_heartbeat_s=1.0,  # several drivers share two cores: a slow heartbeat is not a failure here
            limits={"requests_per_s": 10_000, "burst": 100_000},
        )

    def restart(self) -> None:
        """Start the control plane again, at its address."""
        self.control.__exit__()
        self.control = self._serve(int(self.control.served.url.rsplit(":", 1)[1]))

    def add(self, name: str, *, slots: int) -> Host:
        """Start another host."""
        token = self.http.post("/tokens", json={"name": f"agent-{name}", "role": "agent", "host": name})
        assert token.status_code == 201, token.text
        self.hosts[name] = Host(
            name,
            self._folder / name,
            {"CLONOS_KAFKA__BOOTSTRAP_SERVERS": self._kafka.bootstrap_servers},
            api=self.control.served.url,
            slots=slots,
            token=token.json()["token"],
        )
        return self.hosts[name]

    def submit(self, name: str, params: dict[str, str], **standby: Any) -> HostedJob:
        """Run `points.py` with a standby; `standby` adds to its specification."""
        artifact = upload(self.http, (JOBS / "points.py").read_bytes())
        body = {
            "main": "job.py",
            "params": params,
            "master": "local[2]",
            "driver": {"memory": "512m"},
            "standby": {"replicas": 1, **standby},
        }
        spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}
        created = self.http.post("/jobs", json={"spec": spec, "artifact": artifact})
        assert created.status_code == 201, created.text
        return HostedJob(self.client, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.http.close()
        self.control.__exit__()
        for host in self.hosts.values():
            if host.agent.running:
                host.lose()


class HostedJob(PlatformJob):
    """A job on the platform."""

    def kill(self, *runs: str) -> None:
        """SIGKILL the drivers of runs with everything they started, at once."""
        kill_together(*(self.await_process(run) for run in runs))

    def last_recovery(self) -> tuple[str, str | None, str | None]:
        """Cause, old and new host of the newest recovery."""
        newest = self.recoveries()[0]
        return newest.cause, newest.from_host, newest.to_host

    def exit_code(self, run: str) -> int | None:
        return self.client.jobs.run(self.name, run).exit_code
