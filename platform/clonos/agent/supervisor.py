"""Supervises all runs of one host: brings them to the desired state of the host's work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from clonos.agent.directories import AgentDirectory
from clonos.agent.forwarding import Forwarder
from clonos.agent.run_attempt import HostContext
from clonos.agent.run_supervisor import RunSupervisor
from clonos.resources.hosts import RunReport, Work

_log = structlog.get_logger("clonos.agent")
# The last events and log lines of a removed run are kept for this long if the control plane is unavailable.
_FLUSH_S: Final = 86_400.0
_POLL_S: Final = 0.02
# A new job has a first checkpoint by then.
_FIRST_MEASURE_S: Final = 15.0


class Supervisor:
    """Brings all runs of one host to their desired states, with one `RunSupervisor` for each."""

    def __init__(
        self, context: HostContext, directory: AgentDirectory, create_forwarder: Callable[[str], Forwarder]
    ) -> None:
        self._context = context
        self._directory = directory
        self._create_forwarder = create_forwarder
        self._work = Work(revision=0)
        self._flush_s = _FLUSH_S
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runs: dict[str, RunSupervisor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def adopt(self) -> None:
        """Supervise the drivers that an earlier agent process started; `apply` sets the desired states."""
        for run in self._directory.runs():
            with contextlib.suppress(ValueError):  # not the directory of a run
                self._supervise(run)

    def pool_drivers(self) -> set[str]:
        """Names of the former pool drivers that are drivers of this host's runs."""
        return {supervisor.pool_driver for supervisor in self._runs.values()}

    def apply(self, work: Work) -> None:
        """Set the desired states of all runs of the host; runs that `work` does not contain are killed and removed."""
        self._work = work
        for spec in work.runs:
            try:
                self._supervise(spec.run).apply(spec)
            except ValueError as error:
                _log.error("run-spec-rejected", why=str(error))
        for run in self._runs.keys() - {spec.run for spec in work.runs}:
            self._runs[run].remove()
        self._context.artifacts.keep_only({spec.artifact for spec in work.runs})

    def reports(self) -> list[RunReport]:
        """Return the states of all runs, for the next heartbeat."""
        return [supervisor.report() for supervisor in self._runs.values()]

    async def failure(self) -> None:
        """Wait until the supervision of a run fails with an unexpected error, and raise it."""
        await self._failed

    async def measure(self) -> None:
        """Measure the sizes of the checkpoints periodically, one run after the other."""
        pause_s = min(_FIRST_MEASURE_S, self._context.settings.measure_s)
        while True:
            await asyncio.sleep(pause_s)
            for supervisor in list(self._runs.values()):
                await supervisor.measure()
            pause_s = self._context.settings.measure_s

    def stop_for_exit(self) -> None:
        """Begin to stop all drivers, because the agent exits; those that do not stop in time are killed."""
        for supervisor in self._runs.values():
            supervisor.stop_for_exit()

    async def drivers_exited(self) -> None:
        """Wait until no driver is alive."""
        while any(supervisor.running for supervisor in self._runs.values()):
            await asyncio.sleep(_POLL_S)

    async def forget_all(self) -> None:
        """Kill all drivers and remove the directories of all runs, because the host was removed."""
        self._flush_s = 0.0
        self.apply(Work(revision=0))
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Stop supervising all runs; their drivers keep running."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed.cancel()

    def _supervise(self, run: str) -> RunSupervisor:
        if run not in self._runs:
            self._runs[run] = RunSupervisor(self._context, self._directory.run(run))
            self._tasks[run] = asyncio.create_task(self._run(run), name=f"run {run}")
            self._tasks[run].add_done_callback(self._task_done)
        return self._runs[run]

    async def _run(self, run: str) -> None:
        """Supervise a run from its first specification, or its adoption, to the removal of its directory."""
        forwarder = self._create_forwarder(run)
        async with asyncio.TaskGroup() as group:
            forwarding = group.create_task(forwarder.forward(), name=f"forward {run}")
            await self._runs[run].supervise()
            await forwarder.flush(self._flush_s)
            forwarding.cancel()
        await asyncio.to_thread(self._directory.run(run).remove)
        del self._runs[run], self._tasks[run]
        self._context.changed()
        # The work may contain the run again since.
        for spec in self._work.runs:
            if spec.run == run:
                self._supervise(run).apply(spec)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
