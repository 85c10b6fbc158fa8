"""The interface between the engine and a sink (entry point group ``clonos.sinks``).

The engine decides *whether and as whom* an epoch may be published (claims, plans, ends); a sink publishes
each *lane* (one sink partition's part of an epoch) at most once, and says what it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from clonos.log.records import Held, Marker, Owner
from clonos.settings import KafkaSettings

if TYPE_CHECKING:  # specifications name delivery modes, and the control plane that reads them has no Spark
    from pyspark.sql import DataFrame

DeliveryMode = Literal["exactly-once", "atomic-epoch", "at-least-once"]
OutputMode = Literal["append", "update", "complete"]
Outcome = Literal["published", "skipped", "audited", "empty"]


class LaneReport(msgspec.Struct, frozen=True):
    """What became of one lane.

    Attributes:
        outcome: ``published`` now; ``skipped``: published by an earlier attempt; ``audited``: the same, and
            its digest was compared; ``empty``: no output rows.
        digest: Digest of the output as a multiset, 16 bytes, or empty.
        offset: Where the lane's marker stands in the log; -1 if none was written now.
        diverged: The replay computed something else than what is published.
        dead_letters: Poison records among what was published now.
    """

    lane: int
    outcome: Outcome
    records: int
    digest: bytes
    offset: int = -1
    diverged: bool = False
    dead_letters: int = 0


class SinkEpoch(msgspec.Struct, frozen=True):
    """One epoch of one query, as a sink needs to know it.

    Attributes:
        held: Per lane (not per task) what it is made of.
        lanes: Spark's partition index → lane.
        partitions: Lane → log partition.
        replay: The log already held this epoch's plan.
        ended: The log already held this epoch's end: every lane is published.
        markers: Lane → the marker that was there at claiming; only of this lineage.
        known: Lane → where the newest claim or marker that this owner wrote stands; empty in a replay.
        attempt: How many attempts failed in a row before this one.
    """

    kafka: KafkaSettings
    job: str
    topic: str
    owner: Owner
    query: str
    epoch: int
    held: tuple[Held, ...]
    lanes: tuple[int, ...]
    partitions: tuple[int, ...]
    replay: bool
    ended: bool
    markers: dict[int, Marker]
    known: tuple[int, ...] = ()
    attempt: int = 0


class Sink(Protocol):
    """What the engine asks of a sink (`docs/sinks.md` says how to write one).

    Attributes:
        name: Stable name, part of log records and of the checkpoint; also the name of the sink's query.
        output_mode: Spark's output mode.
        delivery: The promise. It is part of an epoch's plan and must not change while the epoch is in doubt.

    A sink that publishes the column ``poison`` (`clonos.formats.poison`) says so by the attribute
    ``publishes_dead_letters = True``; in another one such records would be lost.
    """

    name: str
    output_mode: OutputMode
    delivery: DeliveryMode

    def check(self, kafka: KafkaSettings) -> None:
        """Fail closed at start: targets exist, limits allow what is promised.

        Raises:
            ClonosError: With what to do.
        """

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse a DataFrame whose columns the sink cannot publish.

        Raises:
            SpecError: Naming the column.
        """

    def lanes(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        """What the lanes of an epoch are made of.

        It must follow from `held` alone: a replay asks again and must get the same.

        Args:
            held: What each partition of the epoch's DataFrame is made of, in Spark's order. Returned as it
                is, every partition is a lane of its own.
        """

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish what is not yet published of `epoch`; returns when every lane is.

        Raises:
            Superseded: A newer generation owns a lane.
            ConsistencyError: Going on could publish twice or contradict what is published.
            EpochFailed: This attempt failed; the epoch must be replayed by a new owner.
        """
