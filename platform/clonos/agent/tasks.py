"""Executes host tasks: one-time work, such as a copy of a savepoint or a check of a cluster, in processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from pydantic import ValidationError

from clonos.agent.directories import AgentDirectory
from clonos.agent.environment import base_environment
from clonos.agent.settings import AgentSettings
from clonos.agent.users import DriverUser, driver_user, folder_of, give_folder
from clonos.client.agent_api import ApiRejected, ApiUnavailable
from clonos.documents import explain
from clonos.errors import BY_SLUG, AgentReplaced, ClonosError, EnvironmentFault, SpecError
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult
from clonos.resources.spec_secrets import from_folder, resolved, with_secrets
from clonos.resources.verification import READING_S, VERIFY, VerifyTask

_log = structlog.get_logger("clonos.agent")
_RETRY_S: Final = 1.0
_VERIFICATIONS: Final = 2  # at once
_STORAGE_SETTINGS: Final = ("spark.hadoop.", "spark.jars")


class Tasks:
    """Executes host tasks, each once, and reports each result until the control plane acknowledges it."""

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
        self._verifying = asyncio.Semaphore(_VERIFICATIONS)

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
                with contextlib.suppress(OSError):  # for an agent that restarts before the result is reported
                    self._directory.write_result(task.task, result)
            await self._report(task.task, result.model_copy(update={"instance": self._instance}))
        except (ApiRejected, AgentReplaced, OSError, ValueError) as error:
            _log.warning("task-result-not-reported", task=task.task, why=str(error))
        finally:
            del self._running[task.task]

    def _user_with_folder(self, task: HostTask) -> DriverUser | None:
        """Return the user for the task, who also runs the job's drivers. A savepoint's folder is created for it."""
        user = driver_user(self._settings, task.owner_number)
        if user is not None:
            savepoints = self._settings.home.absolute() / "savepoints"
            target = folder_of(str(task.arguments.get("target", "")))
            if target is not None and target.is_relative_to(savepoints) and target != savepoints:
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
            user = await asyncio.to_thread(self._user_with_folder, task)
            if task.kind == "check-cluster":
                result = await self._check_cluster(task, user)
            elif task.kind == VERIFY:
                result = await self._verify(task, user)
            else:
                result = await self._run_task_process(task, user)
        except ClonosError as error:
            return TaskResult(instance="", ok=False, failure=failure_of(error))
        except Exception as error:
            _log.exception("task-failed", task=task.task)
            fault = EnvironmentFault(
                f"The task {task.kind} could not be executed: {type(error).__name__}: {error}.",
                kept="the job and its own checkpoint are unchanged.",
                hint="see the log of the host's agent.",
            )
            return TaskResult(instance="", ok=False, failure=failure_of(fault))
        _log.info("task-done", task=task.task, kind=task.kind, ok=result.ok)
        return result

    async def _run_task_process(self, task: HostTask, user: DriverUser | None) -> TaskResult:
        task = await asyncio.to_thread(with_storage, task, self._settings.secrets_folder)
        ended = await self._run_process(self._settings.task_command, task.model_dump_json(), user)
        try:
            return TaskResult.model_validate_json(ended.out)
        except ValidationError:
            lines = ended.errors.strip().splitlines() or ["it wrote no error"]
            raise ClonosError(
                f"The process of the task {task.kind} exited with {ended.exit_code}: {lines[-1]}"
            ) from None

    async def _verify(self, task: HostTask, user: DriverUser | None) -> TaskResult:
        limit_s = VerifyTask.model_validate(task.arguments).seconds + READING_S
        # Each hashes whole topics: all at once would take the processors from the host's drivers.
        try:
            async with asyncio.timeout(limit_s), self._verifying:
                return await self._run_task_process(task, user)
        except TimeoutError:
            raise EnvironmentFault(
                f"The output was not read within {limit_s:g} s.",
                kept="nothing was changed.",
                hint="use clonos verify, which has no limit, or fewer topics.",
            ) from None

    async def _check_cluster(self, task: HostTask, user: DriverUser | None) -> TaskResult:
        secrets = self._settings.secrets_folder
        described = await asyncio.to_thread(with_secrets, cluster_of(task), secrets)
        command, timeout_s = self._settings.cluster_check_command, timeout_of(task)
        description = described.cluster.model_dump_json(by_alias=True)
        # A killed process cannot remove its temporary files.
        with tempfile.TemporaryDirectory(prefix="clonos-check-", ignore_cleanup_errors=True) as scratch:
            if user is not None:
                os.chown(scratch, user.uid, user.gid)
            home = {"HOME": scratch} if self._settings.other_users else {}
            environment = {**described.environment, **home, "TMPDIR": scratch}
            try:
                async with asyncio.timeout(timeout_s):
                    ended = await self._run_process(command, description, user, environment)
            except TimeoutError:
                raise EnvironmentFault(
                    f"The check of cluster {described.cluster.name} did not end within {timeout_s:g} s.",
                    hint="check that its master is reachable from this host, and that it has free cores and memory.",
                ) from None
        return result_of(ended.exit_code, ended.out, ended.errors)

    async def _run_process(
        self, command: Sequence[str], text: str, user: DriverUser | None, environment: Mapping[str, str] | None = None
    ) -> _Ended:
        """Run a process of `user` with `text` on its standard input; a cancellation kills it and its children."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**base_environment(self._settings), **(environment or {})},
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else (),
        )
        try:
            out, errors = await process.communicate(text.encode())
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return _Ended(process.returncode, out.decode(errors="replace"), errors.decode(errors="replace"))


