"""A simulated world around the pure decisions: hosts that crash, hide and answer late, drivers that fall, a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import Host, Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import TRANSIENT, allowed, settled

LEASE_S = 3
STEPS = 4
BACKOFF_AT_MOST = 8


@dataclass
class Driver:
    """What an agent keeps of a run: the driver's state, and how it ended."""

    run: str
    phase: int = 0  # of `WAY`
    attempts: int = 1
    started: datetime | None = None
    exit_code: int | None = None
    state: str | None = None
    alive: bool = True
    final: bool = False
    failure: Failure | None = None
    stopping: bool = False
    stuck: bool = False  # hears nothing but kill

    def die(self, code: int, *, final: bool, state: str | None = None, failure: Failure | None = None) -> None:
        self.alive, self.exit_code, self.final, self.failure = False, code, final, failure
        self.state = state or self.state


WAY = ("", "", "CLAIMING", "RECONCILING", "RUNNING")


@dataclass
class Machine:
    """A host as it is, whatever the control plane believes."""

    host: Host
    up: bool = True
    hidden: bool = False
    late: bool = False
    deaf: bool = False  # its agent says that it lives, and does nothing
    drained: bool = False
    heard: datetime = field(kw_only=True)
    orders: dict[str, tuple[str, StopMode]] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return self.up and not self.hidden


