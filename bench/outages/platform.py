"""The platform under test: what ``clonos up`` starts, one job on it, and the processes behind it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from clonos.settings import KafkaSettings

PATIENCE_S: Final = 180.0
_LOOK_S: Final = 0.05
_JOBS: Final = Path(__file__).parent.parent / "jobs"


@dataclass
class Platform:
    """What ``clonos up`` started, and one job on it."""

    home: Path
    http: httpx.Client
    kafka: KafkaSettings
    job: str = ""

    def submit(
        self, main: str, params: dict[str, str], *, standbys: int, interval_ms: int = 0, mode: str = "dedicated"
    ) -> None:
        """Start a job of `bench.jobs`, with at least so long between epochs; from now on it is the one."""
        self.job = f"bench-{secrets.token_hex(3)}"
        folder = self.home / self.job
        folder.mkdir()
        (folder / "job.py").write_text((_JOBS / main).read_text())
        trigger = {"intervalMs": interval_ms}
        spec = {"main": "job.py", "params": params, "standby": {"replicas": standbys, "mode": mode}, "trigger": trigger}
        whole = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": self.job}, "spec": spec}
        (folder / "job.yaml").write_text(json.dumps(whole))  # JSON is YAML
        clonos(self.home, "submit", str(folder))

    def get(self, path: str) -> Any:
        """A resource of the job."""
        answer = self.http.get(f"/jobs/{self.job}{path}")
        answer.raise_for_status()
        return answer.json()

    def all(self, path: str) -> list[dict[str, Any]]:
        """A whole list of the job's, newest first."""
        rows: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.get(f"{path}?limit=200{after}")
            rows += page["data"]
            if not page["has_more"]:
                return rows
            after = f"&starting_after={page['next']}"

    def until(self, found: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait for it.

        Raises:
            TimeoutError: It did not come; what the control plane says of the job.
        """
        deadline = time.monotonic() + patience_s
        while not (answer := found()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not in {patience_s:g} s\n{self.said()}")
            time.sleep(_LOOK_S)
        return answer

    def said(self) -> str:
        """What is known of the job, for whoever looks for a fault."""
        with contextlib.suppress(httpx.HTTPError):
            told = {"job": self.get(""), "runs": self.get("/runs")["data"][:6]}
            told |= {"standbys": self.get("/standbys")["data"][:6], "recoveries": self.get("/recoveries")["data"][:3]}
            return json.dumps(told, indent=1)
        return "the control plane does not answer"

    def driver(self) -> psutil.Process:
        """The driver that runs now; it is waited for."""

        def found() -> psutil.Process | None:
            return self.primary() if self.get("")["state"] == "RUNNING" else None

        process: psutil.Process = self.until(found, "a driver runs")
        return process

    def primary(self) -> psutil.Process | None:
        """The process of the job's run, whatever it does; None: there is none."""
        run = self.get("")["run"]
        return next((self._process(one) for one in self.get("/runs")["data"] if one["id"] == run), None)

    def standby(self) -> psutil.Process | None:
        """The process of a standby that waits, whatever its state."""
        run = self.get("")["run"]
        waiting = (one for one in self.get("/runs")["data"] if one["standby"] and one["id"] != run)
        return next((process for one in waiting if (process := self._process(one)) is not None), None)

    @staticmethod
    def _process(run: dict[str, Any]) -> psutil.Process | None:
        if not run["pid"] or run["ended_at"] is not None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(run["pid"])
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def await_standby(self, *, warm: bool = False, state: bool = False) -> None:
        """Until one could take over; `warm`: and has rehearsed as often as it wants to, with the job's `state`."""

        def found() -> bool:
            ready = (one for one in self.get("/standbys")["data"] if one["state"] == "READY")
            return any(not warm or self._rehearsed(one, state=state) for one in ready)

        self.until(found, "a standby is READY")

    def await_spare(self) -> None:
        """Until the job's host has a spare that is ready."""

        def found() -> bool:
            agent = self.get("")["agent"]
            hosts = self.http.get("/hosts").json()["data"]
            return any(one["spares"] > 0 for one in hosts if agent in (one["id"], one["name"]))

        self.until(found, "a spare is ready")

    def _rehearsed(self, standby: dict[str, Any], *, state: bool) -> bool:
        told = self.home / "agent" / standby["agent"] / "runs" / standby["id"] / "events.jsonl"
        with contextlib.suppress(FileNotFoundError):
            events = [json.loads(line) for line in told.read_text().splitlines() if '"rehearsed"' in line]
            return any("snapshot" in one["state"].values() or not state for one in events)
        return False

    def stack(self) -> dict[str, Any]:
        """What ``clonos up`` wrote down of its processes."""
        state: dict[str, Any] = json.loads((self.home / "local" / "state.json").read_text())
        return state

    def agent(self) -> tuple[str, psutil.Process] | None:
        """Name and process of the agent of the job's host; None: there is none just now."""
        name = self.get("")["agent"]
        if name is None:
            return None
        try:
            return name, psutil.Process(self.stack()["agents"][name]["pid"])
        except psutil.NoSuchProcess:
            return None

    def end(self, *, gracefully: bool = False) -> None:
        """Stop or cancel the job, and wait for its end."""
        self.http.post(f"/jobs/{self.job}/{'stop' if gracefully else 'cancel'}").raise_for_status()
        self.until(lambda: self.get("")["state"] in ("STOPPED", "CANCELED"), "the job ended")


def clonos(home: Path, *arguments: str) -> str:
    """Run the command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
    command = [sys.executable, "-m", "clonos", *arguments]
    done = subprocess.run(command, env={**environment, "CLONOS_HOME": str(home)}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def platform(home: Path, *, spares: int = 0) -> Iterator[Platform]:
    """Start everything, and end it."""
    try:
        up = json.loads(clonos(home, "up", "--detach", "--spares", str(spares), "-o", "json"))
        token = (home / "admin.token").read_text().strip()
        with httpx.Client(
            base_url=f"{up['api']}/api/v1", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30
        ) as http:
            yield Platform(home, http, KafkaSettings(bootstrap_servers=up["kafka"]))
    finally:
        clonos(home, "down")
