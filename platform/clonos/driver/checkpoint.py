"""Reads and repairs Spark's checkpoint of one query: its offset log and its commit log.

Local files are read directly; all other access is through Hadoop.

An entry ``offsets/e`` has a version line, a line of metadata (watermark, timestamp, conf) and a line of offsets for
each source, or ``-`` for a source without offsets.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from clonos.errors import (
    CausalLogDamaged,
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointOutdated,
    CheckpointUnavailable,
    CheckpointUnwritable,
    EpochFailed,
    SourceOffsetsExpired,
)
from clonos.extend.source import Progress
from clonos.jobs.spec import SHUFFLE_PARTITIONS
from clonos.log.control import RETAINED_EPOCHS, ControlState
from clonos.log.records import Plan
from clonos.spark.internals import hadoop_configuration, jvm_of
from clonos.spark.stored_files import causes, is_denied

_PROBE_BYTES: Final = 4096  # too many for a full disk
# Exceptions of Java's and Hadoop's file systems that do not answer, and errors of mounted ones.
_AWAY: Final = frozenset(
    {
        "AWSClientIOException",
        "AWSServiceThrottledException",
        "AWSStatus500Exception",
        "ApiCallTimeoutException",
        "ConnectException",
        "ConnectTimeoutException",
        "EOFException",
        "NoRouteToHostException",
        "RetriableException",
        "SafeModeException",
        "SocketException",
        "SocketTimeoutException",
        "StandbyException",
        "UnknownHostException",
    }
)
_AWAY_ERRORS: Final = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
# What Hadoop's file systems of object stores can do (`clonos.CheckpointFiles`).
_ABORTABLE: Final = "fs.capability.outputstream.abortable"
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _typed(
    method: Callable[Concatenate[CheckpointDirectory, _P], _R],
) -> Callable[Concatenate[CheckpointDirectory, _P], _R]:
    """Return a method whose errors of the file system are `CheckpointUnavailable` or `EpochFailed`."""

    @functools.wraps(method)
    def typed(self: CheckpointDirectory, /, *arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(self, *arguments, **named)
        except (Py4JJavaError, OSError) as error:
            typed_error = unusable(self.location, error)
            if isinstance(typed_error, CheckpointUnavailable):
                raise typed_error from error
            # `check`, which follows each failure, decides whether that is permanent.
            raise EpochFailed(typed_error.what) from error

    return typed


class CheckpointDirectory:
    """One query's checkpoint directory.

    Args:
        spark: The session; its Hadoop configuration defines the file systems.
        location: Path or URI of the directory.

    Raises:
        CheckpointUnavailable: Its file system does not answer.
        CheckpointUnwritable: Its file system is unknown, or refuses the configuration.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        jvm = jvm_of(spark)
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._fs: Any = self._path(location).getFileSystem(hadoop_configuration(spark))
        except Py4JJavaError as error:
            raise unusable(location, error) from error
        except Py4JError as error:
            raise CheckpointUnwritable(f"The checkpoint {location} cannot be used: {error}") from error
        self._jvm = jvm
        # A location without a scheme is in Hadoop's default file system.
        uri: str = self._path(location).makeQualified(self._fs.getUri(), self._fs.getWorkingDirectory()).toString()
        self._local = "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else None

    @property
    def local(self) -> Path | None:
        """Path of the directory, if it is on a local file system of this host; else None."""
        return Path(self._local) if self._local is not None else None

    def check(self) -> None:
        """Refuse a checkpoint that cannot be written, or from which Spark could not start. Call it before a claim.

        Raises:
            CheckpointUnavailable: Its file system does not answer. All methods may raise this error.
            CheckpointUnwritable: No directory or file can be created in it, or a paused driver could replace a file.
            CheckpointDamaged: The metadata, the newest commit or an offset-log entry that Spark reads is truncated.
        """
        probe = self._path(f"{self.location}/.clonos-probe-{uuid.uuid4()}")
        try:
            if self._has(_ABORTABLE) and not self._has(_CONDITIONAL):
                raise CheckpointUnwritable(
                    f"The store of {self.location} creates no file on the condition that it does not exist.",
                    kept="nothing was started.",
                    hint="leave out fs.s3a.create.conditional.enabled=false, or use a store that has this.",
                )
            self._fs.mkdirs(self._path(self.location))
            try:
                stream = self._fs.create(probe, True)
                try:
                    stream.write(bytes(_PROBE_BYTES))
                finally:
                    stream.close()
            finally:
                with contextlib.suppress(Py4JJavaError):
                    self._fs.delete(probe, False)
            metadata = self._read("metadata")
            commits = self.commits()
            commit = self._read("commits", commits[-1]) if commits else None
            entries = {epoch: self.read_offsets(epoch) for epoch in commits[-2:]}
        except (Py4JJavaError, OSError) as error:
            raise unusable(self.location, error) from error
        except EpochFailed as error:
            raise CheckpointUnwritable(error.what) from error
        if not _is_json(metadata or "") and (metadata is not None or commits):
            replacement = json.dumps({"id": str(uuid.uuid4())})
            raise self._damaged("metadata", f"restore it, or write {replacement} to it: nothing depends on the old id.")
        for name, sound in [
            *[(f"commits/{epoch}", _is_commit(commit or "")) for epoch in commits[-1:]],
            *[(f"offsets/{epoch}", entry is None or _is_entry(entry)) for epoch, entry in entries.items()],
        ]:
            if not sound:
                raise self._damaged(name, replay_from(int(name.partition("/")[2])))

    def _has(self, capability: str) -> bool:
        return bool(self._fs.hasPathCapability(self._path(self.location), capability))

    def _damaged(self, name: str, hint: str) -> CheckpointDamaged:
        return CheckpointDamaged(f"{self.location}/{name} is missing, truncated or not written by Spark.", hint=hint)

    def offsets(self) -> list[int]:
        """Return the epochs that have an entry in the offset log, ascending."""
        return self._epochs("offsets")

    def commits(self) -> list[int]:
        """Return the epochs that have an entry in the commit log, ascending."""
        return self._epochs("commits")

    def read_offsets(self, epoch: int) -> str | None:
        """Return the offset-log entry of `epoch`, verbatim; None if there is none."""
        return self._read("offsets", epoch)

    @_typed
    def _read(self, *name: object) -> str | None:
        if self._local is not None:  # every epoch reads here: faster than through Hadoop
            try:
                return Path(self._local, *map(str, name)).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None
        return self._text_of(self._path("/".join([self.location, *map(str, name)])))

    def _text_of(self, path: Any) -> str | None:
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def read_text(self, name: str) -> str | None:
        """Return the content of a file in the directory; None if there is none."""
        return self._read(name)

    @_typed
    def texts_above(self, name: str) -> list[str | None]:
        """Return the contents of the files `name` in the directories above this one, whether it exists or not.

        A file that the file system refuses to read counts as missing: a user may have rights below a prefix only.
        """
        if self._local is not None:
            return [_readable_text(parent / name) for parent in Path(self._local).resolve().parents]
        texts: list[str | None] = []
        path = self._path(self.location).getParent()
        while path is not None:
            try:
                texts.append(self._text_of(self._path(path, name)))
            except Py4JJavaError as error:
                if not is_denied(error):
                    raise
            path = path.getParent()
        return texts

    def write_text(self, name: str, text: str) -> None:
        """Replace a file in the directory. A crash in between leaves no file."""
        self._replace(self._path(f"{self.location}/{name}"), self._path(f"{self.location}/.{name}.tmp"), text)

    def write_offsets(self, epoch: int, text: str) -> None:
        """Replace ``offsets/epoch`` with `text`. A crash in between leaves no entry."""
        temporary = self._path(f"{self.location}/offsets/.{epoch}.restored.tmp")
        self._replace(self._entry("offsets", epoch), temporary, text)

    def add_epoch(self, epoch: int, *, offsets: str, commit: str) -> None:
        """Write the entries of a finished epoch, the offset log's first; those that exist stay."""
        for log, text in (("offsets", offsets), ("commits", commit)):
            if self._read(log, epoch) is None:
                temporary = self._path(f"{self.location}/{log}/.{epoch}.rescaled.tmp")
                self._replace(self._entry(log, epoch), temporary, text)

    @_typed
    def _replace(self, path: Any, temporary: Any, text: str) -> None:
        if self._has(_ABORTABLE):
            temporary = path  # a store of objects: the file is replaced when its stream is closed
        stream = self._fs.create(temporary, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if temporary is path:
            return
        self._fs.delete(path, False)
        if not self._fs.rename(temporary, path):
            raise CheckpointUnwritable(f"{path.toString()} could not be written.")

    @_typed
    def restore_metadata(self) -> bool:
        """Write ``metadata`` with a new id if the file is missing: Spark starts no query from offsets without it.

        Returns:
            Whether the file was missing.
        """
        path = self._path(f"{self.location}/metadata")
        if self._fs.exists(path):
            return False
        stream = self._fs.create(path, False)
        try:
            stream.write(json.dumps({"id": str(uuid.uuid4())}).encode())
        finally:
            stream.close()
        return True

    def settings(self) -> dict[str, str]:
        """Return the Spark setting with the number of shuffle partitions of the query's newest epoch, so that a restart
        keeps the number.

        Spark itself restores the number only for a query with state.
        """
        for epoch in self.offsets()[-1:]:
            conf = json.loads((self.read_offsets(epoch) or "").splitlines()[1])["conf"]
            return {name: conf[name] for name in (SHUFFLE_PARTITIONS,) if name in conf}
        return {}

    @property
    def partitions(self) -> int | None:
        """The number of shuffle partitions of the query's newest epoch; None before its first epoch."""
        width = self.settings().get(SHUFFLE_PARTITIONS)
        return int(width) if width is not None else None

    @_typed
    def drop_state(self) -> None:
        """Remove the state store's files of a query that has committed no epoch, so that its first epoch starts
        without state.
        """
        self._fs.delete(self._path(f"{self.location}/state"), True)

    @_typed
    def lacks_state(self) -> bool:
        """Whether the newest commit names state that has no file in the checkpoint, so that Spark cannot start."""
        for epoch in self.commits()[-1:]:
            _, _, body = (self._read("commits", epoch) or "").partition("\n")
            operators: dict[str, list[Any]] = (json.loads(body) if _is_json(body) else {}).get("stateUniqueIds") or {}
            if self._local is not None:  # every takeover asks: faster than through Hadoop
                state = Path(self._local, "state")
                folders = [state / name / str(part) for name, parts in operators.items() for part in range(len(parts))]
                return not all(folder.exists() for folder in folders)
            # On other file systems a request for each partition would delay each start.
            return not all(self._fs.exists(self._path(f"{self.location}/state/{name}")) for name in operators)
        return False

    @_typed
    def set_aside(self) -> str:
        """Rename the checkpoint's directory, so that the query starts from its first epoch; returns the new name."""
        parent, _, name = self.location.rpartition("/")
        aside = f"{parent}/.without-state-{name}-{uuid.uuid4().hex[:12]}"
        if not self._fs.rename(self._path(self.location), self._path(aside)):
            raise CheckpointUnwritable(f"{self.location} could not be renamed to {aside}.")
        return aside

    @_typed
    def drop_epoch(self, epoch: int) -> None:
        """Remove the entries of an old epoch, as Spark does, the commit log's first."""
        for log in ("commits", "offsets"):
            self._fs.delete(self._entry(log, epoch), False)

    @_typed
    def drop_offsets(self, epoch: int) -> None:
        """Remove the offset-log entry of `epoch`, so that Spark plans the epoch again."""
        self._fs.delete(self._entry("offsets", epoch), False)

    def _entry(self, log: str, epoch: int) -> Any:
        return self._path(f"{self.location}/{log}/{epoch}")

    @_typed
    def _epochs(self, log: str) -> list[int]:
        if self._local is not None:  # every takeover reads here: faster than through Hadoop
            try:
                return sorted(int(file.name) for file in Path(self._local, log).iterdir() if file.name.isdigit())
            except FileNotFoundError:
                return []
        folder = self._path(f"{self.location}/{log}")
        if not self._fs.exists(folder):
            return []
        names = (status.getPath().getName() for status in self._fs.listStatus(folder))
        return sorted(int(name) for name in names if name.isdigit())


def _readable_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return None


def unusable(location: str, error: Py4JJavaError | OSError) -> CheckpointUnavailable | CheckpointUnwritable:
    """Return the typed error of an access to the checkpoint `location` that failed."""
    if isinstance(error, OSError):
        away, reason = error.errno in _AWAY_ERRORS, str(error)
    else:
        away, reason = not _AWAY.isdisjoint(causes(error.java_exception)), error.java_exception.toString()
    if away:
        return CheckpointUnavailable(f"The file system of the checkpoint {location} does not answer: {reason}")
    return CheckpointUnwritable(f"The checkpoint {location} cannot be used: {reason}")


def replay_from(epoch: int) -> str:
    """Return the hint for a damaged checkpoint file: how the plans in the causal log, from `epoch` on, can replace
    it.
    """
    return (
        f"restore it from a copy; or remove commits/{epoch} and any later commits: if the log still holds their plans "
        f"(it retains at least {RETAINED_EPOCHS}), these epochs are replayed and publish nothing twice."
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_commit(text: str) -> bool:
    version, _, body = text.partition("\n")
    return version.startswith("v") and _is_json(body)


def _is_entry(text: str) -> bool:
    version, *lines = text.splitlines() or [""]
    return version.startswith("v") and len(lines) > 1 and all(line == "-" or _is_json(line) for line in lines)


def epoch_time(entry: str) -> int:
    """Return the timestamp of the epoch in an offset-log entry, in ms since 1970."""
    return int(json.loads(entry.splitlines()[1])["batchTimestampMs"])


def progress_of(entry: str) -> Progress:
    """Topic → partition → next offset in an offset-log entry, over all Kafka sources."""
    progress: Progress = {}
    for source in source_ends(entry):
        for topic, partitions in source.items():
            progress.setdefault(topic, {}).update(partitions)
    return progress


def source_ends(entry: str) -> list[Progress]:
    """Topic → partition → next offset in an offset-log entry, for each Kafka source."""
    sources: list[Progress] = []
    for line in entry.splitlines()[2:]:
        if not line.startswith("{"):
            continue
        offsets = json.loads(line)
        sources.append(
            {
                topic: {int(partition): int(offset) for partition, offset in partitions.items()}
                for topic, partitions in offsets.items()
                if isinstance(partitions, dict)
            }
        )
    return sources


def check_restart(
    checkpoint: CheckpointDirectory, query: str, state: ControlState, topics: Collection[str], *, partial: bool
) -> None:
    """Refuse to read source topics from their beginning that were created again, if an epoch in doubt forbids it.

    Args:
        checkpoint: The query's checkpoint.
        query: The query.
        state: The causal log, after a claim: no other driver publishes.
        topics: The topics.
        partial: Whether readers may have output of the next epoch, although the log has not committed it.

    Raises:
        CheckpointMismatch: The next epoch is published, or a part of it. It cannot be replayed, because records of
            `topics` are gone, and the new lineage would publish it again.
    """
    newest = _newest_commit(checkpoint)
    plan = state.plan(query, newest + 1)
    if plan is None or not checkpoint.offsets():  # a new checkpoint: it reads all topics from their beginning
        return
    read = sorted({part.topic for scan in plan.scans for part in scan} & set(topics))
    committed = state.committed.get(query, -1) > newest
    if not (read if committed else partial):  # the claim of a new lineage keeps a committed epoch
        return
    done = "is published, but not in the checkpoint" if committed else "is in doubt, and readers may have a part of it"
    raise CheckpointMismatch(
        f"Epoch {newest + 1} of {query} {done}; the source topics {read or sorted(topics)} were deleted and created "
        "again, so it cannot be replayed.",
        kept="the checkpoint and the published records are unchanged.",
        hint="start with --new-lineage, a new --checkpoint and a new output topic: the job then reads its sources from "
        "starting=, without its earlier state. With the old output topic, records of this and earlier epochs that the "
        "sources still have are published a second time.",
    )


def restart_topics(checkpoint: CheckpointDirectory, topics: Collection[str]) -> None:
    """Remove source topics that were created again from the newest commit, so that the next epoch reads them from their
    beginning. `check_restart` comes before.
    """
    newest = _newest_commit(checkpoint)
    if newest < 0:
        checkpoint.drop_offsets(0)
        checkpoint.drop_state()
        return
    entry = checkpoint.read_offsets(newest)
    if entry is None:
        return
    head, sources = entry.splitlines()[:2], entry.splitlines()[2:]
    kept = [_without_topics(source, topics) if source.startswith("{") else source for source in sources]
    if kept != sources:
        checkpoint.write_offsets(newest, "\n".join([*head, *kept]))


def _newest_commit(checkpoint: CheckpointDirectory) -> int:
    return max(checkpoint.commits(), default=-1)


def _without_topics(source: str, topics: Collection[str]) -> str:
    offsets = json.loads(source)
    left = {topic: partitions for topic, partitions in offsets.items() if topic not in topics}
    return source if left == offsets else json.dumps(left, separators=(",", ":"))


def reconcile(
    checkpoint: CheckpointDirectory, query: str, state: ControlState, check_retained: Callable[[Progress], None]
) -> list[str]:
    """Make the checkpoint agree with the log before its query starts: the log's plan has priority (invariant 6).

    * ``offsets/`` entries beyond the first epoch without a commit are removed. A superseded driver wrote them, or
      their epochs are replayed one by one.
    * An entry without a plan is removed: nothing was published from it, and Spark writes a new one. A crash may have
      truncated it, or it may name partitions that its sources no longer have. A valid entry of a query's first epoch
      stays: without it Spark would treat the checkpoint as new, and refuse it because of its state.
    * The entry of the epoch in doubt is restored from the plan if it is missing or differs. A host crash may lose it,
      because Spark does not sync it.
    * ``metadata`` is written if it is missing beside offsets, as in a checkpoint that was deleted.
    * A checkpoint without its state is set aside, if the log has the plans of all epochs and the sources their records:
      they are replayed.

    Args:
        checkpoint: The query's checkpoint.
        query: The query.
        state: The causal log.
        check_retained: Raises `SourceOffsetsExpired` if the sources lack records from these offsets on.

    Returns:
        One line for each repair, for the job's events.

    Raises:
        CheckpointOutdated: The checkpoint is older than the published output, and the log no longer holds the plans
            in between.
        CausalLogDamaged: The checkpoint has committed epochs that the log does not hold.
        CheckpointDamaged: State is missing, and the log lacks the plan of an epoch, or a source its records.
    """
    repairs = _without_lost_state(checkpoint, query, state, check_retained)
    commits, offsets = checkpoint.commits(), checkpoint.offsets()
    committed = commits[-1] if commits else -1
    in_doubt = committed + 1
    if (plan := next_plan(query, committed, state)) is not None:
        if checkpoint.read_offsets(in_doubt) != plan.offsets:
            checkpoint.write_offsets(in_doubt, plan.offsets)
            repairs.append(f"restored offsets/{in_doubt} from the plan")
    elif in_doubt in offsets and (in_doubt > 0 or not _is_entry(checkpoint.read_offsets(in_doubt) or "")):
        checkpoint.drop_offsets(in_doubt)
        if in_doubt == 0:
            checkpoint.drop_state()
        repairs.append(f"removed offsets/{in_doubt}: it was not planned")
    for epoch in offsets:
        if epoch > in_doubt:
            checkpoint.drop_offsets(epoch)
            repairs.append(f"removed offsets/{epoch}")
    if checkpoint.offsets() and checkpoint.restore_metadata():
        repairs.append("restored metadata with a new id")
    return repairs


def next_plan(query: str, committed: int, state: ControlState) -> Plan | None:
    """Return the plan of the epoch that follows `committed`, the newest one that the checkpoint has; None: it is not
    planned.

    Raises:
        CheckpointOutdated: As of `reconcile`.
        CausalLogDamaged: As of `reconcile`.
    """
    planned = max(state.newest_plan(query), state.committed.get(query, -1))
    if committed > state.committed.get(query, -1):
        raise CausalLogDamaged(
            f"The checkpoint of {query} has committed epoch {committed}, the causal log only "
            f"{state.committed.get(query, -1)}.",
            hint="restore the log topic, or start a new lineage (--new-lineage) with a new output topic.",
        )
    plan = state.plan(query, committed + 1)
    if planned > committed and plan is None:
        raise CheckpointOutdated(
            f"The checkpoint of {query} ends at epoch {committed}, but epoch {planned} was already published and "
            f"the log no longer holds the plan of {committed + 1}."
        )
    return plan


def _without_lost_state(
    checkpoint: CheckpointDirectory, query: str, state: ControlState, check_retained: Callable[[Progress], None]
) -> list[str]:
    """Set a checkpoint with missing state aside, if a replay of all epochs can restore the state."""
    if not checkpoint.lacks_state():
        return []
    newest = max(state.newest_plan(query), state.committed.get(query, -1))
    plans = {epoch: state.plan(query, epoch) for epoch in range(newest + 1)}
    missing = next((epoch for epoch, plan in plans.items() if plan is None), None)
    if missing is not None:
        raise _state_lost(checkpoint, query, f"the log no longer holds the plan of epoch {missing}")
    first: Progress = {}
    for part in (part for plan in plans.values() if plan is not None for scan in plan.scans for part in scan):
        partitions = first.setdefault(part.topic, {})
        partitions[part.partition] = min(part.start, partitions.get(part.partition, part.start))
    try:
        check_retained(first)  # before the checkpoint is renamed
    except SourceOffsetsExpired as error:
        raise _state_lost(checkpoint, query, f"a source no longer holds the records. {error.what}") from error
    return [f"set the checkpoint aside as {checkpoint.set_aside()}: its state is missing, all epochs are replayed"]


def _state_lost(checkpoint: CheckpointDirectory, query: str, reason: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"The state of {query} is missing in its checkpoint {checkpoint.location}. A replay cannot restore "
        f"it: {reason.rstrip('.')}.",
        hint="restore the folder from a copy, or start the job from a savepoint (`clonos job start JOB --from "
        "SAVEPOINT`). Without both, start a job with a new name and a new output topic.",
    )