def with_storage(task: HostTask, secrets: Path) -> HostTask:
    """Return the task with ``sparkConf``, the configuration of Spark's file systems with their secrets, instead of
    ``storage``.

    Raises:
        SpecError: This host does not have a secret.
    """
    storage = task.arguments.get("storage")
    if not storage:
        return task
    job = resolved(JobSpec.model_validate(storage["spec"]), from_folder(secrets, storage["owner"]))
    conf = dict(job.spec.spark_conf)
    if storage.get("cluster"):
        cluster = with_secrets(ClusterSpec.model_validate(storage["cluster"]), secrets)
        conf |= cluster.cluster.spec.spark_conf
    arguments = {name: value for name, value in task.arguments.items() if name != "storage"}
    hadoop = {name: value for name, value in conf.items() if name.startswith(_STORAGE_SETTINGS)}
    return task.model_copy(update={"arguments": {**arguments, "sparkConf": hadoop}})


class _Ended(NamedTuple):
    """The end of a process."""

    exit_code: int | None
    out: str
    errors: str


def cluster_of(task: HostTask) -> ClusterSpec:
    """Return the cluster that a host task checks; `SpecError` if the task has no description of it."""
    try:
        return ClusterSpec.model_validate(task.arguments.get("spec"))
    except ValidationError as error:
        raise SpecError(f"The task {task.kind} has no description of a cluster: {explain(error)}.") from error


def timeout_of(task: HostTask) -> float | None:
    """Seconds after which a host task is ended; None: it has no limit."""
    seconds = task.arguments.get("timeout_s")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def result_of(exit_code: int | None, out: str, errors: str) -> TaskResult:
    """Return the result of a check, from the exit code of its process, its output and its errors."""
    if exit_code == 0:
        try:
            report = ClusterReport.model_validate_json(out.strip().rpartition("\n")[2])
            return TaskResult(instance="", ok=True, result=report.model_dump(mode="json"))
        except ValidationError as error:
            errors = f"it printed no report: {explain(error)}"
    return TaskResult(instance="", ok=False, failure=failure_of(_error_in(errors, exit_code)))


def _error_in(text: str, exit_code: int | None) -> ClonosError:
    """Return the error in the last JSON line of a check: ``error`` (a slug), ``what``, ``kept``, ``hint``."""
    lines = text.strip().splitlines() or ["it wrote no error"]
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            printed = json.loads(line)
            if isinstance(printed, dict) and {"error", "what"} <= printed.keys():
                parts = {name: str(printed.get(name, "")) for name in ("kept", "hint")}
                return BY_SLUG.get(str(printed["error"]), ClonosError)(str(printed["what"]), **parts)
    return ClonosError(f"The check exited with {exit_code}: {lines[-1]}")
