"""The request of an agent that makes a pool driver (`clonos.standby.pool_driver`) the driver of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from clonos.jobs.spec import Spec

# In the directory of a pool driver.
MAILBOX: Final = "mailbox"
LOG: Final = "driver.log"
# After more failures in a row, a job leaves the pool drivers to other jobs.
_MOST_FAILURES: Final = 2


class LaunchRequest(BaseModel):
    """The run that a pool driver has to drive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arguments: tuple[str, ...]  # command line of ``clonos``, without the program
    environment: dict[str, str]  # environment variables of the driver; all others stay as they are
    directory: Path  # working directory
    spec: Path  # the job.yaml of the run
    log: Path  # file for the output of the driver and of its JVM
    events: Path  # the event file of the run

    def message(self) -> bytes:
        """Encode the request as a mailbox message."""
        return self.model_dump_json().encode() + b"\n"


def pool_eligible(spec: Spec, *, first_start: bool, failures: int = 0) -> bool:
    """Whether a job may use a pool driver, by its specification and its failures. The job's code may still prevent it.

    Args:
        spec: The specification.
        first_start: Whether the job starts for the first time. Only a job with ``standby: {mode: pool}`` uses a pool
            driver then; others leave them to recoveries.
        failures: Number of consecutive failures before the start.
    """
    mode = spec.standby.mode
    wanted = mode == "pool" or (mode == "dedicated" and not first_start)
    return wanted and failures <= _MOST_FAILURES and spec.any_jvm
