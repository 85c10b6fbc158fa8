"""A simulation around the pure decisions: hosts that crash, disconnect or respond late, drivers that crash, a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile import standbys
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts, StandbyDemand, StandbyFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import TRANSIENT, allowed, rule_of, settled
from clonos_api.store.columns import Moving

LEASE_S = 3
STEPS = 4
BACKOFF_AT_MOST = 8


@dataclass
class Driver:
    """The agent's record of a run: the state of the driver, and its exit."""

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
    stuck: bool = False  # only SIGKILL stops it
    epochs: int = 0
    waited: bool = False  # it was a standby before

    def die(self, code: int, *, final: bool, state: str | None = None, failure: Failure | None = None) -> None:
        self.alive, self.exit_code, self.final, self.failure = False, code, final, failure
        self.state = state or self.state


WAY = ("", "", "CLAIMING", "RECONCILING", "RUNNING")
WARMING = ("STARTING", "WARMING", "WARMING", "READY")
BROKEN = Failure(error="job-code-failed", what="It raised.", domain="user")


@dataclass
class Machine:
    """The real state of a host; the control plane's view may be stale."""

    host: HostFacts
    up: bool = True
    hidden: bool = False
    late: bool = False
    deaf: bool = False  # its agent sends heartbeats, and does nothing else
    drained: bool = False
    heartbeat_at: datetime = field(kw_only=True)
    orders: dict[str, tuple[str, StopMode, bool]] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return self.up and not self.hidden


