"""After any actions of hosts, drivers and users, every job reaches its desired state, and no wait is endless."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.transitions import settled
from component.reconcile.world import Machine, World

D = DesiredState

MOSTLY = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
# Longer than all deadlines in a row: a stop, force, a start with all its attempts.
CALM_S = 1200
QUIET_S = 330  # longer than each of them


class AnyWorld(RuleBasedStateMachine):
    """Users, hosts and drivers act in any order."""

    @initialize(
        seed=st.integers(0, 2**32),
        slots=st.lists(st.integers(1, 3), min_size=2, max_size=4),
        jobs=st.lists(st.booleans(), min_size=2, max_size=4),
    )
    def begin(self, seed: int, slots: list[int], jobs: list[bool]) -> None:
        self.world = World(seed, slots)
        for local in jobs:
            self.world.submit(local=local, start=True)
        self.world.tick(10)

    @rule(local=st.booleans(), start=st.booleans(), standbys=st.integers(0, 2))
    def submit(self, local: bool, start: bool, standbys: int) -> None:
        if len(self.world.jobs) < 6:
            self.world.submit(local=local, start=start, standbys=standbys)

    @precondition(lambda self: bool(self.world.jobs))
    @rule(
        pick=st.integers(0, 9),
        desired=st.sampled_from(DesiredState),
        mode=st.sampled_from(StopMode),
        restart=st.booleans(),
        timeout_s=st.sampled_from([1.0, 20.0, 60.0]),
    )
    def ask(self, pick: int, desired: DesiredState, mode: StopMode, restart: bool, timeout_s: float) -> None:
        name = self._job(pick)
        stop = StopRequest(mode=mode, timeout_s=timeout_s)
        running = desired is DesiredState.RUNNING
        if desired is not DesiredState.CANCELED or pick == 0:
            self.world.ask(name, desired, stop=stop if restart or not running else None, restart=restart and running)

    @rule(pick=st.integers(0, 9), host=st.integers(-1, 3))
    def move(self, pick: int, host: int) -> None:
        if self.world.jobs:
            self.world.move(self._job(pick), None if host < 0 else self._machine(host).host.id)

    @rule(pick=st.integers(0, 9), broken=st.sampled_from([None, None, "warming", "running"]))
    def upgrade(self, pick: int, broken: str | None) -> None:
        if self.world.jobs:
            self.world.upgrade(self._job(pick), broken)

    @rule(seconds=st.one_of(st.integers(1, 10), st.integers(30, 200)))
    def wait(self, seconds: int) -> None:
        self.world.tick(seconds)

    @rule(pick=st.integers(0, 3), what=st.sampled_from(["crash", "hide", "late", "deaf", "drain", "stuck"]))
    def harm(self, pick: int, what: str) -> None:
        machine = self._machine(pick)
        match what:
            case "crash":
                machine.up = False
                machine.orders = {}
                machine.drivers = {}
            case "hide":
                machine.hidden = True
            case "late":
                machine.late = True
            case "deaf":
                machine.deaf = True
            case "drain":
                machine.drained = True
            case _:
                for driver in machine.drivers.values():
                    driver.stuck = True

    @rule(pick=st.integers(0, 3))
    def heal(self, pick: int) -> None:
        self._repair(self._machine(pick))

    @rule(pick=st.integers(0, 3))
    def haunt(self, pick: int) -> None:
        """A host is hidden and lost, then restarts its drivers alone: they fence the new drivers."""
        machine = self._machine(pick)
        machine.hidden = True
        self.world.tick(15)
        for driver in machine.drivers.values():
            driver.die(-9, final=False)
        self.world.tick(15)

    @rule(pick=st.integers(0, 9), what=st.sampled_from(["signal", "user", "finish", "stopped"]))
    def fall(self, pick: int, what: str) -> None:
        living = [driver for _, driver in self.world.living()]
        if not living:
            return
        driver = living[pick % len(living)]
        match what:
            case "signal":
                driver.die(-9, final=False)
            case "user":
                driver.die(14, final=True, state="FAILED", failure=Failure(error="job-code-failed", what="It raised."))
            case "finish":
                driver.die(0, final=True, state="FINISHED")
            case _:
                driver.die(0, final=False, state="STOPPED")

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for machine in world.machines.values():
            self._repair(machine)
            for driver in machine.drivers.values():
                driver.stuck = False
        quiet_s = 0
        for _ in range(CALM_S // 10):
            written = world.written
            world.tick(10)
            quiet_s = quiet_s + 10 if world.written == written else 0
            rest = all(settled(job.state, job.intent) or job.failure is not None for job in world.jobs.values())
            if rest and quiet_s >= QUIET_S:
                break
        room = sum(machine.host.slots for machine in world.machines.values())
        waiting = 0
        for name, job in world.jobs.items():
            if settled(job.state, job.intent):
                self._ended_well(name)
            else:
                assert job.failure is not None, job
                assert job.failure.error == "no-host", job
                waiting += 1
        if waiting and not any(job.local for job in world.jobs.values()):
            busy = sum(not run.discarded and not run.done for run in world.runs.values())
            assert busy == room, f"{waiting} wait although there is room: {world.state()}"
        for name, job in world.jobs.items():
            # Jobs wait only for a drained host, and no host is drained.
            assert job.planned_move is None, job
            assert len(world.waiting(name)) <= world.wanted[name], world.waiting(name)
        before = world.written, len(world.moves)
        world.tick(30)
        assert (world.written, len(world.moves)) == before, f"no rest: {world.moves[-6:]}"

    def _ended_well(self, name: str) -> None:
        job = self.world.jobs[name]
        ways = {
            DesiredState.RUNNING: (JobState.RUNNING, JobState.FINISHED, JobState.FAILED),
            DesiredState.STOPPED: (JobState.STOPPED, JobState.FINISHED, JobState.CREATED),
            DesiredState.CANCELED: (JobState.CANCELED,),
        }
        assert job.state in ways[job.desired], job
        if job.state is JobState.FAILED:
            # Two drivers of the same job that fence each other are not a failure of the job.
            assert job.failure is not None
            assert job.failure.error in ("job-code-failed", "deadline-passed", "driver-ended"), job
        if job.state is JobState.RUNNING:
            run = self.world.current(name)
            assert run is not None
            assert any(driver.run == run.id for _, driver in self.world.living()), f"{name} runs nowhere"

    def _repair(self, machine: Machine) -> None:
        machine.up = True
        machine.hidden = machine.late = machine.deaf = machine.drained = False

    def _job(self, pick: int) -> str:
        names = sorted(self.world.jobs)
        return names[pick % len(names)]

    def _machine(self, pick: int) -> Machine:
        machines = list(self.world.machines.values())
        return machines[pick % len(machines)]


AnyWorld.TestCase.settings = MOSTLY
TestAnyWorld = pytest.mark.full(AnyWorld.TestCase)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.turn) for seed in range(4, 12))])
def test_a_long_walk(seed: int) -> None:
    """The same rules in longer sequences than the search above reaches; the test's name has the seed."""
    dice = random.Random(seed)
    walk = AnyWorld()
    walk.begin(seed, [dice.randint(1, 3) for _ in range(dice.randint(2, 4))], [dice.random() < 0.3 for _ in range(3)])
    for _ in range(120):
        pick = dice.randrange(12)
        match dice.choice(
            ("submit", "ask", "ask", "wait", "wait", "wait", "harm", "heal", "heal", "haunt", "fall", "move", "upgrade")
        ):
            case "submit":
                walk.submit(dice.random() < 0.3, dice.random() < 0.8, dice.choice([0, 0, 1]))
            case "move":
                walk.move(pick, dice.randint(-1, 3))
            case "upgrade":
                walk.upgrade(pick, dice.choice([None, "warming", "running"]))
            case "ask":
                cancel = dice.random() < 0.1
                desired = dice.choice([D.RUNNING, D.RUNNING, D.STOPPED])
                mode, timeout_s = dice.choice(list(StopMode)), dice.choice([1.0, 20.0])
                walk.ask(pick, D.CANCELED if cancel else desired, mode, dice.random() < 0.5, timeout_s)
            case "wait":
                walk.wait(dice.choice([1, 2, 5, 10, 40, 200]))
            case "harm":
                walk.harm(pick, dice.choice(["crash", "hide", "late", "deaf", "drain", "stuck"]))
            case "heal":
                walk.heal(pick)
            case "haunt":
                walk.haunt(pick)
            case _:
                walk.fall(pick, dice.choice(["signal", "signal", "user", "finish", "stopped"]))
        if all(job.state is JobState.CANCELED for job in walk.world.jobs.values()):
            walk.world.jobs.clear()  # make room for other jobs; their open runs stay
            walk.submit(False, True, 1)
    walk.teardown()