class World:
    """Everything."""

    def __init__(self, seed: int, slots: list[int]) -> None:
        self.random = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.jobs: dict[str, Job] = {}
        self.of_job: dict[str, str | None] = {}
        self.runs: dict[str, Run] = {}
        self.owner: dict[str, str] = {}
        self.saves: dict[str, datetime] = {}  # job → when its copy is done
        self.machines = {
            f"h{at}": Machine(Host(id=f"h{at}", name=f"h{at}", domain=f"d{at % 2}", slots=one), heard=self.now)
            for at, one in enumerate(slots)
        }
        self.moves: list[tuple[datetime, str, JobState, JobState]] = []
        self.written = 0
        self._ids = 0

    # What users do

    def submit(self, *, local: bool, start: bool) -> str:
        self._ids += 1
        name = f"j{self._ids}"
        self.jobs[name] = Job(
            id=name,
            name=name,
            state=JobState.CREATED,
            desired=DesiredState.RUNNING if start else DesiredState.STOPPED,
            since=self.now,
            local=local,
        )
        self.of_job[name] = None
        return name

    def ask(self, name: str, desired: DesiredState, *, stop: StopRequest | None = None, restart: bool = False) -> None:
        job = self.jobs[name]
        if DesiredState.CANCELED in (job.desired, DesiredState(job.desired)) or job.state is JobState.CANCELED:
            return
        ended = job.state in (JobState.FAILED, JobState.FINISHED) and desired is DesiredState.RUNNING
        self.jobs[name] = replace(job, desired=desired, stop=stop, restart=job.restart or restart or ended)

    # What happens

    def tick(self, seconds: int = 1) -> None:
        """Time passes: hosts exchange orders and reports, drivers go on, the leader reconciles."""
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            for machine in self.machines.values():
                if machine.up and not machine.deaf:
                    self._drive(machine)
                if machine.reachable and not (machine.late and self.random.random() < 0.5):
                    self._exchange(machine)
            self.reconcile()

    def _drive(self, machine: Machine) -> None:
        for run, (goal, mode) in machine.orders.items():
            driver = machine.drivers.get(run)
            if driver is None:
                driver = Driver(run, started=self.now if goal == "RUN" else None, alive=goal == "RUN")
                driver.final = goal != "RUN"
                machine.drivers[run] = driver
            if driver.final:
                continue
            if goal == "GONE" or (goal == "STOP" and mode is StopMode.FORCE):
                driver.die(-9, final=True)
            elif goal == "STOP":
                if not driver.stuck:
                    driver.die(0, final=True, state="STOPPED")
            elif not driver.alive:
                if driver.attempts > BACKOFF_AT_MOST:
                    driver.final = True
                else:
                    driver.alive, driver.phase, driver.state, driver.exit_code = True, 0, None, None
                    driver.attempts += 1
                    driver.started = self.now
            elif driver.phase < len(WAY) - 1 and not driver.stuck:
                driver.phase += 1
                driver.state = WAY[driver.phase] or None
        # A claim fences every other driver of the job, wherever it is.
        for driver in machine.drivers.values():
            if driver.alive and driver.state == "CLAIMING":
                for other in self.machines.values():
                    for rival in other.drivers.values():
                        same = self.owner[rival.run] == self.owner[driver.run]
                        if same and rival is not driver and rival.alive and rival.phase > 1:
                            failure = Failure(error="superseded", what="A newer generation owns the job.")
                            rival.die(70, final=True, state="SUPERSEDED", failure=failure)

    def _exchange(self, machine: Machine) -> None:
        machine.heard = self.now
        mine = {name: run for name, run in self.runs.items() if run.agent == machine.host.id and not run.ended}
        for name, run in mine.items():
            driver = machine.drivers.get(name)
            if driver is None:
                continue
            state = "RUNNING" if driver.phase >= len(WAY) - 1 else "STARTING"
            self.runs[name] = replace(
                run,
                state=("STOPPING" if driver.stopping else state) if driver.alive else "EXITED",
                driver_state=driver.state,
                claimed=run.claimed or driver.phase > 2,
                attempts=driver.attempts,
                exit_code=None if driver.alive else driver.exit_code,
                failure=driver.failure,
                ended=driver.final,
                started_at=driver.started,
            )
        machine.orders = {
            name: (run.goal, run.stop_mode) for name, run in self.runs.items() if name in mine and not run.ended
        }
        machine.drivers = {name: one for name, one in machine.drivers.items() if name in machine.orders or one.final}

    def hosts(self) -> list[Host]:
        seen = []
        for machine in self.machines.values():
            lost = (self.now - machine.heard).total_seconds() > LEASE_S
            state = HostState.LOST if lost else HostState.DRAINING if machine.drained else HostState.READY
            used = sum(run.agent == machine.host.id and not run.ended for run in self.runs.values())
            seen.append(replace(machine.host, state=state, used=used))
        return seen

    def current(self, name: str) -> Run | None:
        run = self.of_job[name]
        return self.runs[run] if run else None

    def facts(self, name: str) -> Job:
        job, current = self.jobs[name], self.of_job[name]
        ghosts = sum(self.owner[run.id] == name and run.id != current and not run.ended for run in self.runs.values())
        done = self.saves.get(name)
        saved = None if done is None else "COMPLETED" if done <= self.now else "IN_PROGRESS"
        return replace(job, ghosts=ghosts, savepoint=saved)

    def owed(self) -> int:
        return sum(self._owes(name) for name in self.jobs)

    def _owes(self, name: str) -> bool:
        job, run = self.jobs[name], self.current(name)
        if job.desired is not DesiredState.RUNNING:
            return False
        return job.state is JobState.STOPPING or (
            job.state in (JobState.STARTING, JobState.RECOVERING) and (run is None or not run.ours)
        )

    # What the leader does

    def reconcile(self) -> None:
        for name in sorted(self.jobs):
            if settled(self.jobs[name].state, self.jobs[name].asked) and self.jobs[name].state is not JobState.RUNNING:
                continue
            for _ in range(STEPS):
                decided = decide(self.facts(name), self.current(name), Fleet(self.hosts(), self.owed()), self.now)
                if not decided:
                    break
                self.apply(name, decided)
            else:
                rest = decide(self.facts(name), self.current(name), Fleet(self.hosts(), self.owed()), self.now)
                assert not rest, f"{name} does not come to rest: {self.jobs[name]} {rest}"
        self.check()

    def apply(self, name: str, decided: list[w.Write]) -> None:
        self.written += 1
        job = self.jobs[name]
        for one in decided:
            run = self.current(name)
            match one:
                case w.Move():
                    assert allowed(job.state, one.to, job.asked), f"{job.state} → {one.to} for {job.asked}"
                    self.moves.append((self.now, name, job.state, one.to))
                    job = replace(
                        job, state=one.to, since=self.now, deadline=self._at(one.within_s), failure=one.failure
                    )
                    self.saves.pop(name, None)
                    if one.fresh:
                        job = replace(job, restart=False, stop=None)
                        self.of_job[name] = None
                case w.Wait():
                    job = replace(job, deadline=self._at(one.within_s), failure=one.failure)
                case w.Heed():
                    job = replace(job, restart=False)
                case w.Settle():
                    job = replace(job, home=one.agent, start_from=False)
                case w.Place():
                    self._ids += 1
                    new = Run(id=f"r{self._ids}", agent=one.agent, created_at=self.now)
                    self.runs[new.id], self.owner[new.id] = new, name
                    self.of_job[name] = new.id
                case w.Order():
                    assert run is not None
                    assert run.id == one.run
                    self.runs[run.id] = replace(run, goal=one.goal, stop_mode=one.mode)
                case w.Close():
                    assert run is not None
                    self.runs[run.id] = replace(run, ended=True)
                case w.Lose():
                    assert run is not None
                    self.runs[run.id] = replace(run, state="LOST", goal="GONE")
                case w.Save():
                    self.saves[name] = self.now + timedelta(seconds=self.random.choice([1, 5, 1000]))
                case w.GiveUpSave():
                    self.saves.pop(name, None)
                case w.Fall():
                    assert run is not None
        self.jobs[name] = job

    def _at(self, within_s: float | None) -> datetime | None:
        return None if within_s is None else self.now + timedelta(seconds=within_s)

    # What must hold

    def check(self) -> None:
        for name, job in self.jobs.items():
            wanted = [r for r in self.runs.values() if self.owner[r.id] == name and r.ours and not r.over]
            assert len(wanted) <= 1, f"{name} has {wanted}"
            assert all(run.id == self.of_job[name] for run in wanted)
            if job.state not in TRANSIENT and job.state is not JobState.RUNNING:
                assert not wanted, f"{name} is {job.state} and has {wanted}"
            if job.state in TRANSIENT and job.deadline is not None:
                assert self.now <= job.deadline, f"{name} outlived its deadline: {job} at {self.now}"
            elif job.state in TRANSIENT:
                assert job.state in (JobState.STARTING, JobState.RECOVERING)
                assert job.failure is not None, job
                assert job.failure.error == "no-host", job
            else:
                assert job.deadline is None
        for host in self.hosts():
            assert host.used <= host.slots, host

    def state(self) -> dict[str, Any]:
        return {name: (str(job.state), str(job.desired)) for name, job in self.jobs.items()}

    def living(self) -> Iterator[tuple[Machine, Driver]]:
        for machine in self.machines.values():
            for driver in machine.drivers.values():
                if driver.alive and machine.up:
                    yield machine, driver
