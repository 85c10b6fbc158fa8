"""The interface between the driver and a sink (entry point group ``clonos.sinks``).

The driver decides whether an epoch may be published, and as which owner (claims, plans, commits). A sink publishes each
*lane*, one sink partition's part of an epoch, at most once and reports the outcome. Two-phase commit with an external
log follows Flink's `TwoPhaseCommitSinkFunction`; the atomic unit here is a lane, not an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from clonos.log.records import EpochIdentity, InputSlice, Marker, Resolution
from clonos.settings import KafkaSettings

if TYPE_CHECKING:  # specifications name delivery modes, and the control plane that reads them has no Spark
    from pyspark.sql import DataFrame

DeliveryMode = Literal["exactly-once", "atomic-epoch", "at-least-once"]
OutputMode = Literal["append", "update", "complete"]
Outcome = Literal["published", "skipped", "audited", "empty"]
Decision = Literal["keep", "republish", "dead-letter"]
"""What the user decides about an epoch whose replay differs from its published lanes (`docs/guarantees.md`)."""


class LaneReport(msgspec.Struct, frozen=True):
    """The outcome of one lane of an epoch, as the sink reports it to the driver.

    Attributes:
        lane: The lane's number.
        outcome: ``published``: by this attempt. ``skipped``: by an earlier attempt. ``audited``: by an earlier
            attempt, and its digest was compared with this replay's. ``empty``: the lane has no rows.
        records: Records of the lane.
        digest: `MultisetDigest` of the records, 16 bytes; may be empty.
        marker_offset: Offset of the lane's marker in the causal log; -1 if this attempt wrote none.
        diverged: Whether this replay computed other records than the published ones.
        dead_letters: Poison records among the records that this attempt published.
    """

    lane: int
    outcome: Outcome
    records: int
    digest: bytes
    marker_offset: int = -1
    diverged: bool = False
    dead_letters: int = 0


class SinkLane(msgspec.Struct, frozen=True):
    """One lane of an epoch, with the data that a sink needs to publish it.

    Attributes:
        number: The lane's number. (job, query, lineage, epoch, number) names the lane in every attempt.
        task: Spark's partition index of the task that has the lane's rows, in this attempt.
        input_slice: The input that the lane's rows come from.
        log_partition: The lane's own partition of the causal log.
        tail_offset: Offset of the newest claim or marker in `log_partition`, if the owner wrote it in an earlier
            epoch; -1 if it must be read.
        log_end: The end of `log_partition` after the owner's newest claim or marker; -1 if it must be read. Only
            determinants, or another owner's records, follow.
        marker: In a replay: the newest marker of the lane when the driver claimed the job, of the same lineage.
    """

    number: int
    task: int
    input_slice: InputSlice
    log_partition: int
    tail_offset: int = -1
    log_end: int = -1
    marker: Marker | None = None


class SinkEpoch(msgspec.Struct, frozen=True):
    """One epoch of one query, with what a sink needs to publish it.

    Attributes:
        kafka: The Kafka cluster of the causal log.
        lanes: The epoch's lanes, by number.
        committed: Whether the causal log already has this epoch's commit, so that every lane is published.
        attempt: Number of consecutive attempts that failed before this one.
        plan_offset: Offset of the epoch's plan in the control partition, if this owner has just written it; else -1.
        resolution: The user's decision about the epoch; None: published lanes must equal their replay.
        decisions: The decisions that the sink accepts, for messages.
        topic_ids: Topic → Kafka's id of it, of the causal log and the known topics of the sink. A transaction that
            wrote to a topic with another id must not be committed.
    """

    identity: EpochIdentity
    kafka: KafkaSettings
    lanes: tuple[SinkLane, ...]
    committed: bool = False
    attempt: int = 0
    plan_offset: int = -1
    resolution: Resolution | None = None
    decisions: tuple[str, ...] = ("keep",)
    topic_ids: dict[str, str] = {}

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
        """The lane whose rows are in Spark's partition `task`."""
        return next(lane for lane in self.lanes if lane.task == task)


class Sink(Protocol):
    """The interface of a sink: a target that publishes each lane of each epoch at most once (`docs/sinks.md`).

    Attributes:
        name: Stable name; part of log records and of the checkpoint, and the name of the sink's query.
        output_mode: Spark's output mode.
        delivery: The delivery mode. It is part of an epoch's plan and must not change while the epoch is in doubt.

    A sink that can do more with an epoch in doubt than ``keep`` its published lanes has ``decisions``: a set of
    `Decision`.
    A sink that publishes the column ``poison`` (`clonos.formats.poison`) sets ``publishes_dead_letters = True``.
    Clonos refuses a job that would lose dead letters in another sink.
    A sink whose markers become visible in one transaction with the output sets ``proved_by_markers = True``. Of any
    other sink, Clonos assumes that readers may have output of each epoch in doubt.

    Example: `clonos_sinks.files.FilesSink` is a complete sink of about 200 lines.
    """

    name: str
    output_mode: OutputMode
    delivery: DeliveryMode

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

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Choose the lanes of an epoch. A replay calls this again and must get the same result.

        Args:
            slices: The input of each partition of the epoch's DataFrame, by Spark's partition index.

        Returns:
            The input of each lane, by Spark's partition index of the DataFrame that `write` publishes. A sink
            with a lane for each partition returns `slices`. A sink with one lane returns
            `clonos.log.records.whole_epoch` of them.
        """

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish the lanes of `epoch` that are not published yet.

        Args:
            frame: The epoch's rows.
            epoch: The epoch and its lanes.

        Returns:
            One report for each lane, by lane number, once every lane is published.

        Raises:
            Superseded: A newer generation owns a lane.
            ConsistencyError: Publishing could duplicate or contradict published records.
            EpochFailed: This attempt failed; a new owner must replay the epoch.
        """
