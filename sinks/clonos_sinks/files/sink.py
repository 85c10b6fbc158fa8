"""A folder of JSON-lines files, one for each lane of each epoch that has output.

A file's name holds job, sink, causal log, lineage, epoch and lane. The log is named by Kafka's id of its topic: after
the topic was deleted, lineages begin at 1 again, and the files of the old log do not count. For one lane:

1. Check that this driver owns the lane's log partition, otherwise `Superseded`.
2. Write the rows to a temporary file (its name starts with a dot) and sync it.
3. Check the owner again.
4. Link the file to its final name. The link fails if the name exists: no file is ever overwritten.
5. If the name exists, the lane is published: compare the rows (*replay audit*).

Exactly once follows from the names, and does not depend on step 3. A fenced driver may pass step 3 and resume later.
Then either its link fails, or it publishes the epoch of the plan and the new owner compares. Rows that depend only on
input and determinants are equal. If the fenced driver called a service again and got another answer, the rows differ
and the job stops with `ReplayDivergence`. Nothing is published twice, but a person must decide.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clonos.errors import DirectoryInUse, FilesUnwritable, ReplayDivergence, SpecError
from clonos.extend.lanes import MultisetDigest, Pass, at_point, publish_rest, require_owner, run_lanes
from clonos.extend.sink import DeliveryMode, LaneReport, OutputMode, SinkEpoch, SinkLane
from clonos.log.records import InputSlice, whole_epoch
from clonos.log.topic import short_topic_id
from clonos.settings import KafkaSettings


class FilesSink:
    """Publishes rows as JSON-lines files in a folder. Readers must skip names that start with a dot.

    Args:
        name: Stable name of the sink and of its query.
        path: The folder, on a file system with hard links that the driver and all workers share.
        output_mode: Spark's output mode; ``update`` and ``complete`` write each epoch's rows too.
        delivery: ``exactly-once``, or ``atomic-epoch``: one file for each epoch.
        format: ``jsonl`` (JSON lines), the only format.

    Raises:
        SpecError: The delivery mode or the format is not supported.

    Example::

        ctx.sink(totals, connector="files", path="/data/totals")
    """

    def __init__(
        self,
        name: str,
        *,
        path: str | Path,
        output_mode: OutputMode = "append",
        delivery: DeliveryMode = "exactly-once",
        format: Literal["jsonl"] = "jsonl",  # noqa: A002  # the name in Spark's writers
    ) -> None:
        if delivery == "at-least-once":
            raise SpecError("The files sink has no at-least-once delivery.", hint="remove delivery= for this sink.")
        if format != "jsonl":
            raise SpecError(f"The files sink has no format {format!r}.", hint="use jsonl.")
        self.name = name
        self.path = Path(path).absolute()
        self.output_mode = output_mode
        self.delivery = delivery
        self._logs: dict[str, str] = {}

    def check(self, kafka: KafkaSettings) -> None:
        """Fail at start if the folder cannot be created, or files cannot be linked in it.

        Raises:
            DirectoryInUse: The folder is not writable, or its file system has no hard links.
        """
        trial = self.path / f".{self.name}.{secrets.token_hex(8)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            trial.touch()
            os.link(trial, f"{trial}.linked")
            Path(f"{trial}.linked").unlink()
            trial.unlink()
        except OSError as error:
            raise DirectoryInUse(
                f"The files sink {self.name!r} cannot write to {self.path}: {error.strerror}.",
                kept="nothing was started.",
                hint="choose a folder that this user may write to, on a file system with hard links.",
            ) from error

    def check_frame(self, frame: DataFrame) -> None:
        """Accept any columns that Spark can write as JSON."""

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """One lane for each partition of the epoch; with ``atomic-epoch`` one lane for all partitions."""
        return whole_epoch(slices) if self.delivery == "atomic-epoch" else slices

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish the lanes of `epoch` that are not published yet, each as one file; returns one report for each
        lane.
        """
        lines = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("line"))
        if self.delivery == "atomic-epoch" and epoch.lanes:
            lines = lines.repartition(1)
        published: set[int] = set()
        if epoch.identity.replay:
            self._remove_temporary(epoch)
            published = {lane.number for lane in epoch.lanes if self.file_of(epoch, lane).exists()}
        files = self._files(epoch)

        def run(rows: DataFrame, mode: Pass) -> list[LaneReport]:
            return run_lanes(rows, epoch, functools.partial(_write_lane, files, mode))

        return publish_rest(lines, epoch, published, run)

    def file_of(self, epoch: SinkEpoch, lane: SinkLane) -> Path:
        """The path of the file of one lane of one epoch. Within a lineage, names sort by epoch, then by lane."""
        return _file_of(self._files(epoch), epoch, lane)

    def _files(self, epoch: SinkEpoch) -> Path:
        """The start of the paths of all files of this causal log."""
        identity = epoch.identity
        if identity.log_topic not in self._logs:
            self._logs[identity.log_topic] = short_topic_id(epoch.kafka, identity.log_topic)
        return self.path / f"{identity.job}-{identity.query}-{self._logs[identity.log_topic]}"

    def _remove_temporary(self, epoch: SinkEpoch) -> None:
        """Remove the temporary files of earlier attempts at this epoch. A fenced driver's link then fails."""
        for lane in epoch.lanes:
            for temporary in self.path.glob(f".{self.file_of(epoch, lane).name}.*"):
                temporary.unlink(missing_ok=True)


