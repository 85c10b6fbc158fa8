"""What is done once: savepoints are copied and deleted where the checkpoints can be reached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from pydantic import ValidationError

from clonos.agent.client import ApiAway, ApiRefused
from clonos.agent.environment import needed
from clonos.agent.place import Place
from clonos.agent.settings import AgentSettings
from clonos.errors import AgentReplaced, ClonosError
from clonos.resources.failures import failure_of
from clonos.resources.hosts import TaskOrder, TaskResult

_log = structlog.get_logger("clonos.agent")
_AGAIN_S: Final = 1.0


class Tasks:
    """Does tasks, each once, and tells how they went until somebody has heard it.

    Args:
        settings: The agent's.
        place: Its folder.
        instance: Of this agent.
        tell: Sends a result.
    """

    def __init__(
        self,
        settings: AgentSettings,
        place: Place,
        instance: str,
        tell: Callable[[str, TaskResult], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._place = place
        self._instance = instance
        self._tell = tell
        self._running: dict[str, asyncio.Task[None]] = {}

    def take(self, orders: list[TaskOrder]) -> None:
        """Do what is new."""
        self._place.forget_results(but={order.task for order in orders} | self._running.keys())
        for order in orders:
            if order.task not in self._running:
                self._running[order.task] = asyncio.create_task(self._life(order), name=f"task {order.task}")

    async def close(self) -> None:
        """Give up what is under way; it is done anew if it is still ordered."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _life(self, order: TaskOrder) -> None:
        try:
            result = self._place.result(order.task)
            if result is None:
                result = await self._do(order)
                self._place.write_result(order.task, result)
            await self._told(order.task, result.model_copy(update={"instance": self._instance}))
        except (ApiRefused, AgentReplaced, OSError, ValueError) as error:
            _log.warning("task-not-told", task=order.task, why=str(error))
        finally:
            del self._running[order.task]

    async def _told(self, task: str, result: TaskResult) -> None:
        while True:
            try:
                return await self._tell(task, result)
            except ApiAway as error:
                await asyncio.sleep(max(error.after_s, _AGAIN_S))

    async def _do(self, order: TaskOrder) -> TaskResult:
        process = await asyncio.create_subprocess_exec(
            *self._settings.task_command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=needed(self._settings),
            start_new_session=True,
        )
        try:
            out, trouble = await process.communicate(order.model_dump_json().encode())
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        try:
            result = TaskResult.model_validate_json(out)
        except ValidationError:
            said = trouble.decode(errors="replace").strip().splitlines()
            what = f"The process of the task {order.kind} ended with {process.returncode}: {(said or ['no word'])[-1]}"
            result = TaskResult(instance="", ok=False, failure=failure_of(ClonosError(what)))
        _log.info("task-done", task=order.task, kind=order.kind, ok=result.ok)
        return result