class World:
    """The hosts, the rows of the control plane and the clock."""

    def __init__(self, seed: int, slots: list[int]) -> None:
        self.random = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.jobs: dict[str, JobFacts] = {}
        self.of_job: dict[str, str | None] = {}
        self.newest: dict[str, int] = {}  # newest stored version by job
        self.runs: dict[str, RunFacts] = {}
        self.owner: dict[str, str] = {}
        self.saves: dict[str, datetime] = {}  # job → end of its copy
        self.standbys: dict[str, str] = {}  # run → its state; promoted standbys are removed
        self.promoted: set[str] = set()
        self.wanted: dict[str, int] = {}
        self.broken: dict[tuple[str, int], str] = {}  # job and version → when it fails: "warming" or "running"
        self.ended: list[tuple[str, Failure | None]] = []  # planned moves
        self.machines = {
            f"h{at}": Machine(
                HostFacts(id=f"h{at}", name=f"h{at}", domain=f"d{at % 2}", slots=slot_count), heartbeat_at=self.now
            )
            for at, slot_count in enumerate(slots)
        }
        self.moves: list[tuple[datetime, str, JobState, JobState]] = []
        self.written = 0
        self._fleet: Fleet | None = None
        self._ids = 0

    # Actions of users

    def submit(self, *, local: bool, start: bool, standbys: int = 0) -> str:
        self._ids += 1
        name = f"j{self._ids}"
        self.jobs[name] = JobFacts(
            id=name,
            name=name,
            state=JobState.CREATED,
            desired=DesiredState.RUNNING if start else DesiredState.STOPPED,
            since=self.now,
            local=local,
            relocatable=not local,
        )
        self.of_job[name] = None
        self.wanted[name] = standbys
        return name

    def move(self, name: str, to: str | None) -> None:
        """Like `clonos_api.admission.planned_moves`."""
        self._plan(name, "move", to)

    def upgrade(self, name: str, broken: str | None) -> None:
        """Adds a version with new code and requests its upgrade."""
        version = self.newest[name] = self.newest.get(name, 1) + 1
        self.jobs[name] = replace(self.jobs[name], version=version)
        if broken is not None:
            self.broken[name, version] = broken
        self._plan(name, "upgrade", None)

    def _plan(self, name: str, cause: Any, to: str | None) -> None:
        job, run = self.jobs[name], self.current(name)
        busy = job.planned_move is not None and (
            job.planned_move.handed_at is not None or job.planned_move.failure is not None
        )
        if job.desired is not DesiredState.RUNNING or job.state is not JobState.RUNNING or run is None or busy:
            return
        if (job.local and cause == "move") or to == run.host:
            return
        version = job.version if cause == "upgrade" else run.version
        until = self.now + timedelta(seconds=30)
        made = Moving(cause=cause, leaves=run.host, to=to, version=version, previous=run.version, until=until)
        self.jobs[name] = replace(job, planned_move=made)

    def ask(self, name: str, desired: DesiredState, *, stop: StopRequest | None = None, restart: bool = False) -> None:
        job = self.jobs[name]
        if DesiredState.CANCELED in (job.desired, DesiredState(job.desired)) or job.state is JobState.CANCELED:
            return
        ended = job.state in (JobState.FAILED, JobState.FINISHED) and desired is DesiredState.RUNNING
        self.jobs[name] = replace(job, desired=desired, stop=stop, restart=job.restart or restart or ended)

    # Simulation

    def tick(self, seconds: int = 1) -> None:
        """Advances the time: hosts exchange work and reports, drivers continue, the leader reconciles."""
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            for machine in self.machines.values():
                if machine.up and not machine.deaf:
                    self._drive(machine)
                if machine.reachable and not (machine.late and self.random.random() < 0.5):
                    self._exchange(machine)
            self.reconcile()

    def _drive(self, machine: Machine) -> None:
        for run, (desired, mode, waits) in machine.orders.items():
            driver = machine.drivers.get(run)
            if driver is None:
                driver = Driver(run, started=self.now if desired == "RUNNING" else None, alive=desired == "RUNNING")
                driver.final = desired != "RUNNING"
                machine.drivers[run] = driver
            if driver.final:
                continue
            if desired == "ABSENT" or (desired == "STOPPED" and mode is StopMode.FORCE):
                driver.die(-9, final=True)
            elif desired == "STOPPED":
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
        # A claim fences every other driver of the job, on any host.
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
        machine.heartbeat_at = self.now
        open_runs = {name: run for name, run in self.runs.items() if run.host == machine.host.id and not run.ended}
        for name, run in open_runs.items():
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
            name: (run.desired, run.stop_mode, name in self.standbys)
            for name, run in self.runs.items()
            if name in open_runs and not run.ended
        }
        machine.drivers = {
            name: driver for name, driver in machine.drivers.items() if name in machine.orders or driver.final
        }

    def hosts(self) -> list[HostFacts]:
        seen = []
        for machine in self.machines.values():
            lost = (self.now - machine.heartbeat_at).total_seconds() > LEASE_S
            state = HostState.LOST if lost else HostState.DRAINING if machine.drained else HostState.READY
            used = sum(run.host == machine.host.id and not run.ended for run in self.runs.values())
            seen.append(replace(machine.host, state=state, used=used))
        return seen

    def current(self, name: str) -> RunFacts | None:
        run = self.of_job[name]
        return self.runs[run] if run else None

    def facts(self, name: str) -> JobFacts:
        job, current = self.jobs[name], self.of_job[name]
        relief = job.planned_move.standby if job.planned_move is not None else None
        unreachable_runs = sum(
            self.owner[run.id] == name and run.id not in (current, relief, *self.standbys) and not run.ended
            for run in self.runs.values()
        )
        done = self.saves.get(name)
        saved = None if done is None else "COMPLETED" if done <= self.now else "IN_PROGRESS"
        known = self.runs.get(relief or "")
        return replace(
            job, unreachable_runs=unreachable_runs, savepoint=saved, standbys=tuple(self.waiting(name)), successor=known
        )

    def waiting(self, name: str) -> list[StandbyFacts]:
        """The job's standbys."""
        return [
            StandbyFacts(
                run=run, host=self.runs[run].host, state=state, version=self.runs[run].version, ended=self._over(run)
            )
            for run, state in self.standbys.items()
            if self.owner[run] == name
        ]

    def _over(self, run: str) -> bool:
        return self.runs[run].ended or self.runs[run].desired != "RUNNING"

    def owed(self) -> int:
        return sum(self._owes(name) for name in self.jobs)

    def _owes(self, name: str) -> bool:
        job, run = self.jobs[name], self.current(name)
        if job.desired is not DesiredState.RUNNING:
            return False
        return job.state is JobState.STOPPING or (
            job.state in (JobState.STARTING, JobState.RECOVERING) and (run is None or run.discarded)
        )

    # Actions of the leader

    def fleet(self) -> Fleet:
        """The hosts, as they are until the next decision is applied."""
        self._fleet = self._fleet or Fleet(self.hosts(), self.owed())
        return self._fleet

    def reconcile(self) -> None:
        self._fleet = None
        for name in sorted(self.jobs):
            job = self.jobs[name]
            if settled(job.state, job.intent) and job.state is not JobState.RUNNING and job.planned_move is None:
                continue
            for _ in range(STEPS):
                decided = decide(self.facts(name), self.current(name), self.fleet(), self.now)
                if not decided:
                    break
                self.written += 1
                self.apply(name, decided)
            else:
                rest = decide(self.facts(name), self.current(name), self.fleet(), self.now)
                assert not rest, f"{name} does not come to rest: {self.jobs[name]} {rest}"
        for name in sorted(self.jobs):
            self._tend(name)
        self.check()

    def _tend(self, name: str) -> None:
        job, run = self.jobs[name], self.current(name)
        moving = job.planned_move
        demand = StandbyDemand(
            id=name,
            state=job.state,
            desired=job.desired,
            replicas=self.wanted[name],
            version=run.version if run is not None else job.version,
            previous_version=moving.previous if moving is not None else None,
            successor=moving.standby if moving is not None else None,
            host=run.host if run is not None else None,
            bound=job.home if job.local else None,
        )
        if made := standbys.decide(demand, self.waiting(name), self.fleet()):
            self.apply(name, made)

    def _wait(self, name: str, agent: str, version: int) -> str:
        self._ids += 1
        new = RunFacts(id=f"r{self._ids}", host=agent, created_at=self.now, version=version)
        self.runs[new.id], self.owner[new.id], self.standbys[new.id] = new, name, "STARTING"
        return new.id

    def apply(self, name: str, made: d.Decision) -> None:
        """Like `clonos_api.reconcile.applying`."""
        job, before = self.jobs[name], self.of_job[name]
        run, moving = self.runs[before] if before else None, job.planned_move
        if made.move is not None:
            job = self._step(name, job, made.move)
        if run is not None:
            self.runs[run.id] = self._changed(run, made.run)
        assert run is not None or not (made.recovery or made.run.desired or made.run.lost or made.run.closed)
        for drop in made.standbys.drop:
            del self.standbys[drop.run]
            self.runs[drop.run] = replace(self.runs[drop.run], desired="ABSENT")
        for addition in made.standbys.add:
            version = run.version if run is not None and not addition.newest else job.version
            added = self._wait(name, addition.host, version)
            if addition.for_move:
                assert moving is not None
                job = replace(job, planned_move=moving.model_copy(update={"standby": added}))
        if (promoted := made.standbys.promote) is not None:
            del self.standbys[promoted]
            self.promoted.add(promoted)
            if made.move is not None and made.move.version is not None:
                self.runs[promoted] = replace(self.runs[promoted], version=job.version)
        job = self._with(name, job, made.job)
        if (place := made.run.place) is not None:
            self._ids += 1
            version = run.version if run is not None and self.of_job[name] else job.version
            new = RunFacts(id=f"r{self._ids}", host=place.host, created_at=self.now, version=version)
            self.runs[new.id], self.owner[new.id] = new, name
            self.of_job[name] = new.id
        self.jobs[name] = job
        self._fleet = None

    def _step(self, name: str, job: JobFacts, change: d.MoveChange) -> JobFacts:
        moving = job.planned_move
        if change.after is None:
            assert moving is not None
            self.ended.append((moving.cause, change.failure))
            relief = moving.standby
            if relief in self.promoted and relief != self.of_job[name] and moving.handed_at is not None:
                self.runs[relief] = replace(self.runs[relief], desired="ABSENT")
        elif change.version is not None:
            self.of_job[name] = None
        return replace(job, planned_move=change.after, version=change.version or job.version)

    def _changed(self, run: RunFacts, change: d.RunChange) -> RunFacts:
        run = replace(run, desired=change.desired, stop_mode=change.mode) if change.desired is not None else run
        run = replace(run, state="LOST", desired="ABSENT") if change.lost else run
        return replace(run, ended=True) if change.closed else run

    def _with(self, name: str, job: JobFacts, change: d.JobChange) -> JobFacts:
        """The job with the changes of its own row."""
        state = change.state
        rule = rule_of(job.state, state.to) if state is not None else None
        if change.restart_acknowledged or (rule is not None and rule.new_start):
            job = replace(job, restart=False, stop=job.stop if rule is None else None)
            self.of_job[name] = None
        if state is not None:
            job = replace(job, deadline=self._at(state.within_s), failure=state.failure)
            if state.to is not None:
                assert allowed(job.state, state.to, self.jobs[name].intent), f"{job.state} → {state.to}"
                self.moves.append((self.now, name, job.state, state.to))
                job = replace(job, state=state.to, since=self.now)
                self.saves.pop(name, None)
        if change.first_claim:
            current = self.current(name)
            assert current is not None
            job = replace(job, home=current.host, start_from=False, resolutions=False)
        if (driver := change.driver) is not None:
            assert driver in self.promoted
            self.of_job[name] = driver
            if job.planned_move is not None and job.planned_move.standby == driver:
                job = replace(job, planned_move=job.planned_move.model_copy(update={"taken_at": self.now}))
        if change.savepoint == "take":
            self.saves[name] = self.now + timedelta(seconds=self.random.choice([1, 5, 1000]))
        elif change.savepoint == "give-up":
            self.saves.pop(name, None)
        return job

    def _at(self, within_s: float | None) -> datetime | None:
        return None if within_s is None else self.now + timedelta(seconds=within_s)

    # Invariants

    def check(self) -> None:
        for name, job in self.jobs.items():
            # During a planned takeover, the driver and its standby both run.
            relief = job.planned_move.standby if job.planned_move is not None else None
            wanted = [
                run
                for run in self.runs.values()
                if self.owner[run.id] == name and not run.discarded and not run.done and run.id not in self.standbys
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
