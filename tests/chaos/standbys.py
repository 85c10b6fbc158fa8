"""A job with standbys that are processes of the test: `clonos run --standby`."""

from __future__ import annotations

from pathlib import Path

from drivers import SUPERSEDED, Driver, JobRun

from clonos.standby.promotion import promote
from clonos.testing.harness import eventually

READY_S = 180


class Standbys:
    """The standbys of a job.

    Args:
        run: The job.
    """

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self._pipes = 0
        self._ready_before = 0  # READY events before the newest standby was started

    def start_ready(self) -> tuple[Driver, Path]:
        """A standby that is READY, and its promotion pipe."""
        driver, pipe = self.start()
        self.await_ready(driver)
        return driver, pipe

    def await_ready(self, driver: Driver) -> None:
        """Wait until the newest standby is READY; no other standby became READY since its start."""

        def ready() -> bool:
            assert driver.running, driver.tail()
            return self._ready() > self._ready_before

        eventually(ready, "a standby is READY", timeout_s=READY_S)
        assert not self.run.events_of("not-rehearsed")

    def start(self, fault: str = "") -> tuple[Driver, Path]:
        """A standby that warms up, and its promotion pipe; an early promotion interrupts the warm-up."""
        self._pipes += 1
        self._ready_before = self._ready()
        pipe = self.run.home / f"promotion-{self._pipes}"
        driver = self.run.start(fault, arguments=("--standby", str(pipe)))
        eventually(lambda: pipe.exists() or not driver.running, "the standby listens on its pipe", timeout_s=60)
        return driver, pipe

    def _ready(self) -> int:
        return sum(event["state"] == "READY" for event in self.run.events_of("standby"))

    def promote(self, pipe: Path) -> None:
        assert promote(pipe), "no standby listens on the pipe"

    def generation(self) -> int:
        """The newest generation that claimed the job."""
        return max((event["generation"] for event in self.run.events_of("claimed")), default=0)

    def await_epoch_of(self, driver: Driver, generation: int) -> None:
        """Wait until a driver has finished an epoch as that generation, or as a later one."""

        def finished() -> bool:
            assert driver.running, driver.tail()
            return any(event["generation"] >= generation for event in self.run.events_of("epoch"))

        eventually(finished, f"generation {generation} finishes an epoch", timeout_s=90)

    def await_superseded(self, zombie: Driver, generation: int) -> None:
        """Wait until a fenced driver exits; check its exit code, its log and its event."""
        code = zombie.wait()
        assert code == SUPERSEDED, f"exit code {code}:\n{zombie.tail()}"
        assert [event["generation"] for event in self.run.events_of("superseded")].count(generation) == 1
        assert "superseded" in zombie.tail(60).lower(), zombie.tail(60)
