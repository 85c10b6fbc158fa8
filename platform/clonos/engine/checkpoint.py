"""Spark's checkpoint of one query: the offset log and the commit log, read and repaired through Hadoop.

An entry ``offsets/e`` is a version line, a line of metadata (watermark, timestamp, conf) and a line of
offsets for each source, ``-`` where a source has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql import SparkSession

from clonos.errors import CausalLogDamaged, CheckpointMismatch
from clonos.log.control import ControlState
from clonos.log.records import Plan
from clonos.sources import Progress


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
        url = urlparse(location)
        self._local = url.path if url.scheme == "file" else location if not url.scheme else None

    def offsets(self) -> list[int]:
        """Epochs in the offset log, ascending."""
        return self._epochs("offsets")

    def commits(self) -> list[int]:
        """Epochs in the commit log, ascending."""
        return self._epochs("commits")

    def read_offsets(self, epoch: int) -> str | None:
        """The offset-log entry of `epoch`, verbatim; None if there is none."""
        if self._local is not None:  # on the path of every epoch
            try:
                return Path(self._local, "offsets", str(epoch)).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
        path = self._entry("offsets", epoch)
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
            raise CheckpointMismatch(f"{path.toString()} could not be restored.", hint="check the checkpoint's disk.")

    def drop_offsets(self, epoch: int) -> None:
        """Remove ``offsets/epoch``."""
        self._fs.delete(self._entry("offsets", epoch), False)

    def _entry(self, log: str, epoch: int) -> Any:
        return self._path(f"{self.location}/{log}/{epoch}")

    def _epochs(self, log: str) -> list[int]:
        folder = self._path(f"{self.location}/{log}")
        if not self._fs.exists(folder):
            return []
        names = (status.getPath().getName() for status in self._fs.listStatus(folder))
        return sorted(int(name) for name in names if name.isdigit())


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
    * The entry of the epoch in doubt is restored from the plan where it is lost (a host crash: Spark does
      not sync it) or says something else.

    Returns:
        What was done, for the job's events.

    Raises:
        CheckpointMismatch: The checkpoint is older than what was published and the log no longer holds the
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
            raise CheckpointMismatch(
                f"The checkpoint of {query} ends at epoch {committed}, but epoch {planned} was already published and "
                f"the log no longer holds the plan of {doubtful}.",
                hint="restore a newer checkpoint, or start a new lineage (--new-lineage) to a new output.",
            )
        if checkpoint.read_offsets(doubtful) != plan.offsets:
            checkpoint.write_offsets(doubtful, plan.offsets)
            done.append(f"restored offsets/{doubtful} from the plan")
    for epoch in offsets:
        if epoch > doubtful:
            checkpoint.drop_offsets(epoch)
            done.append(f"removed offsets/{epoch}")
    return done
