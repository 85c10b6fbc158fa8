"""A job with a standby on three scripted hosts, driven through the REST API and the service's reconciler.

Time does not decide these tests. Hosts have a lease of a minute; a test that needs a silent or a lost host moves the
time of its last heartbeat back in the database.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import httpx
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.testing.harness import eventually
from clonos_api.reconcile.loop import Term
from clonos_api.store.db.clock import now
from clonos_api.store.tables import HostRow
from support.scripted import ScriptedAgent
from support.serving import Served, write

LEASE_S = 60.0
# Four missing heartbeats make a host silent: it takes as long as the lease.
HEARTBEAT_INTERVAL_S = LEASE_S / 4


class Rounds:
    """Counts the finished rounds of the reconciler in this process."""

    def __init__(self) -> None:
        self.finished = 0
        original = Term.round

        async def counted(term: Term) -> bool:
            again = await original(term)
            self.finished += 1
            return again

        self.counted = counted

    def pass_by(self, count: int = 3) -> None:
        """Wait until the reconciler has decided `count` times more."""
        until = self.finished + count
        eventually(lambda: self.finished >= until, f"{count} rounds of the reconciler", timeout_s=60)


class ScriptedJob:
    """A job with one standby, and its three scripted hosts.

    Attributes:
        hosts: By name; a test removes those that send no heartbeats.
        rounds: The reconciler's rounds.
    """

    def __init__(
        self, service: Served, client: httpx.Client, hosts: list[ScriptedAgent], name: str, rounds: Rounds
    ) -> None:
        self.client = client
        self.hosts = {host.name: host for host in hosts}
        self.name = name
        self.rounds = rounds
        self._service = service
        self._host_ids = [host.id for host in hosts]
        self._reports: dict[str, dict[str, dict[str, Any]]] = {host.name: {} for host in hosts}

    def send_heartbeats(self) -> None:
        """Every host reports its runs."""
        for name, host in self.hosts.items():
            ordered = {run["run"] for run in host.work()["runs"]}
            reports = [report for run, report in self._reports[name].items() if run in ordered]
            host.heartbeat(*reports, heartbeat_interval_s=HEARTBEAT_INTERVAL_S)

    def silence(self, *hosts: str, lease_expired: bool = False) -> None:
        """Let the last heartbeat of `hosts` be so old that they count as silent, or even as lost."""
        self._age([self.hosts.pop(name).id for name in hosts], lease_left_s=-1 if lease_expired else LEASE_S)

    def end(self) -> None:
        """Cancel the job, and let its hosts be lost: the next test places nothing on them."""
        self.client.post(f"/jobs/{self.name}/cancel")
        self._age(self._host_ids, lease_left_s=-1)

    def _age(self, ids: list[str], lease_left_s: float) -> None:
        async def age(session: AsyncSession) -> None:
            moment = await now(session)
            heartbeat_at = moment - timedelta(seconds=LEASE_S + 1)
            times = {"heartbeat_at": heartbeat_at, "lease_until": moment + timedelta(seconds=lease_left_s)}
            await session.execute(update(HostRow).where(HostRow.id.in_(ids)).values(**times))

        write(self._service, age)

    def report(self, host: str, run: str, state: str, driver_state: str = "", **more: Any) -> None:
        """A host reports the state of a run."""
        report = {"run": run, "state": state, "driver_state": driver_state, "attempts": 1, "pid": 42, **more}
        self._reports[host][run] = report
        self.send_heartbeats()

    def push_epochs(self, host: str, run: str, generation: int, *numbers: int) -> None:
        """A driver reports finished epochs."""
        common = {"job": self.name, "generation": generation, "at": time.time(), "event": "epoch", "query": "out"}
        figures = {"records_in": 1, "records_out": 1, "replay": False, "duration_ms": 5}
        self.hosts[host].push_events(run, *({**common, **figures, "epoch": number} for number in numbers))

    def runs(self, host: str) -> dict[str, str]:
        """The runs of a host, with their desired states."""
        return {run["run"]: run["desired"] for run in self.hosts[host].work()["runs"]}

    def await_run_spec(self, desired: str = "RUNNING", *, standby: bool, but: str = "") -> tuple[str, dict[str, Any]]:
        """The host that has the job's driver, or its standby, in the state `desired`; and its run specification."""

        def matching() -> list[tuple[str, dict[str, Any]]]:
            return [
                (name, run)
                for name, host in self.hosts.items()
                for run in host.work()["runs"]
                if run["name"] == self.name and run["desired"] == desired and run["run"] != but
                if run.get("standby", False) == standby
            ]

        run_specs: list[tuple[str, dict[str, Any]]] = eventually(
            matching, f"a run specification {desired}, standby {standby}"
        )
        return run_specs[-1]

    def await_standby(self, state: str) -> dict[str, Any]:
        """The job's standby in `state`."""

        def matching() -> dict[str, Any] | None:
            page = self.client.get(f"/jobs/{self.name}/standbys").json()["data"]
            return next((standby for standby in page if standby["state"] == state), None)

        standby: dict[str, Any] = eventually(matching, f"a standby is {state}")
        return standby

    def await_job(self, **fields: Any) -> dict[str, Any]:
        """The job, once it has these fields."""

        def matching() -> dict[str, Any] | None:
            job = self.fetch()
            return job if all(job[name] == value for name, value in fields.items()) else None

        job: dict[str, Any] = eventually(matching, f"the job has {fields}")
        return job

    def start_driver(self, host: str, run: str, generation: int) -> None:
        """A driver claims the causal log and runs."""
        common = {"job": self.name, "generation": generation, "at": time.time()}
        claimed = {**common, "event": "claimed", "lineage": 1, "lanes": 1}
        self.hosts[host].push_events(run, claimed, {**common, "event": "state", "state": "RUNNING"})
        self.report(host, run, "RUNNING", "RUNNING")

    def start_with_standby(self) -> tuple[str, str, str, str]:
        """Start the driver, and its standby until it is READY: host and run of each."""
        primary, run_spec = self.await_run_spec(standby=False)
        self.start_driver(primary, run_spec["run"], 1)
        other, waiting = self.await_run_spec(standby=True)
        self.report(other, waiting["run"], "RUNNING", "READY")
        assert self.await_standby("READY")["host"] == other
        return primary, run_spec["run"], other, waiting["run"]

    def fetch(self) -> dict[str, Any]:
        """The job, from the REST API."""
        job: dict[str, Any] = self.client.get(f"/jobs/{self.name}").json()
        return job

    def recoveries(self) -> list[dict[str, Any]]:
        """The job's recoveries, from the REST API."""
        page: list[dict[str, Any]] = self.client.get(f"/jobs/{self.name}/recoveries").json()["data"]
        return page
