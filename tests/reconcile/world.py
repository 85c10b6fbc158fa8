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
from clonos_api.reconcile.facts import Host, Job, Run, Waiting
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.standbys import Add, Guarded, tend
from clonos_api.reconcile.transitions import TRANSIENT, allowed, settled
from clonos_api.store.moves import Moving

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
    epochs: int = 0
    waited: bool = False  # it was a standby until now

    def die(self, code: int, *, final: bool, state: str | None = None, failure: Failure | None = None) -> None:
        self.alive, self.exit_code, self.final, self.failure = False, code, final, failure
        self.state = state or self.state


WAY = ("", "", "CLAIMING", "RECONCILING", "RUNNING")
WARMING = ("STARTING", "WARMING", "WARMING", "READY")
BROKEN = Failure(error="job-code-failed", what="It raised.", domain="user")


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
    orders: dict[str, tuple[str, StopMode, bool]] = field(default_factory=dict)
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
        self.standbys: dict[str, str] = {}  # run → what is known of it; none once it was told to take over
        self.promoted: set[str] = set()
        self.wanted: dict[str, int] = {}
        self.broken: dict[tuple[str, int], str] = {}  # job and version → when it fails: "warming" or "running"
        self.ended: list[tuple[str, Failure | None]] = []  # planned moves
        self.machines = {
            f"h{at}": Machine(Host(id=f"h{at}", name=f"h{at}", domain=f"d{at % 2}", slots=one), heard=self.now)
            for at, one in enumerate(slots)
        }
        self.moves: list[tuple[datetime, str, JobState, JobState]] = []
        self.written = 0
        self._ids = 0

    # What users do

    def submit(self, *, local: bool, start: bool, standbys: int = 0) -> str:
        self._ids += 1
        name = f"j{self._ids}"
        self.jobs[name] = Job(
            id=name,
            name=name,
            state=JobState.CREATED,
            desired=DesiredState.RUNNING if start else DesiredState.STOPPED,
            since=self.now,
            local=local,
            warm=not local,
        )
        self.of_job[name] = None
        self.wanted[name] = standbys
        return name

    def move(self, name: str, to: str | None) -> None:
        """As `clonos_api.planned_moves`."""
        self._plan(name, "move", to)

    def upgrade(self, name: str, broken: str | None) -> None:
        """New code, and the wish for it."""
        job = self.jobs[name]
        self.jobs[name] = replace(job, version=job.version + 1)
        if broken is not None:
            self.broken[name, job.version + 1] = broken
        self._plan(name, "upgrade", None)

    def _plan(self, name: str, cause: Any, to: str | None) -> None:
        job, run = self.jobs[name], self.current(name)
        busy = job.moving is not None and (job.moving.handed_at is not None or job.moving.failure is not None)
        if job.desired is not DesiredState.RUNNING or job.state is not JobState.RUNNING or run is None or busy:
            return
        if (job.local and cause == "move") or to == run.agent:
            return
        version = job.version if cause == "upgrade" else run.version
        until = self.now + timedelta(seconds=30)
        made = Moving(cause=cause, leaves=run.agent, to=to, version=version, previous=run.version, until=until)
        self.jobs[name] = replace(job, moving=made)

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
        for run, (goal, mode, waits) in machine.orders.items():
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
            elif waits:
                self._warm(driver)
            elif driver.phase < len(WAY) - 1 and not driver.stuck:
                driver.phase = 2 if driver.waited else driver.phase + 1
                driver.waited = False
                driver.state = WAY[driver.phase] or None
            elif driver.phase == len(WAY) - 1 and not driver.stuck:
                if self._breaks(driver, "running"):
                    driver.die(14, final=True, state="FAILED", failure=BROKEN)
                else:
                    driver.epochs += 1
        # A claim fences every other driver of the job, wherever it is.
        for driver in machine.drivers.values():
            if driver.alive and driver.state == "CLAIMING":
                for other in self.machines.values():
                    for rival in other.drivers.values():
                        same = self.owner[rival.run] == self.owner[driver.run]
                        if same and rival is not driver and rival.alive and rival.phase > 1:
                            failure = Failure(error="superseded", what="A newer generation owns the job.")
                            rival.die(70, final=True, state="SUPERSEDED", failure=failure)

    def _warm(self, driver: Driver) -> None:
        if self._breaks(driver, "warming"):
            driver.die(14, final=True, state="FAILED", failure=BROKEN)
        elif not driver.stuck:
            driver.waited = True
            at = WARMING.index(driver.state) if driver.state in WARMING[:-1] else len(WARMING) - 2
            at = 0 if driver.state is None else at
            driver.state = "READY" if driver.state == "READY" else WARMING[min(at + 1 + (at == 1), len(WARMING) - 1)]

    def _breaks(self, driver: Driver, when: str) -> bool:
        return self.broken.get((self.owner[driver.run], self.runs[driver.run].version)) == when

    def _exchange(self, machine: Machine) -> None:
        machine.heard = self.now
        mine = {name: run for name, run in self.runs.items() if run.agent == machine.host.id and not run.ended}
        for name, run in mine.items():
            driver = machine.drivers.get(name)
            if driver is None:
                continue
            state = "RUNNING" if driver.phase >= len(WAY) - 1 or driver.state == "READY" else "STARTING"
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
                epochs=driver.epochs,
            )
            if name in self.standbys:
                self.standbys[name] = driver.state or "STARTING"
                if driver.final:
                    del self.standbys[name]
        machine.orders = {
            name: (run.goal, run.stop_mode, name in self.standbys)
            for name, run in self.runs.items()
            if name in mine and not run.ended
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
        relief = job.moving.standby if job.moving is not None else None
        ghosts = sum(
            self.owner[run.id] == name and run.id not in (current, relief, *self.standbys) and not run.ended
            for run in self.runs.values()
        )
        done = self.saves.get(name)
        saved = None if done is None else "COMPLETED" if done <= self.now else "IN_PROGRESS"
        known = self.runs.get(relief or "")
        return replace(job, ghosts=ghosts, savepoint=saved, standbys=tuple(self.waiting(name)), relief=known)

    def waiting(self, name: str) -> list[Waiting]:
        """The job's standbys."""
        return [
            Waiting(
                run=run, agent=self.runs[run].agent, state=state, version=self.runs[run].version, over=self._over(run)
            )
            for run, state in self.standbys.items()
            if self.owner[run] == name
        ]

    def _over(self, run: str) -> bool:
        return self.runs[run].ended or self.runs[run].goal != "RUN"

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
            job = self.jobs[name]
            if settled(job.state, job.asked) and job.state is not JobState.RUNNING and job.moving is None:
                continue
            for _ in range(STEPS):
                decided = decide(self.facts(name), self.current(name), Fleet(self.hosts(), self.owed()), self.now)
                if not decided:
                    break
                self.apply(name, decided)
            else:
                rest = decide(self.facts(name), self.current(name), Fleet(self.hosts(), self.owed()), self.now)
                assert not rest, f"{name} does not come to rest: {self.jobs[name]} {rest}"
        for name in sorted(self.jobs):
            self._tend(name)
        self.check()

    def _tend(self, name: str) -> None:
        job, run = self.jobs[name], self.current(name)
        moving = job.moving
        guarded = Guarded(
            id=name,
            state=job.state,
            desired=job.desired,
            wanted=self.wanted[name],
            version=run.version if run is not None else job.version,
            spare=moving.previous if moving is not None else None,
            relief=moving.standby if moving is not None else None,
            agent=run.agent if run is not None else None,
            bound=job.home if job.local else None,
        )
        for change in tend(guarded, self.waiting(name), Fleet(self.hosts(), self.owed())):
            if isinstance(change, Add):
                self._wait(name, change.agent, guarded.version)
            else:
                del self.standbys[change.run]
                self.runs[change.run] = replace(self.runs[change.run], goal="GONE")

    def _wait(self, name: str, agent: str, version: int) -> str:
        self._ids += 1
        new = Run(id=f"r{self._ids}", agent=agent, created_at=self.now, version=version)
        self.runs[new.id], self.owner[new.id], self.standbys[new.id] = new, name, "STARTING"
        return new.id

    def apply(self, name: str, decided: list[w.Write]) -> None:
        self.written += 1
        job, before = self.jobs[name], self.of_job[name]
        for one in decided:
            run, moving = self.runs[before] if before else None, job.moving
            match one:
                case w.BeginMove():
                    assert moving is None
                    assert run is not None
                    until = self.now + timedelta(seconds=one.within_s)
                    versions = {"version": run.version, "previous": run.version}
                    job = replace(job, moving=Moving(cause="drain", leaves=run.agent, until=until, **versions))
                case w.PlaceStandby():
                    assert run is not None
                    made = self._wait(name, one.agent, job.version if one.newest else run.version)
                    job = replace(job, moving=self._moving(job, standby=made))
                case w.Note():
                    job = replace(job, moving=self._moving(job, standby=one.standby, failed=moving.failed + one.failed))
                case w.HandOver():
                    job = replace(job, moving=self._moving(job, standby=one.run, handed_at=self.now))
                    if one.claim:
                        self.promote(one.run)
                case w.Take():
                    assert one.run in self.promoted
                    self.of_job[name] = one.run
                    job = replace(job, moving=self._moving(job, taken_at=self.now))
                case w.Promote():
                    self.promote(one.run)
                    self.of_job[name] = one.run
                    if moving is not None and moving.standby == one.run:
                        job = replace(job, moving=self._moving(job, taken_at=self.now))
                    elif moving is not None and moving.failure is not None:
                        self.runs[one.run] = replace(self.runs[one.run], version=job.version)
                case w.Revert():
                    if (name, one.version) in self.broken:
                        self.broken[name, job.version + 1] = self.broken[name, one.version]
                    job = replace(job, version=job.version + 1, moving=self._moving(job, failure=one.failure))
                    self.of_job[name] = None
                case w.EndMove():
                    assert moving is not None
                    self.ended.append((moving.cause, one.failure))
                    relief = moving.standby
                    if relief in self.promoted and relief != self.of_job[name] and moving.handed_at is not None:
                        self.runs[relief] = replace(self.runs[relief], goal="GONE")
                    job = replace(job, moving=None)
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
                    version = run.version if run is not None and self.of_job[name] else job.version
                    new = Run(id=f"r{self._ids}", agent=one.agent, created_at=self.now, version=version)
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

    def _moving(self, job: Job, **changes: Any) -> Moving:
        assert job.moving is not None
        return job.moving.model_copy(update=changes)

    def promote(self, run: str) -> None:
        """A standby is ordered to be the driver."""
        del self.standbys[run]
        self.promoted.add(run)

    def _at(self, within_s: float | None) -> datetime | None:
        return None if within_s is None else self.now + timedelta(seconds=within_s)

    # What must hold

    def check(self) -> None:
        for name, job in self.jobs.items():
            # While a standby takes over from a driver that works, both are wanted.
            relief = job.moving.standby if job.moving is not None else None
            wanted = [
                run
                for run in self.runs.values()
                if self.owner[run.id] == name and run.ours and not run.over and run.id not in self.standbys
                if run.id != relief or run.id == self.of_job[name]
            ]
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
