"""A job on the control plane as the demo's victim: submitted like any job, its driver killed behind its back."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.client.submission import read_submission
from clonos.demo.screen import Counters
from clonos.demo.victim import Killed, await_death, members_of
from clonos.errors import ClonosError
from clonos.local import background
from clonos.local.plan import Plan
from clonos.local.stack import down
from clonos.resources.hosts import Standby
from clonos.resources.jobs import Job, JobCreate, JobState, Recovery, Run
from clonos.settings import Settings
from clonos.standby.states import OVER, StandbyState

_OVER: Final = frozenset({JobState.FAILED, JobState.STOPPED, JobState.CANCELED, JobState.FINISHED})
_LINES: Final = 15
_STOPPED_WITHIN_S: Final = 60.0
_TOLD_WITHIN_S: Final = 5.0
_LOOK_S: Final = 0.2


@contextmanager
def control_plane(settings: Settings, directory: Path) -> Iterator[tuple[Client, str]]:
    """What `clonos up` starts, in a home of its own; yields a client and the Kafka of its jobs.

    Raises:
        ClonosError: It did not start.
    """
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    state = background.start(Plan(home=home, slots=1), lambda _line: None)
    try:
        credentials = Credentials.read(home)
        if credentials is None:
            raise AssertionError("unreachable: the stack is ready")
        with Client(credentials.api, credentials.token) as client:
            yield client, settings.kafka.bootstrap_servers or state.kafka
    finally:
        down(home)


class HostedJob:
    """A job that agents keep running; `kill` hits its driver, and nobody here starts it again.

    A host has room for one driver. Where a standby is asked for, all hosts but the driver's are drained until `guard`
    lets it have one, so that a cold restart does not share its cores with a standby that is just being warmed.

    Args:
        client: The control plane's.
        path: The job's folder.
        name: Its name.
        params: Its parameters.
        standbys: How many it is submitted with.
    """

    def __init__(self, client: Client, path: Path, name: str, params: Mapping[str, str], *, standbys: int = 0) -> None:
        self._client = client
        self._path = path
        self._name = name
        self._params = dict(params)
        self._standbys = standbys
        self._room = False
        self._waited: set[str] = set()
        self._id: str | None = None
        self._killed = 0

    def start(self) -> None:
        """Submit it; after that its agent starts it whenever it ends."""
        if self._id is None:
            if self._standbys:
                self._leave_room(False)
            read = read_submission(self._path, name=self._name, params=self._params, standbys=self._standbys)
            artifact = self._client.artifacts.upload(read.packed)
            self._id = self._client.jobs.create(JobCreate(spec=read.spec, artifact=artifact.id)).id

    def job(self) -> Job:
        """The job as the control plane knows it."""
        assert self._id is not None
        return self._client.jobs.get(self._id)

    def must_run(self) -> None:
        """Raise if it has ended.

        Raises:
            ClonosError: With the reason.
        """
        if self._id is None or (job := self.job()).state not in _OVER:
            return
        why = f": {job.failure.what}" if job.failure else ""
        raise ClonosError(f"The job is {job.state}{why}\n{self.last_words()}")

    def last_words(self, lines: int = _LINES) -> str:
        """The end of its drivers' log."""
        return "\n".join(self._client.jobs.logs(self._id, tail=lines).lines) if self._id else ""

    def guard(self, wanted: bool) -> bool:
        """Leave room for standbys on other hosts, or none; whether one is READY, or none waits."""
        if not self._standbys:
            return not wanted
        if wanted is not self._room:
            self._leave_room(wanted)
        waiting = self._waiting()
        return any(one.state == "READY" for one in waiting) if wanted else not waiting

    def _leave_room(self, wanted: bool) -> None:
        hosts = [host.name for host in self._client.hosts.list().data]
        agent = self.job().agent if self._id is not None else None
        home = agent if agent in hosts else min(hosts)
        for name in hosts:
            if wanted or name == home:
                self._client.hosts.undrain(name)
            else:
                self._client.hosts.drain(name)
        self._room = wanted

    def taken_over(self) -> bool:
        """Whether the driver is one of those that waited when the last one was killed."""
        return self.job().run in self._waited

    def _waiting(self) -> list[Standby]:
        if self._id is None or not self._standbys:
            return []
        return self._client.jobs.standbys(self._id, states=set(StandbyState) - OVER).data

    def kill(self) -> Killed:
        """SIGKILL its driver with all that it started."""
        self._waited = {one.id for one in self._waiting()}  # a standby's id is that of its run
        pid = self._driver()
        try:
            leader = psutil.Process(pid) if pid is not None else None
        except psutil.NoSuchProcess:
            leader = None
        if leader is None:
            return Killed(0, time.monotonic())
        pid = self._killed = leader.pid
        died = 0
        members = members_of(pid, descendants=True)
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
            died += 1
        while members:
            for process in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await_death(members)
            died += len(members)
            members = members_of(pid, descendants=False)
        await_death([leader])
        return Killed(died, at)

    def _driver(self) -> int | None:
        """The process that drives; None: there is none."""
        deadline = time.monotonic() + _TOLD_WITHIN_S
        while True:
            run = self._run()
            pid = run.pid if run is not None and run.state in ("STARTING", "RUNNING", "STOPPING") else None
            # What is told a moment after a kill may still be the one that was killed; its number is not ours any more.
            if pid is None or pid != self._killed:
                return pid
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)

    def _run(self) -> Run | None:
        """Its driver's; the newest may be a standby's."""
        if self._id is None or (run := self.job().run) is None:
            return None
        return self._client.jobs.run(self._id, run)

    def stop(self) -> int:
        """Stop it gracefully.

        Returns:
            The exit code of its driver; -1 if it did not stop in time.
        """
        if self._id is None:
            return 0
        with contextlib.suppress(ClonosError):
            self._client.jobs.stop(self._id)
        deadline = time.monotonic() + _STOPPED_WITHIN_S
        while self.job().state not in _OVER:
            if time.monotonic() > deadline:
                return -1
            time.sleep(_LOOK_S)
        run = self._run()
        return (run.exit_code or 0) if run is not None else 0

    def counters(self) -> Counters:
        """What its drivers told of themselves."""
        if self._id is None:
            return Counters()
        queries = self._client.jobs.metrics(self._id).queries.values()
        return Counters(
            generation=self.job().generation,
            skipped_lanes=sum(one.skipped_lanes for one in queries),
            determinants_recorded=sum(one.recorded_determinants for one in queries),
            determinants_replayed=sum(one.replayed_determinants for one in queries),
        )

    def recoveries(self) -> list[Recovery]:
        """What it recovered from, oldest first."""
        assert self._id is not None
        return self._client.jobs.recoveries(self._id).data[::-1]
