"""All runs of one host: brings what runs to what is ordered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from clonos.agent.artifacts import Artifacts
from clonos.agent.forward import Forwarder
from clonos.agent.keeper import Keeper
from clonos.agent.memory import MemoryLimits
from clonos.agent.place import Place
from clonos.agent.pool import Pool
from clonos.agent.settings import AgentSettings
from clonos.resources.hosts import RunReport, Work

_log = structlog.get_logger("clonos.agent")
# What a driver told last is not forgotten before it is told, also if the control plane is away for long.
_LAST_WORDS_S: Final = 86_400.0
_LOOK_S: Final = 0.02
# A job has a first checkpoint by then.
_FIRST_S: Final = 15.0


class Supervisor:
    """Keeps the runs of one host.

    Args:
        settings: The agent's.
        place: Its folder.
        artifacts: Where code comes from.
        memory: What limits memory.
        forwarder: Makes what tells of one run.
        changed: Called when there is something to report at once.
        alone: Whether the control plane is away for longer than a lease.
        pool: Has spares.
    """

    def __init__(
        self,
        settings: AgentSettings,
        place: Place,
        artifacts: Artifacts,
        memory: MemoryLimits,
        forwarder: Callable[[str], Forwarder],
        changed: Callable[[], None],
        alone: Callable[[], bool],
        pool: Pool,
    ) -> None:
        self._settings = settings
        self._place = place
        self._artifacts = artifacts
        self._memory = memory
        self._forwarder = forwarder
        self._changed = changed
        self._alone = alone
        self._pool = pool
        self._work = Work(revision=0)
        self._patience_s = _LAST_WORDS_S
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keepers: dict[str, Keeper] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def adopt(self) -> None:
        """Look after the runs that an earlier agent had; what they are to do is said by `take`."""
        for run in self._place.runs():
            with contextlib.suppress(ValueError):  # not a folder of ours
                self._keep(run)

    def spares(self) -> set[str]:
        """Spares that became drivers of these runs."""
        return {keeper.spare for keeper in self._keepers.values()}

    def take(self, work: Work) -> None:
        """Bring what runs to what is ordered; what is not in it any more is ended and forgotten."""
        self._work = work
        for order in work.runs:
            try:
                self._keep(order.run).take(order)
            except ValueError as error:
                _log.error("order-refused", why=str(error))
        for run in self._keepers.keys() - {order.run for order in work.runs}:
            self._keepers[run].forget()
        self._artifacts.keep_only({order.artifact for order in work.runs})

    def reports(self) -> list[RunReport]:
        """How each run is doing."""
        return [keeper.report() for keeper in self._keepers.values()]

    async def failure(self) -> None:
        """Wait for a defect: what keeps a run must not end by itself.

        Raises:
            Exception: It has.
        """
        await self._failed

    async def measure(self) -> None:
        """Look how large the checkpoints are, now and then, one after the other."""
        pause_s = min(_FIRST_S, self._settings.measure_s)
        while True:
            await asyncio.sleep(pause_s)
            for keeper in list(self._keepers.values()):
                await keeper.measure()
            pause_s = self._settings.measure_s

    async def stop_all(self) -> None:
        """End all drivers gracefully, or else by force."""
        for keeper in self._keepers.values():
            keeper.leave()
        while any(keeper.running for keeper in self._keepers.values()):
            await asyncio.sleep(_LOOK_S)

    async def forget_all(self) -> None:
        """End and forget everything."""
        self._patience_s = 0.0
        self.take(Work(revision=0))
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Look after nothing any more; the drivers go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed.cancel()

    def _keep(self, run: str) -> Keeper:
        if run not in self._keepers:
            place = self._place.run(run)
            self._keepers[run] = Keeper(
                self._settings, place, self._artifacts, self._memory, self._changed, self._alone, self._pool
            )
            self._tasks[run] = asyncio.create_task(self._life(run), name=f"run {run}")
            self._tasks[run].add_done_callback(self._over)
        return self._keepers[run]

    async def _life(self, run: str) -> None:
        """From the first order, or the adoption, to the end of its folder."""
        forwarder = self._forwarder(run)
        async with asyncio.TaskGroup() as group:
            forwarding = group.create_task(forwarder.forward(), name=f"forward {run}")
            await self._keepers[run].keep()
            await forwarder.last_words(self._patience_s)
            forwarding.cancel()
        await asyncio.to_thread(self._place.run(run).remove)
        del self._keepers[run], self._tasks[run]
        self._changed()
        # Ordered again while it was being forgotten.
        for order in self._work.runs:
            if order.run == run:
                self._keep(run).take(order)

    def _over(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
