"""A folder of JSON-lines files, one for each lane of each epoch that has output.

The name says what is in a file: job, sink, lineage, epoch and lane. For one lane:

1. The log must be this owner's, otherwise `Superseded`.
2. Write the rows to a temporary file (its name starts with a dot) and sync it.
3. The log must still be this owner's.
4. Link the file to its name. That fails where the name exists: nothing is ever overwritten.
5. The name existed → published already: compare (*replay audit*).

Exactly once follows from the names; fencing does not rest on step 3. A zombie that passes it and wakes up later
either finds the name taken, or takes it with what the plan says; the new owner then finds it and compares. Rows that
are a function of the input and of recorded answers agree. Where the zombie had asked a service anew meanwhile they
do not, and the job stops with `ReplayDivergence`: nothing is published twice, but somebody must look.
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

from clonos.errors import DirectoryTaken, FilesUnwritable, ReplayDivergence, SpecError
from clonos.lanes import MultisetDigest, Pass, at_point, publish_rest, require_owner, run_lanes
from clonos.log.records import Held, whole_epoch
from clonos.settings import KafkaSettings
from clonos.sinks import DeliveryMode, LaneReport, OutputMode, SinkEpoch


class FilesSink:
    """Publishes rows as JSON lines in a folder. Readers leave out names that start with a dot.

    Args:
        name: Stable name of the sink; also that of its query.
        path: The folder, on a file system with hard links that driver and workers share.
        output_mode: Spark's output mode; ``update`` and ``complete`` write each epoch's rows as well.
        delivery: ``exactly-once``, or ``atomic-epoch``: one file for each epoch.
        format: ``jsonl``.
    """

    def __init__(
        self,
        name: str,
        *,
        path: str | Path,
        output_mode: OutputMode = "append",
        delivery: DeliveryMode = "exactly-once",
        format: Literal["jsonl"] = "jsonl",  # noqa: A002  # the word that Spark's writers use
    ) -> None:
        if delivery == "at-least-once":
            raise SpecError("The files sink has no cheaper delivery.", hint="leave delivery= out for this sink.")
        if format != "jsonl":
            raise SpecError(f"The files sink does not know the format {format!r}.", hint="use jsonl.")
        self.name = name
        self.path = Path(path).absolute()
        self.output_mode = output_mode
        self.delivery = delivery

    def check(self, kafka: KafkaSettings) -> None:
        """Fail closed at start: the folder is there, and files can be linked in it."""
        trial = self.path / f".{self.name}.{secrets.token_hex(8)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            trial.touch()
            os.link(trial, f"{trial}.linked")
            Path(f"{trial}.linked").unlink()
            trial.unlink()
        except OSError as error:
            raise DirectoryTaken(
                f"The files sink {self.name!r} cannot write to {self.path}: {error.strerror}.",
                kept="nothing was started.",
                hint="choose a folder that this user may write to, on a file system with hard links.",
            ) from error

    def check_frame(self, frame: DataFrame) -> None:
        """Every column that Spark can write as JSON will do."""

    def lanes(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        """One lane for each partition; in ``atomic-epoch`` one for all."""
        return whole_epoch(held) if self.delivery == "atomic-epoch" else held

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish what is not yet published of `epoch`."""
        lines = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("line"))
        if self.delivery == "atomic-epoch" and epoch.held:
            lines = lines.repartition(1)
        published: set[int] = set()
        if epoch.replay:
            self._sweep(epoch)
            lanes = range(len(epoch.held))
            published = {lane for lane in lanes if file_of(self.path, epoch, lane).exists()}

        def run(rows: DataFrame, what: Pass) -> list[LaneReport]:
            return run_lanes(rows, epoch, functools.partial(_write_lane, self.path, what))

        return publish_rest(lines, epoch, published, run)

    def _sweep(self, epoch: SinkEpoch) -> None:
        """Remove what earlier attempts at this epoch left unfinished; a zombie among them fails when it links."""
        for lane in range(len(epoch.held)):
            for left in self.path.glob(f".{file_of(self.path, epoch, lane).name}.*"):
                left.unlink(missing_ok=True)


def file_of(folder: Path, epoch: SinkEpoch, lane: int) -> Path:
    """The file of one lane of one epoch; names sort by epoch, then lane, within a lineage."""
    made_of = f"{epoch.job}-{epoch.query}-{epoch.owner.lineage:04d}-{epoch.epoch:012d}-{lane:05d}"
    return folder / f"{made_of}.jsonl"


def _write_lane(folder: Path, what: Pass, epoch: SinkEpoch, lane: int, batches: Iterator[pa.RecordBatch]) -> LaneReport:
    final = file_of(folder, epoch, lane)
    lines = (line.encode() + b"\n" for batch in batches for line in batch.column(0).to_pylist())
    try:
        if final.exists():
            return _compared(final, lane, _digest(lines))
        if what == "audit":
            digest = _digest(lines)
            return LaneReport(lane, "skipped" if digest.records else "empty", digest.records, digest.value())
        require_owner(epoch, lane)  # step 1
        at_point("lane-decided", epoch, lane)
        return _publish(final, epoch, lane, lines)
    except OSError as error:
        raise FilesUnwritable(
            f"{final} could not be written: {error.strerror}.",
        ) from error


def _publish(final: Path, epoch: SinkEpoch, lane: int, lines: Iterator[bytes]) -> LaneReport:
    digest = MultisetDigest()
    temporary = final.with_name(f".{final.name}.{epoch.owner.driver}.{secrets.token_hex(4)}")
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
                return LaneReport(lane, "empty", 0, b"")
            out.flush()
            os.fsync(out.fileno())
        at_point("lane-marked", epoch, lane)
        require_owner(epoch, lane)  # step 3
        try:
            os.link(temporary, final)  # step 4
        except FileExistsError:
            return _agreed(final, lane, digest)  # step 5
        _sync_folder(final.parent)
        at_point("lane-committed", epoch, lane)
    finally:
        temporary.unlink(missing_ok=True)
    return LaneReport(lane, "published", digest.records, digest.value())


def _digest(lines: Iterator[bytes]) -> MultisetDigest:
    digest = MultisetDigest()
    for line in lines:
        digest.add(line)
    return digest


def _compared(final: Path, lane: int, computed: MultisetDigest) -> LaneReport:
    with final.open("rb") as file:
        published = _digest(iter(file))
    same = (published.records, published.value()) == (computed.records, computed.value())
    return LaneReport(lane, "audited", computed.records, computed.value(), diverged=not same)


def _agreed(final: Path, lane: int, computed: MultisetDigest) -> LaneReport:
    """Somebody published this lane while its rows were computed: that is the same rows, or the epoch stops."""
    report = _compared(final, lane, computed)
    if report.diverged:
        raise ReplayDivergence(
            f"{final.name} was published by another attempt meanwhile, with other rows.",
            kept="the published file stands.",
        )
    return report


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
