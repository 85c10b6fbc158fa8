"""A control plane and hosts as processes; what a host has on disk is its own, and goes with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import psutil
from drivers import JOBS

from agent.hosts import HERE
from clonos.agent import AgentSettings
from clonos.settings import KafkaSettings
from observe import eventually
from scripted import upload
from serving import ApiProcess

LEASE_S: Final = 4.0
PATIENCE_S: Final = 120.0


class Host:
    """An agent with its drivers, and a folder that nobody else may use.

    Args:
        name: Its name, and its failure domain.
        folder: What the host has on disk: the agent's home, and all that its drivers and their Sparks write locally.
        more: The environment: how to reach Kafka.
        settings: Of the agent.
    """

    def __init__(self, name: str, folder: Path, more: dict[str, str], **settings: Any) -> None:
        self.name = name
        self._folder = folder
        local = folder / "local"
        local.mkdir(parents=True)
        token = folder / "token"
        token.write_text(settings.pop("token"))
        chosen = AgentSettings(
            name=name,
            home=folder / "home",
            token_file=token,
            driver_environment={"SPARK_LOCAL_DIRS": str(local), "TMPDIR": str(local)},
            **settings,
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
        with (folder.parent / f"{name}.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, str(HERE / "run_agent.py"), chosen.model_dump_json()],
                env={**kept, **more, "CLONOS_HOME": str(chosen.home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._home = str(chosen.home)

    def drivers(self) -> Iterator[psutil.Process]:
        """Everything on it but the agent."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.agent.pid and process.environ().get("CLONOS_HOME") == self._home:
                    yield process

    def signal_drivers(self, number: int) -> None:
        for process in self.drivers():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def freeze(self) -> None:
        """All of it stops where it is."""
        self.agent.send_signal(signal.SIGSTOP)
        self.signal_drivers(signal.SIGSTOP)

    def lose(self) -> None:
        """All of it dies at once, and its disk with it."""
        if self.agent.returncode is None:
            self.agent.kill()
        self.signal_drivers(signal.SIGKILL)
        gone = self._folder.rename(self._folder.with_name(f"{self.name}-gone"))
        self.agent.wait(10)
        eventually(lambda: not self._left(), f"{self.name} is gone")
        shutil.rmtree(gone)

    def _left(self) -> list[psutil.Process]:
        self.signal_drivers(signal.SIGKILL)
        return [one for one in self.drivers() if one.status() != psutil.STATUS_ZOMBIE]

    def events(self, run: str) -> list[dict[str, Any]]:
        """What a driver of it told."""
        lines = (Path(self._home) / "agent" / self.name / "runs" / run / "events.jsonl").read_text().splitlines()
        return [json.loads(line.lstrip("\0")) for line in lines if line.endswith("}")]


class Platform:
    """A control plane, and any number of hosts that share one folder for checkpoints.

    Args:
        folder: An empty folder.
        kafka: The cluster.
    """

    def __init__(self, folder: Path, kafka: KafkaSettings) -> None:
        self._folder = folder
        self._kafka = kafka
        self.hosts: dict[str, Host] = {}
        (folder / "control").mkdir()
        self.control = self._serve(0)
        self.http = self.control.served.client()

    def _serve(self, port: int) -> ApiProcess:
        return ApiProcess(
            self._folder / "control",
            log=self._folder / "control.log",
            port=port,
            reconcile=True,
            shared_checkpoints=str(self._folder / "shared"),
            agent_lease_s=LEASE_S,
            agent_guarded_heartbeat_s=1.0,  # two cores with several drivers: nobody is to be suspected for being slow
            limits={"requests_per_s": 10_000, "burst": 100_000},
        )

    def restart(self) -> None:
        """Start the control plane again, at its address."""
        self.control.__exit__()
        self.control = self._serve(int(self.control.served.url.rsplit(":", 1)[1]))

    def add(self, name: str, *, slots: int) -> Host:
        """One more host."""
        made = self.http.post("/tokens", json={"name": f"agent-{name}", "role": "agent", "agent": name})
        assert made.status_code == 201, made.text
        self.hosts[name] = Host(
            name,
            self._folder / name,
            {"CLONOS_KAFKA__BOOTSTRAP_SERVERS": self._kafka.bootstrap_servers},
            api=self.control.served.url,
            slots=slots,
            token=made.json()["token"],
        )
        return self.hosts[name]

    def submit(self, name: str, params: dict[str, str], **standby: float) -> Submitted:
        """Run `points.py` with one standby, which is specified further by `standby`."""
        artifact = upload(self.http, (JOBS / "points.py").read_bytes())
        body = {
            "main": "job.py",
            "params": params,
            "master": "local[2]",
            "driverMemoryMb": 512,
            "standby": {"replicas": 1, **standby},
        }
        spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}
        made = self.http.post("/jobs", json={"spec": spec, "artifact": artifact})
        assert made.status_code == 201, made.text
        return Submitted(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.control.__exit__()
        for host in self.hosts.values():
            if host.agent.returncode is None:
                host.lose()


class Submitted:
    """A job on it, as the REST API shows it."""

    def __init__(self, platform: Platform, name: str) -> None:
        self._platform = platform
        self.name = name

    def get(self, path: str = "") -> Any:
        answer = self._platform.http.get(f"/jobs/{self.name}{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self, generation: int, *hosts: str) -> str:
        """Wait until it is told to run as that generation; its host, which is one of these."""

        def there() -> str:
            now = self.get()
            ours = now["state"] == "RUNNING" and now["generation"] == generation
            return str(now["agent"]) if ours and now["agent"] in hosts else ""

        try:
            found: str = eventually(there, f"{self.name} runs on {hosts}", timeout_s=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.get()}") from None
        return found

    def standby(self, host: str) -> str:
        """Wait until a standby is READY on that host; its run."""

        def found() -> str:
            ready = [one for one in self.get("/standbys")["data"] if one["state"] == "READY"]
            return next((one["id"] for one in ready if one["agent"] == host), "")

        run: str = eventually(found, f"a standby of {self.name} is READY on {host}", timeout_s=PATIENCE_S)
        return run

    def process(self, run: str) -> psutil.Process:
        """The driver of a run."""

        def found() -> psutil.Process | None:
            told = next(one for one in self.get("/runs")["data"] if one["id"] == run)
            return psutil.Process(told["pid"]) if told["pid"] and psutil.pid_exists(told["pid"]) else None

        process: psutil.Process = eventually(found, f"run {run} has a driver", timeout_s=PATIENCE_S)
        return process

    def kill(self, *runs: str) -> None:
        """SIGKILL the drivers of runs with all that they started, at once."""
        end_all(*(self.process(run) for run in runs))

    def cause(self) -> tuple[str, str | None, str | None]:
        """Of the newest recovery: why, from where, to where."""
        newest = self.get("/recoveries")["data"][0]
        return newest["cause"], newest["from_agent"], newest["to_agent"]


def end_all(*drivers: psutil.Process) -> None:
    """SIGKILL drivers with all that they started, at once."""
    for member in [one for driver in drivers for one in (driver, *driver.children(recursive=True))]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
