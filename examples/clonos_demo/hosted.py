"""A demo job on a control plane, submitted like any job. The demo kills its driver's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.client.jobs import ENDED
from clonos.client.submission import read_submission
from clonos.errors import ClonosError
from clonos.local import background
from clonos.local.plan import Plan
from clonos.local.stack import down
from clonos.resources.jobs import JobCreate, Recovery
from clonos.settings import Settings
from clonos.standby.states import StandbyState
from clonos.testing.harness import Killed, PlatformJob, ProcessGroup, has_rehearsed
from clonos_demo.gaps import Target
from clonos_demo.screen import Counters

_LINES: Final = 15
_STOP_TIMEOUT_S: Final = 60.0
# On a quiet machine the rehearsals end in this time from READY on. On a busy one they take minutes (ADR 48).
_REHEARSALS_S: Final = 20.0
# What a standby does in a state, for the screen.
_PHASES: Final = {
    StandbyState.STARTING: "it starts Spark and loads the job",
    StandbyState.WARMING: "it runs the queries on no rows",
    StandbyState.READY: "it can take over, and continues its rehearsals",
    StandbyState.STALE: "a check of it fails",
}


def platform_home(directory: Path) -> Path:
    """Return the home directory of the platform of a demo in `directory`."""
    return directory / "home"


@contextmanager
def control_plane(settings: Settings, directory: Path, *, spark_workers: int = 0) -> Iterator[tuple[Client, str]]:
    """Run the platform of `clonos up` until the context exits; yield a client and the bootstrap servers of its Kafka.

    `directory` is the platform's home directory. With `spark_workers` the platform has a Spark cluster.
    """
    home = platform_home(directory)
    home.mkdir(parents=True, exist_ok=True)
    state = background.start(Plan(home=home, slots=1, spark_workers=spark_workers), lambda _line: None)
    try:
        credentials = Credentials.read(home)
        if credentials is None:
            raise AssertionError("unreachable: the stack is ready")
        with Client(credentials.api, credentials.token) as client:
            yield client, settings.kafka.bootstrap_servers or state.kafka
    finally:
        down(home)


class HostedJob:
    """A job that agents run and restart.

    `home` is the platform's home directory. With `cluster` the job runs on that Spark cluster of the platform.

    `allow_standby(False)` drains all hosts except the driver's, so that no standby starts. A cold restart then does not
    share the cores with a standby that warms up. Each host has one slot.
    """

    def __init__(
        self,
        client: Client,
        path: Path,
        name: str,
        params: Mapping[str, str],
        home: Path,
        *,
        standbys: int = 0,
        cluster: str | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._params = dict(params)
        self._home = home
        self._standbys = standbys
        self._cluster = cluster
        self._allowed = False
        self._waiting: set[str] = set()  # runs of the standbys at the last kill
        self._submitted = False
        self.job = PlatformJob(client, name)

    def start(self) -> None:
        """Submit the job. Later calls do nothing, because an agent restarts the job's driver."""
        if not self._submitted:
            if self._standbys:
                self._drain_others(False)
            submission = read_submission(
                self._path, name=self.job.name, params=self._params, standbys=self._standbys, cluster=self._cluster
            )
            artifact = self._client.artifacts.upload(submission.packed)
            self._client.jobs.create(JobCreate(spec=submission.spec, artifact=artifact.id))
            self._submitted = True

    def check_running(self) -> None:
        """Raise if the job has ended."""
        if not self._submitted or (job := self.job.get()).state not in ENDED:
            return
        reason = f": {job.failure.what}" if job.failure else ""
        raise ClonosError(f"The job is {job.state}{reason}\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the log of the job's drivers."""
        return "\n".join(self._client.jobs.logs(self.job.name, tail=_LINES).lines) if self._submitted else ""

    def allow_standby(self, allowed: bool) -> bool:
        """Undrain the hosts other than the driver's if `allowed`, else drain them; this does not wait for the effect.

        Returns:
            If `allowed`, whether a standby is READY, and has ended its rehearsals or is READY for twenty seconds: most
            failures come long after it is READY. Otherwise, whether the job has no standby.
        """
        if not self._standbys:
            return not allowed
        if allowed is not self._allowed:
            self._drain_others(allowed)
        if not allowed:
            return not self.job.standbys()
        standby = self.job.ready_standby()
        return standby is not None and (
            has_rehearsed(self._home, standby) or (datetime.now(UTC) - standby.since).total_seconds() >= _REHEARSALS_S
        )

    def standby_phase(self) -> str:
        """Return what the job's standby does now, as a clause for the screen."""
        standbys = self.job.standbys()
        if not standbys:
            return "none is placed" if self._allowed else "none is left"
        newest = standbys[-1]
        for_s = (datetime.now(UTC) - newest.since).total_seconds()
        does = _PHASES.get(StandbyState(newest.state), "it leaves")
        return f"on {newest.host} it is {newest.state} for {max(0.0, for_s):.0f} s: {does}"

    def _drain_others(self, allowed: bool) -> None:
        hosts = [host.name for host in self._client.hosts.list().data]
        current = self.job.get().host if self._submitted else None
        home = current if current in hosts else min(hosts)
        for host in hosts:
            if allowed or host == home:
                self._client.hosts.undrain(host)
            else:
                self._client.hosts.drain(host)
        self._allowed = allowed

    def taken_over(self) -> bool:
        """Whether a standby took over after the last kill: it is the current driver."""
        return self.job.get().run in self._waiting

    def driver(self) -> ProcessGroup | None:
        """Return the processes of the job's driver; None if none runs."""
        return self.job.driver() if self._submitted else None

    def kill(self, target: Target = "driver") -> Killed:
        """Kill the job's driver, or one of its executors, and all child processes with SIGKILL."""
        if not self._submitted:
            return Killed.nothing()
        if target == "executor":
            self._waiting = set()
            return self.job.kill_executor()
        # A standby has the id of its run.
        self._waiting = {standby.id for standby in self.job.standbys()} if self._standbys else set()
        return self.job.kill_driver()

    def next_driver_since(self, killed_at: float) -> float | None:
        """Return the kill itself; on a Spark cluster the first claim after it, which fences the killed driver's
        executors.

        None: there is no such claim yet.
        """
        if self._cluster is None:
            return killed_at
        claims = (generation.claimed_at.timestamp() for generation in self._client.jobs.generations(self.job.name).data)
        return min((claimed_at for claimed_at in claims if claimed_at > killed_at), default=None)

    def stop(self) -> int:
        """Stop the job gracefully.

        Returns:
            Exit code of the job's driver; -1 if the job did not stop in time.
        """
        if not self._submitted:
            return 0
        with contextlib.suppress(ClonosError):
            self._client.jobs.stop(self.job.name)
        try:
            self.job.until(lambda: self.job.get().state in ENDED, "the job stops", _STOP_TIMEOUT_S)
        except TimeoutError:
            return -1
        run = self.job.driver_run()
        return (run.exit_code or 0) if run is not None else 0

    def counters(self) -> Counters:
        """Return the job's generation, and the totals of skipped lanes and determinants over its queries, for the
        display.
        """
        if not self._submitted:
            return Counters()
        queries = self._client.jobs.metrics(self.job.name).queries.values()
        return Counters(
            generation=self.job.get().generation,
            skipped_lanes=sum(query.skipped_lanes for query in queries),
            determinants_recorded=sum(query.recorded_determinants for query in queries),
            determinants_replayed=sum(query.replayed_determinants for query in queries),
        )

    def recoveries(self) -> list[Recovery]:
        """Return the job's recoveries, oldest first."""
        return self.job.recoveries()[::-1]
