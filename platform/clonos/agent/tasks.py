"""Executes host tasks: one-time work, such as copying or deleting a savepoint, each in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog
from pydantic import ValidationError

from clonos.agent.directories import AgentDirectory
from clonos.agent.environment import base_environment
from clonos.agent.settings import AgentSettings
from clonos.agent.users import DriverUser, driver_user, give_folder
from clonos.client.agent_api import ApiRejected, ApiUnavailable
from clonos.errors import AgentReplaced, ClonosError
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult

_log = structlog.get_logger("clonos.agent")
_RETRY_S: Final = 1.0


class Tasks:
    """Executes host tasks, each once, and reports each result until the control plane acknowledges it.

    Args:
        settings: Settings of the agent.
        directory: Directory of the agent.
        instance: Random id of this agent process.
        report: Sends the result of a task (its id) to the control plane; called again if that is unreachable.
    """

    def __init__(
        self,
        settings: AgentSettings,
        directory: AgentDirectory,
        instance: str,
        report: Callable[[str, TaskResult], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._instance = instance
        self._report_once = report
        self._running: dict[str, asyncio.Task[None]] = {}

    def apply(self, tasks: list[HostTask]) -> None:
        """Execute the host tasks that are new, and delete the stored results of tasks that are not in `tasks`."""
        self._directory.remove_results(keep={task.task for task in tasks} | self._running.keys())
        for task in tasks:
            if task.task not in self._running:
                self._running[task.task] = asyncio.create_task(self._run(task), name=f"task {task.task}")

    async def close(self) -> None:
        """Abort the host tasks in progress.

        The next agent process executes them again if the host's work still contains them.
        """
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, task: HostTask) -> None:
        try:
            result = self._directory.result(task.task)
            if result is None:
                result = await self._execute(task)
                self._directory.write_result(task.task, result)
            await self._report(task.task, result.model_copy(update={"instance": self._instance}))
        except (ApiRejected, AgentReplaced, OSError, ValueError) as error:
            _log.warning("task-result-not-reported", task=task.task, why=str(error))
        finally:
            del self._running[task.task]

    def _prepare(self, task: HostTask) -> DriverUser | None:
        """The user of the job's drivers, whose files the task reads and writes: it must reach no others."""
        user = driver_user(self._settings, task.owner_number)
        if user is not None:
            savepoints = self._settings.home.absolute() / "savepoints"
            target = Path(urlsplit(str(task.arguments.get("target", ""))).path)
            if target.is_relative_to(savepoints) and target != savepoints:
                give_folder(savepoints, target.relative_to(savepoints).parts[0], user)
        return user

    async def _report(self, task: str, result: TaskResult) -> None:
        while True:
            try:
                return await self._report_once(task, result)
            except ApiUnavailable as error:
                await asyncio.sleep(max(error.retry_after_s, _RETRY_S))

    async def _execute(self, task: HostTask) -> TaskResult:
        try:
            user = await asyncio.to_thread(self._prepare, task)
        except ClonosError as error:
            return TaskResult(instance="", ok=False, failure=failure_of(error))
        process = await asyncio.create_subprocess_exec(
            *self._settings.task_command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=base_environment(self._settings),
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else (),
        )
        try:
            out, errors = await process.communicate(task.model_dump_json().encode())
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        try:
            result = TaskResult.model_validate_json(out)
        except ValidationError:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it wrote no error"]
            what = f"The process of the task {task.kind} exited with {process.returncode}: {lines[-1]}"
            result = TaskResult(instance="", ok=False, failure=failure_of(ClonosError(what)))
        _log.info("task-done", task=task.task, kind=task.kind, ok=result.ok)
        return result
