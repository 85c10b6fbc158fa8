"""The interface between the driver and a sink (entry point group ``clonos.sinks``).

The driver decides whether an epoch may be published, and as which owner (claims, plans, commits). A sink publishes each
*lane*, one sink partition's part of an epoch, at most once and reports the outcome. Two-phase commit with an external
log follows Flink's `TwoPhaseCommitSinkFunction`; the atomic unit here is a lane, not an epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from clonos.log.records import EpochIdentity, InputSlice, Marker, Resolution
from clonos.settings import KafkaSettings

if TYPE_CHECKING:  # specifications name delivery modes, and the control plane that reads them has no Spark
    import pyarrow as pa
    from pyspark.sql import DataFrame

DeliveryMode = Literal["exactly-once", "atomic-epoch", "at-least-once"]
OutputMode = Literal["append", "update", "complete"]
Outcome = Literal["published", "skipped", "audited", "empty"]
Decision = Literal["keep", "republish", "dead-letter"]
"""What the user decides about an epoch whose replay differs from its published lanes (`docs/guarantees.md`)."""


class LaneReport(msgspec.Struct, frozen=True):
    """The outcome of one lane of an epoch, as the sink reports it to the driver."""

    lane: int
    """The lane's number."""
    outcome: Outcome
    """``published``: by this attempt. ``skipped``: by an earlier attempt. ``audited``: by an earlier attempt, and its
    digest was compared with this replay's. ``empty``: the lane has no rows.
    """
    records: int
    """Records of the lane."""
    digest: bytes
    """`MultisetDigest` of the records, 16 bytes; may be empty."""
    marker_offset: int = -1
    """Offset of the lane's marker in the causal log; -1 if this attempt wrote none."""
    diverged: bool = False
    """Whether this replay computed other records than the published ones."""
    dead_letters: int = 0
    """Poison records among the records that this attempt published."""


class SinkLane(msgspec.Struct, frozen=True):
    """One lane of an epoch, with the data that a sink needs to publish it."""

    number: int
    """The lane's number. (job, query, lineage, epoch, number) names the lane in every attempt."""
    task: int
    """Spark's partition index of the task that has the lane's rows, in this attempt."""
    input_slice: InputSlice
    """The input that the lane's rows come from."""
    log_partition: int
    """The lane's own partition of the causal log."""
    tail_offset: int = -1
    """Offset of the newest claim or marker in `log_partition`, if the owner wrote it in an earlier epoch; -1 if it must
    be read.
    """
    log_end: int = -1
    """The end of `log_partition` after the owner's newest claim or marker; -1 if it must be read. Only determinants, or
    another owner's records, follow.
    """
    marker: Marker | None = None
    """In a replay: the newest marker of the lane when the driver claimed the job, of the same lineage."""


class SinkEpoch(msgspec.Struct, frozen=True):
    """One epoch of one query, with what a sink needs to publish it."""

    identity: EpochIdentity
    kafka: KafkaSettings
    """The Kafka cluster of the causal log."""
    lanes: tuple[SinkLane, ...]
    """The epoch's lanes, by number."""
    committed: bool = False
    """Whether the causal log already has this epoch's commit, so that every lane is published."""
    attempt: int = 0
    """Number of consecutive attempts that failed before this one."""
    plan_offset: int = -1
    """Offset of the epoch's plan in the control partition, if this owner has just written it; else -1."""
    resolution: Resolution | None = None
    """The user's decision about the epoch; None: published lanes must equal their replay."""
    decisions: tuple[str, ...] = ("keep",)
    """The decisions that the sink accepts, for messages."""
    topic_ids: dict[str, str] = {}
    """Topic → Kafka's id of it, of the causal log and the known topics of the sink. A transaction that wrote to a topic
    with another id must not be committed.
    """

    @property
    def may_differ(self) -> bool:
        """Whether a replay may differ from published lanes, because the user decided what happens then."""
        return self.resolution is not None and self.resolution.action in get_args(Decision)

    @property
    def dead_letter_topic(self) -> str:
        """The topic for all records of lanes that are not published yet; empty: the records' own topics."""
        return self.resolution.topic if self.resolution is not None else ""

    def counts(self, marker: Marker) -> bool:
        """Whether `marker` proves that a lane is published: not if the user decided later to publish it again."""
        if self.resolution is None or self.resolution.action != "republish":
            return True
        return marker.owner.generation >= self.resolution.owner.generation

    def lane_of(self, task: int) -> SinkLane:
        """Return the lane whose rows are in Spark's partition `task`."""
        return next(lane for lane in self.lanes if lane.task == task)