def _file_of(files: Path, epoch: SinkEpoch, lane: SinkLane) -> Path:
    lineage, number = epoch.identity.owner.lineage, epoch.identity.epoch
    return files.with_name(f"{files.name}-{lineage:04d}-{number:012d}-{lane.number:05d}.jsonl")


def _write_lane(
    files: Path, mode: Pass, epoch: SinkEpoch, lane: SinkLane, batches: Iterator[pa.RecordBatch]
) -> LaneReport:
    final = _file_of(files, epoch, lane)
    lines = (line.encode() + b"\n" for batch in batches for line in batch.column(0).to_pylist())
    try:
        if final.exists():
            return _compared(final, lane.number, MultisetDigest.of(lines))
        if mode == "audit":
            digest = MultisetDigest.of(lines)
            return LaneReport(lane.number, "skipped" if digest.records else "empty", digest.records, digest.value())
        require_owner(epoch, lane)  # step 1
        at_point("lane-decided", epoch, lane)
        return _publish(final, epoch, lane, lines)
    except OSError as error:
        raise FilesUnwritable(
            f"{final} could not be written: {error.strerror}.",
        ) from error


def _publish(final: Path, epoch: SinkEpoch, lane: SinkLane, lines: Iterator[bytes]) -> LaneReport:
    digest = MultisetDigest()
    temporary = final.with_name(f".{final.name}.{epoch.identity.owner.claim_id}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as out:  # step 2
            at_point("lane-begun", epoch, lane)
            for line in lines:
                out.write(line)
                digest.add(line)
                if digest.records == 2:
                    at_point("lane-produced", epoch, lane)
            at_point("state-committed", epoch, lane)
            if not digest.records:
                return LaneReport(lane.number, "empty", 0, b"")
            out.flush()
            os.fsync(out.fileno())
        at_point("lane-marked", epoch, lane)
        require_owner(epoch, lane)  # step 3
        try:
            os.link(temporary, final)  # step 4
        except FileExistsError:
            return _agreed(final, lane.number, digest)  # step 5
        _sync_folder(final.parent)
        at_point("lane-committed", epoch, lane)
    finally:
        temporary.unlink(missing_ok=True)
    return LaneReport(lane.number, "published", digest.records, digest.value())


def _compared(final: Path, lane: int, computed: MultisetDigest) -> LaneReport:
    with final.open("rb") as file:
        published = MultisetDigest.of(file)
    same = (published.records, published.value()) == (computed.records, computed.value())
    return LaneReport(lane, "audited", computed.records, computed.value(), diverged=not same)


def _agreed(final: Path, lane: int, computed: MultisetDigest) -> LaneReport:
    """The audit of a lane that another attempt published while this one computed its rows."""
    report = _compared(final, lane, computed)
    if report.diverged:
        raise ReplayDivergence(
            f"Another attempt published {final.name} at the same time, with other rows.",
            kept="the published file was not changed.",
        )
    return report


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
