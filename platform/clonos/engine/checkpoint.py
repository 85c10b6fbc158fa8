"""Spark's checkpoint of one query: the offset log and the commit log, read and repaired through Hadoop.

An entry ``offsets/e`` is a version line, a line of metadata (watermark, timestamp, conf) and a line of
offsets for each source, ``-`` where a source has none.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from clonos.errors import CausalLogDamaged, CheckpointDamaged, CheckpointOutdated, CheckpointUnwritable
from clonos.log.control import RETAINED_EPOCHS, ControlState
from clonos.log.records import Plan
from clonos.sources import Progress

_WIDTH: Final = "spark.sql.shuffle.partitions"
_PROBE_BYTES: Final = 4096  # more than a full disk takes


class Checkpoint:
    """One query's checkpoint directory.

    Args:
        spark: The session (any file system that its Hadoop configuration knows).
        location: Path or URI.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs: Any = self._path(location).getFileSystem(spark._jsc.hadoopConfiguration())
        self._jvm = jvm
        # A location without a scheme is in Hadoop's default file system.
        whole: str = self._path(location).makeQualified(self._fs.getUri(), self._fs.getWorkingDirectory()).toString()
        self._local = "/" + whole.removeprefix("file:").lstrip("/") if whole.startswith("file:") else None

    @property
    def local(self) -> Path | None:
        """Where it is on this machine; None: on another file system."""
        return Path(self._local) if self._local is not None else None

    def check(self) -> None:
        """Refuse a checkpoint that cannot be written, or that Spark could not start from; before anything is claimed.

        Raises:
            CheckpointUnwritable: No folder or file can be made in it.
            CheckpointDamaged: The metadata, the newest commit or an offset-log entry that Spark reads is cut short.
        """
        probe = self._path(f"{self.location}/.clonos-probe-{uuid.uuid4()}")
        try:
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
            why = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
            raise CheckpointUnwritable(
                f"The checkpoint {self.location} cannot be used: {why}",
            ) from error
        if not _is_json(metadata or "") and (metadata is not None or commits):
            fresh = json.dumps({"id": str(uuid.uuid4())})
            raise self._damaged("metadata", f"restore it, or write {fresh} to it: nothing depends on the old id.")
        for name, sound in [
            *[(f"commits/{epoch}", _is_commit(commit or "")) for epoch in commits[-1:]],
            *[(f"offsets/{epoch}", entry is None or _is_entry(entry)) for epoch, entry in entries.items()],
        ]:
            if not sound:
                raise self._damaged(name, replay_from(int(name.partition("/")[2])))

    def _damaged(self, name: str, hint: str) -> CheckpointDamaged:
        return CheckpointDamaged(f"{self.location}/{name} is missing, cut short or not what Spark wrote.", hint=hint)

    def offsets(self) -> list[int]:
        """Epochs in the offset log, ascending."""
        return self._epochs("offsets")

    def commits(self) -> list[int]:
        """Epochs in the commit log, ascending."""
        return self._epochs("commits")

    def read_offsets(self, epoch: int) -> str | None:
        """The offset-log entry of `epoch`, verbatim; None if there is none."""
        return self._read("offsets", epoch)

    def _read(self, *name: object) -> str | None:
        if self._local is not None:  # on the path of every epoch
            try:
                return Path(self._local, *map(str, name)).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None
        path = self._path("/".join([self.location, *map(str, name)]))
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write_offsets(self, epoch: int, text: str) -> None:
        """Put `text` in place of ``offsets/epoch``, atomically."""
        path = self._entry("offsets", epoch)
        temporary = self._path(f"{self.location}/offsets/.{epoch}.restored.tmp")
        stream = self._fs.create(temporary, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self._fs.delete(path, False)
        if not self._fs.rename(temporary, path):
            raise CheckpointUnwritable(f"{path.toString()} could not be restored.")

    def settings(self) -> dict[str, str]:
        """What the query's shuffles were as wide as so far. Spark itself only keeps that of a query with state."""
        for epoch in self.offsets()[-1:]:
            conf = json.loads((self.read_offsets(epoch) or "").splitlines()[1])["conf"]
            return {name: conf[name] for name in (_WIDTH,) if name in conf}
        return {}

    def drop_state(self) -> None:
        """Remove the state of a query that has not committed an epoch."""
        self._fs.delete(self._path(f"{self.location}/state"), True)

    def drop_offsets(self, epoch: int) -> None:
        """Remove ``offsets/epoch``."""
        self._fs.delete(self._entry("offsets", epoch), False)

    def _entry(self, log: str, epoch: int) -> Any:
        return self._path(f"{self.location}/{log}/{epoch}")

    def _epochs(self, log: str) -> list[int]:
        if self._local is not None:  # on the path of every takeover
            try:
                return sorted(int(one.name) for one in Path(self._local, log).iterdir() if one.name.isdigit())
            except FileNotFoundError:
                return []
        folder = self._path(f"{self.location}/{log}")
        if not self._fs.exists(folder):
            return []
        names = (status.getPath().getName() for status in self._fs.listStatus(folder))
        return sorted(int(name) for name in names if name.isdigit())


def replay_from(epoch: int) -> str:
    """What to do about a damaged file that the log's plans from `epoch` on can replace."""
    return (
        f"restore it from a copy; or remove commits/{epoch} and any later commits: where the log still holds their "
        f"plans (it keeps at least {RETAINED_EPOCHS}), these epochs are replayed and publish nothing twice."
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
    """The epoch's timestamp in an offset-log entry, in ms."""
    return int(json.loads(entry.splitlines()[1])["batchTimestampMs"])


def progress_of(entry: str) -> Progress:
    """Topic → partition → next offset in an offset-log entry, over all Kafka sources."""
    progress: Progress = {}
    for line in entry.splitlines()[2:]:
        if not line.startswith("{"):
            continue
        offsets = json.loads(line)
        for topic, partitions in offsets.items():
            if isinstance(partitions, dict):
                progress.setdefault(topic, {}).update({int(p): int(offset) for p, offset in partitions.items()})
    return progress


def reconcile(checkpoint: Checkpoint, query: str, state: ControlState) -> list[str]:
    """Make the checkpoint agree with the log before its query starts; the log's plan rules (invariant 6).

    * ``offsets/`` entries beyond the first epoch without a commit are removed: they are a zombie's, or
      their epochs are replayed one by one.
    * One that nobody planned is removed: nothing was published from it, and Spark makes a new one. It may be cut
      short by a crash, or name partitions that its sources no longer have. (A sound one of a query's very first
      epoch stays: without it Spark takes the checkpoint for a new one, and refuses it for its state.)
    * The entry of the epoch in doubt is restored from the plan where it is lost (a host crash: Spark does
      not sync it) or says something else.

    Returns:
        What was done, for the job's events.

    Raises:
        CheckpointOutdated: The checkpoint is older than what was published and the log no longer holds the
            plans in between.
        CausalLogDamaged: The log knows less than the checkpoint.
    """
    commits, offsets = checkpoint.commits(), checkpoint.offsets()
    committed = commits[-1] if commits else -1
    planned = max(state.newest_plan(query), state.ended.get(query, -1))
    if committed > state.ended.get(query, -1):
        raise CausalLogDamaged(
            f"The checkpoint of {query} says that epoch {committed} is done, the causal log only knows "
            f"{state.ended.get(query, -1)}.",
            hint="restore the log topic, or start a new lineage (--new-lineage) to a new output.",
        )
    doubtful = committed + 1
    done: list[str] = []
    if planned >= doubtful:
        plan: Plan | None = state.plan(query, doubtful)
        if plan is None:
            raise CheckpointOutdated(
                f"The checkpoint of {query} ends at epoch {committed}, but epoch {planned} was already published and "
                f"the log no longer holds the plan of {doubtful}."
            )
        if checkpoint.read_offsets(doubtful) != plan.offsets:
            checkpoint.write_offsets(doubtful, plan.offsets)
            done.append(f"restored offsets/{doubtful} from the plan")
    elif doubtful in offsets and (doubtful > 0 or not _is_entry(checkpoint.read_offsets(doubtful) or "")):
        checkpoint.drop_offsets(doubtful)
        if doubtful == 0:
            checkpoint.drop_state()
        done.append(f"removed offsets/{doubtful}: it was not planned")
    for epoch in offsets:
        if epoch > doubtful:
            checkpoint.drop_offsets(epoch)
            done.append(f"removed offsets/{epoch}")
    return done