class Sink(Protocol):
    """What every sink has. Its target publishes each lane of each epoch at most once (`docs/sinks.md`).

    A sink that can do more with an epoch in doubt than ``keep`` its published lanes has ``decisions``: a set of
    `Decision`.
    A sink that publishes the column ``poison`` (`clonos.formats.poison`) sets ``publishes_dead_letters = True``.
    Clonos refuses a job that would lose dead letters in another sink.
    A sink whose markers become visible in one transaction with the output sets ``proved_by_markers = True``. Of any
    other sink, Clonos assumes that readers may have output of each epoch in doubt.

    How rows reach the target is in the interfaces below: `WritesLanes`, or `WritesParts`, which a sink with both has
    for ``delivery="atomic-epoch"``. The Kafka sink writes in the JVM (`clonos.spark.lane_sink.JvmSink`).
    """

    name: str
    """Stable name; part of log records and of the checkpoint, and the name of the sink's query."""
    output_mode: OutputMode
    """Spark's output mode."""
    delivery: DeliveryMode
    """The delivery mode. It is part of an epoch's plan and must not change while the epoch is in doubt."""

    def check(self, kafka: KafkaSettings) -> None:
        """Check the target before the job starts, so that no epoch fails later because of its configuration.

        Args:
            kafka: The Kafka cluster of the causal log.

        Raises:
            ClonosError: A target is missing, or its limits do not allow what the delivery mode promises.
        """

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse a DataFrame that the sink cannot publish.

        Args:
            frame: The streaming DataFrame of the sink's query.

        Raises:
            SpecError: A column has an unknown name or type.
        """


class WritesLanes(Sink, Protocol):
    """A sink with a lane for each partition: the task that computes a lane's rows publishes them.

    A sink may also have ``rows(frame)``: it returns the DataFrame whose batches `write_lane` gets; default: the frame.

    Example: `clonos_sinks.files.FilesSink` is a complete sink.
    """

    def published(self, epoch: SinkEpoch) -> Collection[int]:
        """Ask the target which lanes of an epoch earlier attempts have published; called on the driver, in a replay.

        The published lanes of an epoch are compared first: `write_lane` gets the rows of the others only if they are
        equal.
        """

    def write_lane(self, epoch: SinkEpoch, lane: SinkLane, batches: Iterator[pa.RecordBatch]) -> LaneReport:
        """Publish one lane, unless an earlier attempt has; then compare the rows.

        It runs in a Python worker of Spark; in a replay of an epoch that is published in part, on the driver.

        Args:
            epoch: The epoch. If it is `committed`, nothing may be published.
            lane: The lane. (job, query, lineage, epoch, number) names it in every attempt.
            batches: The rows. They must be read to the end before they are published: Spark commits its state with
                the last batch.

        Raises:
            Superseded: A newer generation owns the lane.
            ConsistencyError: Publishing could duplicate or contradict published records.
            ClonosError: This attempt failed; a new owner must replay the epoch. So it must after any other exception.
        """


class Digest(msgspec.Struct, frozen=True):
    """The rows of a whole epoch: how many there are, and their `MultisetDigest`, 16 bytes."""

    records: int
    value: bytes

    def __str__(self) -> str:
        """For the metadata of a target, such as ``12:0f3a…``; `parse` reads it."""
        return f"{self.records}:{self.value.hex()}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read the text of a digest."""
        records, _, value = text.partition(":")
        return cls(int(records), bytes.fromhex(value))


class WritesParts(Sink, Protocol):
    """A sink with many writers and one commit for each epoch, such as a table: an epoch has one lane.

    A sink may also have ``rows(frame)``, as `WritesLanes`.
    """

    keeps_marker: bool
    """Whether the target itself shows which epochs it has (`committed`), as by a row in the same transaction. Otherwise
    the payloads are in the causal log before `commit`, and a replay commits them again.
    """

    def write_part(self, epoch: SinkEpoch, part: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write one partition's rows so that no reader sees them; called in a Python worker of each task.

        Args:
            epoch: The epoch.
            part: Spark's partition index. Attempts at an epoch may use the same index: name files by
                ``epoch.identity.owner.claim_id`` too.
            batches: The rows, to be read to the end.

        Returns:
            What `commit` needs to know about the part, at most 64 KiB: for example names and sizes of files.
        """

    def commit(self, epoch: SinkEpoch, payloads: Sequence[bytes], digest: Digest) -> None:
        """Make all parts visible at once; called on the driver, which still owned the job just before.

        It must be idempotent for (log topic, lineage, query, epoch), also while a superseded driver commits the same
        epoch: one of both changes the target. A target with a marker keeps `digest` in it: `committed` returns it.

        Args:
            epoch: The epoch.
            payloads: The results of `write_part`, by part.
            digest: The rows of all parts; there is at least one.
        """

    def committed(self, epoch: SinkEpoch) -> Digest | None:
        """Ask the target for the committed rows of an epoch; called on the driver, in a replay. None: it has none."""
