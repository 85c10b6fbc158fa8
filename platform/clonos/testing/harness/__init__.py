"""Tools for tests that kill real processes and check the published output: demo, benchmarks and chaos tests use them.

- `processes`: `ProcessGroup`, a process with everything it started: kill, pause, resume, await the exit;
  `ChildProcess`, a command that the harness starts as such a group.
- `waiting`: `eventually`, the polling loop, and its `Deadline`, which a busy machine reaches later.
- `reader`: topics as a read_committed consumer sees them: all rows, end offsets, or a thread that follows them.
- `platform`: `Stack`, what ``clonos up`` starts; `PlatformJob`, one job on a control plane with its driver's and its
  standbys' processes; `has_rehearsed`, whether a standby has ended its rehearsals.

Invariants:

- Processes are killed from outside, with SIGKILL to the whole group, and a kill returns only when all of them exited.
- Nothing here reads the causal log: what a job published is read from its output topics.
- A wait that times out raises `TimeoutError` with its description.

Example::

    with Stack(tmp_path / "home") as stack:
        stack.cli("submit", "job", "--name", "words")
        job = PlatformJob(stack.client, "words")
        job.await_standby()
        killed = job.kill_driver()
        eventually(lambda: len(read_committed(stack.kafka, "out")) == 100, "the standby publishes the rest")

The package imports neither PySpark nor pytest, and nothing of `clonos_api`: it reaches a control plane over REST.
"""

from clonos.testing.harness.platform import PlatformJob, Stack, has_rehearsed
from clonos.testing.harness.processes import ChildProcess, Killed, ProcessGroup, pause_all, processes_of_home
from clonos.testing.harness.reader import CommittedReader, end_offsets, has_open_transaction, read_committed
from clonos.testing.harness.waiting import Deadline, eventually

__all__ = [
    "ChildProcess",
    "CommittedReader",
    "Deadline",
    "Killed",
    "PlatformJob",
    "ProcessGroup",
    "Stack",
    "end_offsets",
    "eventually",
    "has_open_transaction",
    "has_rehearsed",
    "pause_all",
    "processes_of_home",
    "read_committed",
]
