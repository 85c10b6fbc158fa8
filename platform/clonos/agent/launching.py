"""Starts a run's driver: as a new process, or in a pool driver that is warm already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from clonos.agent.directories import RunDirectory, RunRecord
from clonos.agent.environment import driver_environment, launch_environment
from clonos.agent.memory import MemoryLimits, join
from clonos.agent.priority import Priority, set_priority
from clonos.agent.process import launch
from clonos.agent.run_attempt import RunAttempt
from clonos.agent.settings import AgentSettings
from clonos.agent.users import DriverUser
from clonos.agent.warm_pool import PoolDriver, WarmPool
from clonos.jobs.spec import JobSpec
from clonos.log.platform_identity import Platform
from clonos.resources.hosts import RunSpec
from clonos.standby.launch_request import LaunchRequest, pool_eligible


def driver_command(
    settings: AgentSettings, directory: RunDirectory, spec: RunSpec, *, claimed: bool = False
) -> list[str]:
    """Return the command line of a run's driver; `claimed`: whether a driver of the run has claimed the log."""
    paths = {"{spec}": str(directory.spec), "{events}": str(directory.events)}
    command = [paths.get(argument, argument) for argument in settings.command]
    if spec.standby:
        command += ["--standby", str(directory.promotion)]
    if spec.accept_new_code:
        command.append("--accept-new-code")
    if spec.finish_for:
        command.append("--finish-in-doubt")
    else:  # the decisions are about the replays of the version that continues
        command += [part for resolution in spec.resolutions for part in ("--resolve", resolution.option)]
    if spec.accept_unpublished:
        command.append("--accept-unpublished")
    if spec.cluster is not None:
        command += ["--cluster", str(directory.cluster)]
    for subject in filter(None, (spec.owner, *spec.folder_owners)):
        command += ["--owner", subject]
    if spec.platform:
        command += ["--platform", Platform(spec.platform, _name_of_control_plane(settings)).option]
    if spec.adopt and not claimed:
        command.append("--adopt")
    return command


def _name_of_control_plane(settings: AgentSettings) -> str:
    """Return the name of the agent's control plane in messages; a password in the address is not part of it."""
    address = urlsplit(settings.api)
    url = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    return f"the control plane at {url} (host {settings.name})"


def may_use_pool(settings: AgentSettings, spec: RunSpec, job: JobSpec, record: RunRecord) -> bool:
    """Whether a pool driver can run the job, as its driver or as a standby; `record` has the attempt that starts.

    A pool driver cannot restore a checkpoint, or use a Spark cluster. A standby that failed here starts without a pool
    driver: the job's driver may have failed too, and needs the pool driver more.
    """
    starts_normally = spec.restore_location is None and spec.cluster is None and "run" in settings.command
    if spec.standby and record.attempt > 1:
        return False
    first_start = not spec.standby and spec.earlier_attempts + record.attempt == 1
    failures = record.consecutive_failures
    return starts_normally and pool_eligible(job.spec, first_start=first_start, failures=failures)


async def launch_in_pool(settings: AgentSettings, pool: WarmPool, attempt: RunAttempt, command: list[str]) -> bool:
    """Start the attempt in a warm pool driver; returns whether a pool driver accepted it."""
    driver = pool.take()
    if driver is None:
        return False
    try:
        # Before the request: an agent that restarts after a crash then adopts the driver, or kills the process.
        attempt.write(pid=driver.pid, identity=driver.identity, pool_driver=driver.name)
        if _request_launch(settings, attempt, driver, command):
            return True
    except BaseException:
        await asyncio.to_thread(pool.kill, driver)
        raise
    await asyncio.to_thread(pool.kill, driver)
    attempt.write(pid=None, identity="", pool_driver="")
    return False


def launch_process(
    settings: AgentSettings,
    attempt: RunAttempt,
    spec: RunSpec,
    command: list[str],
    user: DriverUser | None,
    cluster_environment: Mapping[str, str],
    packages: Path | None,
) -> int:
    """Start the attempt as a new driver process of `user` (None: the agent's); returns its process id.

    `cluster_environment` are the environment variables for the driver's Spark cluster, `packages` is the folder of the
    job's own packages.

    Raises:
        OSError: The process cannot be started.
    """
    directory = attempt.directory
    return launch(
        _with_restore(spec, directory, command),
        directory=directory.work,
        environment=driver_environment(
            settings, directory, attempt.record.attempt, cluster=cluster_environment, packages=packages
        ),
        log=directory.log,
        uid=user.uid if user else None,
        gid=user.gid if user else None,
    )


def limit_memory(settings: AgentSettings, memory: MemoryLimits, run: str, pid: int) -> None:
    """Put a run's driver process into a cgroup with the memory limit of the settings, if they have one."""
    if settings.memory_limit_mb is not None and (group := memory.create(run, settings.memory_limit_mb)):
        join(group, pid)


def _request_launch(settings: AgentSettings, attempt: RunAttempt, driver: PoolDriver, command: list[str]) -> bool:
    directory = attempt.directory
    request = LaunchRequest(
        arguments=tuple(command[command.index("run") :]),
        environment=launch_environment(directory, attempt.record.attempt),
        directory=directory.work,
        spec=directory.spec,
        log=directory.log,
        events=directory.events,
    )
    if settings.uid is not None:
        os.chown(directory.log, settings.uid, -1)  # the pool driver opens the log itself
    set_priority(driver.pid, Priority.DRIVER)
    if driver.launch(request):
        with contextlib.suppress(ProcessLookupError):
            attempt.watch(driver.pid, driver.identity)
            return True
    return False


def _with_restore(spec: RunSpec, directory: RunDirectory, command: list[str]) -> list[str]:
    """`command`, preceded by the restore of the job's checkpoint if `spec` has one (`clonos.agent.restoring`)."""
    location = spec.restore_location
    if location is None:
        return command
    start = spec.start_from
    epoch = "-" if start is None or start.epoch is None else str(start.epoch)
    publish_again = "publish-again" if start is not None and start.publish_again else "-"
    request_key = spec.request_key or spec.run
    restore = [sys.executable, "-m", "clonos.agent.restoring", str(directory.spec), str(directory.events)]
    restore += [location, epoch, request_key, publish_again]
    return [*restore, *command, "--new-lineage", "--request-key", request_key]
