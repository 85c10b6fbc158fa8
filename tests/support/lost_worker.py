"""A Python worker that is lost in mid-epoch, once one lane is published."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from clonos.causal.epoch_scope import worker_kafka
from clonos.testing.harness import Deadline, read_committed


def lose_worker_once(flag: str, out: str, partition: int) -> None:
    """In every partition but the first: wait until another lane is published, then lose the worker.

    Args:
        flag: Path of a file that says that a worker was lost.
        out: Topic of the lanes.
        partition: Partition of the source that the worker computes.
    """
    path = Path(flag)
    if partition == 0 or path.exists():
        return
    deadline = Deadline(30)
    while not read_committed(worker_kafka(), out):
        if deadline.passed():
            raise TimeoutError(f"no lane of {out} was published: tasks must publish lanes (fixture partition_lanes)")
        time.sleep(0.05)
    path.touch()
    os.kill(os.getpid(), signal.SIGKILL)
