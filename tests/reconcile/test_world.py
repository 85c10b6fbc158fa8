"""Whatever hosts, drivers and users do, every job ends where it was asked to go, and nothing waits for ever."""

from __future__ import annotations

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.transitions import settled
from reconcile.world import Machine, World

MOSTLY = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
# Longer than all deadlines in a row: a stop, force, a start with all its attempts.
CALM_S = 1200


class AnyWorld(RuleBasedStateMachine):
    """Users, hosts and drivers act in any order."""

    @initialize(seed=st.integers(0, 2**32), slots=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def begin(self, seed: int, slots: list[int]) -> None:
        note(f"seed={seed} slots={slots}")
        self.world = World(seed, slots)

    @rule(local=st.booleans(), start=st.booleans())
    def submit(self, local: bool, start: bool) -> None:
        if len(self.world.jobs) < 6:
            self.world.submit(local=local, start=start)

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

    @rule(seconds=st.integers(1, 40))
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
        self._mend(self._machine(pick))

    @rule(pick=st.integers(0, 3))
    def haunt(self, pick: int) -> None:
        """A host hides, is given up, and then starts its drivers anew by itself: they fence those that took over."""
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
            self._mend(machine)
            for driver in machine.drivers.values():
                driver.stuck = False
        world.tick(CALM_S)
        room = sum(machine.host.slots for machine in world.machines.values())
        waiting = 0
        for name, job in world.jobs.items():
            if settled(job.state, job.asked):
                self._ended_well(name)
            else:
                assert job.failure is not None, job
                assert job.failure.error == "no-host", job
                waiting += 1
        if waiting and not any(job.local for job in world.jobs.values()):
            busy = sum(run.ours and not run.over for run in world.runs.values())
            assert busy == room, f"{waiting} wait although there is room: {world.state()}"
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
            # Drivers of ours that fence each other are no failure of the job.
            assert job.failure is not None
            assert job.failure.error in ("job-code-failed", "deadline-passed", "driver-ended"), job
        if job.state is JobState.RUNNING:
            run = self.world.current(name)
            assert run is not None
            assert any(driver.run == run.id for _, driver in self.world.living()), f"{name} runs nowhere"

    def _mend(self, machine: Machine) -> None:
        machine.up = True
        machine.hidden = machine.late = machine.deaf = machine.drained = False

    def _job(self, pick: int) -> str:
        names = sorted(self.world.jobs)
        return names[pick % len(names)]

    def _machine(self, pick: int) -> Machine:
        machines = list(self.world.machines.values())
        return machines[pick % len(machines)]


AnyWorld.TestCase.settings = MOSTLY
TestAnyWorld = AnyWorld.TestCase
