"""What an agent has on disk: its last orders, and a folder for each run."""

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

from clonos.errors import DirectoryTaken
from clonos.resources.hosts import TaskResult, Work
from clonos.resources.jobs import Failure

_log = structlog.get_logger("clonos.agent")
_M = TypeVar("_M", bound=BaseModel)


class KeptOrders(BaseModel):
    """The last orders, and for which agent they are: another control plane counts its revisions anew."""

    agent: str
    work: Work


class RunRecord(BaseModel):
    """What must be known of a run's driver after the agent was killed at any moment.

    Attributes:
        attempt: Drivers started so far.
        in_row: Of these, how many ended too early one after the other; those of earlier runs before them too.
        started: When the attempt was about to be started; its driver may be there before `pid` is.
        pid: The driver, also the id of its session.
        identity: Tells the driver from a later process with the same id.
        events_from: Where the attempt's part of the event file begins.
        ended: When it was seen to be over.
        exit_code: Of the newest attempt that ended.
        failure: And why it did.
        final: No other attempt follows.
        standby: The attempt was started as a standby, and was not told to take over yet.
        spare: What it was before it was given this run (`clonos.agent.pool`); empty: it was started for it.
        drives: Since when the attempt is the job's driver; None: the run has only waited yet.
    """

    model_config = ConfigDict(frozen=True)

    attempt: int = 0
    in_row: int = 0
    started: datetime | None = None
    pid: int | None = None
    identity: str = ""
    events_from: int = 0
    ended: datetime | None = None
    exit_code: int | None = None
    failure: Failure | None = None
    final: bool = False
    standby: bool = False
    drives: datetime | None = None
    spare: str = ""

    @property
    def open(self) -> bool:
        """Whether an attempt was begun and not yet seen to be over."""
        return self.attempt > 0 and self.ended is None


class RunPlace:
    """The folder of one run.

    With a user id of their own, drivers can write only `work`, `scratch`, `events` and, if they were spares, `log`:
    what the agent believes is not theirs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder.name
        self.code = folder / "code"
        self.work = folder / "work"
        # Whatever a driver keeps only while it runs, such as the state of its queries.
        self.scratch = folder / "tmp"
        self.spec = folder / "spec.yaml"
        self.events = folder / "events.jsonl"
        self.log = folder / "driver.log"
        self.promotion = self.work / "promotion"
        self._record = folder / "driver.json"

    def make(self, spec: str, uid: int | None = None, gid: int | None = None) -> None:
        """Make what a driver needs to be there.

        Args:
            spec: Its specification, as YAML.
            uid: Who may read and write what is the driver's; default the agent's own user.
            gid: And which group.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        for one in (self.work, self.scratch):
            one.mkdir(exist_ok=True, mode=0o700)
        for file in (self.events, self.log, self.spec):
            file.touch(mode=0o600)
        self.spec.write_text(spec, encoding="utf-8")
        if uid is not None:
            for path in (self.work, self.scratch, self.events, self.spec):
                os.chown(path, uid, gid if gid is not None else -1)
        _end_line(self.events)

    def record(self) -> RunRecord:
        """What is known of the driver."""
        return _read(self._record, RunRecord) or RunRecord()

    def write_record(self, record: RunRecord) -> None:
        """Remember it."""
        write_atomically(self._record, record.model_dump_json())

    def clear(self) -> None:
        """Remove what a driver that has ended, perhaps without having the time to, kept only for itself."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def remove(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Place:
    """The folder of one agent.

    Args:
        folder: Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = folder / "runs"
        self.spares = folder / "spares"
        self._tasks = folder / "tasks"
        self.artifacts = folder / "artifacts"
        for one in (folder, self._runs, self._tasks, self.artifacts):
            one.mkdir(parents=True, exist_ok=True)
            one.chmod(0o711)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No other agent uses the folder meanwhile.

        Raises:
            DirectoryTaken: Another one does.
        """
        with (self._folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryTaken(
                    f"Another agent uses {self._folder}.",
                    kept="its drivers are not touched.",
                    hint="end that agent, or give this one another --name.",
                ) from error
            yield

    def orders(self) -> KeptOrders | None:
        """The last orders; None if there are none."""
        return _read(self._folder / "orders.json", KeptOrders)

    def write_orders(self, orders: KeptOrders) -> None:
        """Keep them for the time when the control plane is away."""
        # Unset fields of a specification stay unset: there the decorator in the code counts.
        write_atomically(self._folder / "orders.json", orders.model_dump_json(by_alias=True, exclude_unset=True))

    def forget_orders(self) -> None:
        """The next agent starts without any."""
        (self._folder / "orders.json").unlink(missing_ok=True)

    def run(self, run: str) -> RunPlace:
        """The folder of one run."""
        return RunPlace(self._runs / plain(run))

    def runs(self) -> list[str]:
        """The runs that have a folder."""
        return sorted(one.name for one in self._runs.iterdir() if one.is_dir())

    def result(self, task: str) -> TaskResult | None:
        """How a task went that was done already."""
        return _read(self._tasks / f"{plain(task)}.json", TaskResult)

    def write_result(self, task: str, result: TaskResult) -> None:
        """A task is done once, however often its result must be told."""
        write_atomically(self._tasks / f"{plain(task)}.json", result.model_dump_json())

    def forget_results(self, but: set[str]) -> None:
        """Drop results of tasks that are not ordered any more."""
        for file in self._tasks.glob("*.json"):
            if file.stem not in but:
                file.unlink(missing_ok=True)


def plain(name: str) -> str:
    """An id as a file name.

    Raises:
        ValueError: It is none.
    """
    if not name or not all(one.isalnum() or one in "-_" for one in name) or not name.isascii():
        raise ValueError(f"{name!r} is not an id")
    return name


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old or the new one whole, also after a loss of power."""
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path, model: type[_M]) -> _M | None:
    try:
        return model.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        _log.error("file-unreadable", file=str(path), why=str(error))
        return None


def _end_line(path: Path) -> None:
    """A driver that was killed while it wrote leaves half a line; the next one must not go on in it."""
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) is not None and file.read(1) != b"\n":
            file.write(b"\n")
