"""A job with standbys that are processes of the test: `clonos run --standby`."""

from __future__ import annotations

from pathlib import Path

from drivers import SUPERSEDED, Driver, JobRun

from clonos.standby.orders import promote
from observe import eventually

READY_S = 180


class Standing:
    """A job with standbys.

    Args:
        run: The job.
    """

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self._pipes = 0
        self._before = 0  # how many times one was READY

    def stand_by(self) -> tuple[Driver, Path]:
        """A standby that is READY, and where it is told."""
        driver, pipe = self.start()
        self.await_ready(driver)
        return driver, pipe

    def await_ready(self, driver: Driver) -> None:
        """Wait until the newest standby is READY, which no other one became since it was started."""

        def there() -> bool:
            assert driver.process.poll() is None, driver.tail()
            return self._ready() > self._before

        eventually(there, "a standby is READY", timeout_s=READY_S)
        assert not self.run.told("not-rehearsed")

    def start(self, fault: str = "") -> tuple[Driver, Path]:
        """A standby that warms up; told early, it takes over as it is."""
        self._pipes += 1
        self._before = self._ready()
        pipe = self.run.home / f"promotion-{self._pipes}"
        driver = self.run.start(fault, arguments=("--standby", str(pipe)))
        eventually(lambda: pipe.exists() or driver.process.poll() is not None, "it listens", timeout_s=60)
        return driver, pipe

    def _ready(self) -> int:
        return sum(one["state"] == "READY" for one in self.run.told("standby"))

    def promote(self, pipe: Path) -> None:
        """Tell a standby to take over."""
        assert promote(pipe), "nobody listens"

    def generation(self) -> int:
        """The newest that claimed."""
        return max((one["generation"] for one in self.run.told("claimed")), default=0)

    def drives(self, driver: Driver, generation: int) -> None:
        """Wait until a driver has finished an epoch as that generation, or as a later one."""

        def there() -> bool:
            assert driver.process.poll() is None, driver.tail()
            return any(one["generation"] >= generation for one in self.run.told("epoch"))

        eventually(there, f"generation {generation} drives", timeout_s=90)

    def stops_superseded(self, zombie: Driver, generation: int) -> None:
        """Wait until a driver sees that the job is another's: its exit code says so, its log and its events."""
        code = zombie.wait()
        assert code == SUPERSEDED, f"it ended with {code}:\n{zombie.tail()}"
        assert [one["generation"] for one in self.run.told("superseded")].count(generation) == 1
        assert "superseded" in zombie.tail(60).lower(), zombie.tail(60)
