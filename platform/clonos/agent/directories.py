"""The files of an agent: the stored work of its host, results of host tasks, and a directory for each run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from clonos.agent.users import DriverUser
from clonos.errors import DirectoryInUse
from clonos.private_folders import write_private
from clonos.resources.hosts import TaskResult, Work
from clonos.resources.jobs import Failure

_log = structlog.get_logger("clonos.agent")
_M = TypeVar("_M", bound=BaseModel)


class StoredWork(BaseModel):
    """The work that the agent received last."""

    agent: str  # id of the host, given by the control plane that assigned the work
    work: Work


class RunRecord(BaseModel):
    """The state of a run on disk: enough to continue after the agent was killed at any moment."""

    model_config = ConfigDict(frozen=True)

    attempt: int = 0  # number of drivers started so far
    # Failures since an attempt was last healthy (`clonos.agent.restart_policy.is_healthy`), including those of the
    # job's earlier runs.
    consecutive_failures: int = 0
    # Time just before the attempt started; its driver may exist before `pid` is written.
    started: datetime | None = None
    pid: int | None = None  # process id of the driver, also the id of its session
    identity: str = ""  # identity of the driver's process, which no later process with the same id has
    events_offset: int = 0  # offset in bytes at which the attempt's events begin
    ended: datetime | None = None  # time when the end of the attempt was recorded
    exit_code: int | None = None  # exit code of the newest attempt that ended
    failure: Failure | None = None  # failure of the newest attempt that ended; None if it had none
    final: bool = False  # whether no further attempt follows
    standby: bool = False  # whether the attempt was started as a standby and has not been promoted
    # Time at which the run began to drive the job; None: the run has only been a standby.
    driver_since: datetime | None = None
    pool_driver: str = ""  # name of the pool driver that the driver was before (`clonos.agent.warm_pool`), or empty

    @property
    def open(self) -> bool:
        """Whether the newest attempt has started and its end is not recorded."""
        return self.attempt > 0 and self.ended is None


class RunDirectory:
    """The files of one run on its host.

    Drivers with their own user id can write only `work`, `scratch`, `events`, `spec`, `cluster` and, if they were pool
    drivers, `log`. They cannot write the `RunRecord` that the agent relies on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder.name
        self.code = folder / "code"
        self.work = folder / "work"
        # Temporary files of a driver, such as the state of its queries.
        self.scratch = folder / "tmp"
        self.spec = folder / "spec.yaml"
        self.cluster = folder / "cluster.json"
        self.events = folder / "events.jsonl"
        self.log = folder / "driver.log"
        self.promotion = self.work / "promotion"
        self._record = folder / "driver.json"

    def close(self) -> None:
        """Close the run's directory to other users, until `create` has set the modes of what is in it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def create(self, spec: str, user: DriverUser | None = None, *, cluster: str = "") -> None:
        """Create the directories and files that the run's driver needs: `spec` is YAML, `cluster` JSON (empty: none).

        The driver's files belong to `user`, and only its group can read the code. Default: the agent's own user.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.work, self.scratch):
            folder.mkdir(exist_ok=True, mode=0o700)
        for file in (self.events, self.log, self.spec, *((self.cluster,) if cluster else ())):
            file.touch(mode=0o600)
        self.spec.write_text(spec, encoding="utf-8")
        if cluster:
            self.cluster.write_text(cluster, encoding="utf-8")
        if user is not None:
            for path in (self.work, self.scratch, self.events, self.spec, *((self.cluster,) if cluster else ())):
                os.chown(path, user.uid, user.gid)
            if self.code.is_dir():
                os.chown(self.code, -1, user.gid)
                self.code.chmod(0o750)
        self.folder.chmod(0o711)
        _complete_last_line(self.events)

    def record(self) -> RunRecord:
        """Read the run's record."""
        return _read(self._record, RunRecord) or RunRecord()

    def write_record(self, record: RunRecord) -> None:
        """Replace the run's record, atomically."""
        write_private(self._record, record.model_dump_json())

    def clear(self) -> None:
        """Remove the temporary files of the run's driver, which has exited."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def remove(self) -> None:
        """Remove the directory of the run."""
        shutil.rmtree(self.folder, ignore_errors=True)


class AgentDirectory:
    """The files of one agent: its work, results of host tasks, and a directory for each run. Creates the directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = folder / "runs"
        self.pool_drivers = folder / "pool_drivers"
        self._tasks = folder / "tasks"
        self.artifacts = folder / "artifacts"
        self.renewed_token = folder / "token.json"
        for path in (folder, self._runs, self._tasks, self.artifacts):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against other agents inside the context; `DirectoryInUse` if one holds the lock."""
        with (self._folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryInUse(
                    f"Another agent uses {self._folder}.",
                    kept="its drivers are not touched.",
                    hint="stop that agent, or start this agent with another --name.",
                ) from error
            yield

    def work(self) -> StoredWork | None:
        """Return the stored work; None if there is none."""
        return _read(self._folder / "work.json", StoredWork)

    def write_work(self, work: StoredWork) -> None:
        """Store the work, for a restart while the control plane is unavailable."""
        # Unset fields of a specification stay unset, because the decorator in the code sets them.
        write_private(self._folder / "work.json", work.model_dump_json(by_alias=True, exclude_unset=True))

    def remove_work(self) -> None:
        """Remove the stored work, because it no longer applies."""
        (self._folder / "work.json").unlink(missing_ok=True)

    def run(self, run: str) -> RunDirectory:
        """Return the directory of the run with this id."""
        return RunDirectory(self._runs / checked_id(run))

    def runs(self) -> list[str]:
        """Return the ids of the runs that have a directory."""
        return sorted(path.name for path in self._runs.iterdir() if path.is_dir())

    def result(self, task: str) -> TaskResult | None:
        """Return the result of a host task that was executed already; None if it was not."""
        return _read(self._tasks / f"{checked_id(task)}.json", TaskResult)

    def write_result(self, task: str, result: TaskResult) -> None:
        """Store the result of a host task: it is executed once, although its result may be reported several times."""
        write_private(self._tasks / f"{checked_id(task)}.json", result.model_dump_json())

    def remove_results(self, keep: set[str]) -> None:
        """Remove the stored results of all host tasks except those in `keep`."""
        for file in self._tasks.glob("*.json"):
            if file.stem not in keep:
                file.unlink(missing_ok=True)


def checked_id(name: str) -> str:
    """Return an id that is safe as a file name; `ValueError` if it could denote another directory."""
    if not name or not all(character.isalnum() or character in "-_" for character in name) or not name.isascii():
        raise ValueError(f"{name!r} is not an id")
    return name


def _read(path: Path, model: type[_M]) -> _M | None:
    try:
        return model.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        _log.error("file-unreadable", file=str(path), why=str(error))
        return None


def _complete_last_line(path: Path) -> None:
    """Add the line end that a killed driver may not have written, so that the next driver begins a new line."""
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) is not None and file.read(1) != b"\n":
            file.write(b"\n")
