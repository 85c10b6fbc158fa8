"""Checkpoints (one for each finished epoch) and savepoints (named copies)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure


class Span(Resource):
    """One step of an epoch with its duration in milliseconds.

    Attributes:
        duration_ms: Duration in milliseconds.
    """

    name: str
    duration_ms: float


class EpochCheckpoint(Resource):
    """One finished epoch of one query, from which the job may be started.

    Attributes:
        status: ``COMPLETED``, because only finished epochs are reported.
        trigger: ``REPLAY`` if the epoch was replayed, else ``PERIODIC``.
        published_lanes: Number of output partitions (lanes) with records; None if an earlier version of Clonos reported
            the epoch.
        offsets: Topic → partition → offset up to which the epoch read.
        retained: Whether the job's checkpoint still has the epoch, so that the job can be started from it.
        size_bytes: Size of the query's checkpoint, from its host's newest measurement (each minute) before the epoch's
            report; None if the checkpoint is not a path of a host.
        spans: Steps of the epoch: ``plan`` (the plan's commit), ``publish`` (computing and writing all lanes),
            ``commit`` (the epoch's end).
        topics_in: Source topic → records read, if the epoch read any; empty if an earlier version of Clonos reported
            it.
        dead_letters: Number of poison records among `records_out`.
        recorded: Operator → determinants that it recorded, if it recorded any.
        repeated: Whether the epoch had finished before. Its replay published nothing.
        duration_ms: Duration of the epoch in milliseconds.
        records_in: Records that it read.
        records_out: Records that it published.
    """

    epoch: int
    query: str
    status: Literal["COMPLETED", "FAILED"]
    trigger: Literal["PERIODIC", "SAVEPOINT", "REPLAY"] = "PERIODIC"
    generation: int
    completed_at: Moment
    duration_ms: float
    records_in: int
    records_out: int
    published_lanes: int | None = None
    size_bytes: int | None = None
    offsets: dict[str, dict[str, int]] = Field(default_factory=dict)
    spans: list[Span] = Field(default_factory=list)
    topics_in: dict[str, int] = Field(default_factory=dict)
    dead_letters: int = 0
    recorded: dict[str, int] = Field(default_factory=dict)
    repeated: bool = False
    retained: bool = True


class CheckpointCounts(Resource):
    """Numbers of a job's checkpoints since the job was created.

    Attributes:
        completed: Number of finished epochs.
        failed: Number of failures after which a driver restarted its queries.
        restored: Number of replayed epochs.
        retained: Number of checkpoints from which the job can be started now.
    """

    completed: int = 0
    failed: int = 0
    restored: int = 0
    retained: int = 0


class CheckpointSummary(Resource):
    """Statistics of a job's newest hundred checkpoints; durations in milliseconds.

    Attributes:
        duration_ms: Durations of the epochs.
        records_out: Published records of an epoch.
    """

    duration_ms: dict[Literal["min", "avg", "p50", "p99", "max"], float] = Field(default_factory=dict)
    records_out: dict[Literal["min", "avg", "max"], float] = Field(default_factory=dict)


class LatestCheckpoints(Resource):
    """The newest checkpoint of each kind; None if there is none.

    Attributes:
        completed: The newest finished epoch.
        failed: Always None, because a failed epoch leaves no checkpoint.
        savepoint: The newest completed savepoint.
        restored: The newest epoch that was replayed.
    """

    completed: EpochCheckpoint | None = None
    failed: EpochCheckpoint | None = None
    savepoint: Savepoint | None = None
    restored: EpochCheckpoint | None = None


class Checkpoints(Resource):
    """Checkpoints of a job, in the structure of Flink's REST API.

    Attributes:
        counts: Numbers since the job was created.
        summary: Statistics of the newest ones.
        latest: The newest of each kind.
        history: The newest ones, newest first.
    """

    counts: CheckpointCounts
    summary: CheckpointSummary
    latest: LatestCheckpoints
    history: list[EpochCheckpoint]


class SavepointCreate(Resource):
    """The request to take a savepoint.

    Attributes:
        name: Unique within the job; default: job, epoch and time.
        location: Folder (path or URI) to write it below; default: the folder of the control plane's settings.
    """

    name: str | None = Field(None, pattern=r"^[a-z0-9](?:[a-z0-9.-]{0,98}[a-z0-9])?$")
    location: str | None = None


class Savepoint(Resource):
    """A copy of a job's checkpoint at finished epochs, kept until it is deleted; it outlives its job.

    Attributes:
        epochs: Query → newest finished epoch in the savepoint.
        failure: Failure of a FAILED savepoint, or of its deletion (which can be requested again).
        version: Version of the job's specification with which the checkpoint was written; `artifact`: id of its code.
        location: Folder of its files.
    """

    id: str
    job: str
    job_name: str
    name: str
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED", "DELETING"]
    location: str
    epochs: dict[str, int] = Field(default_factory=dict)
    size_bytes: int | None = None
    failure: Failure | None = None
    version: int
    artifact: str
    created_at: Moment
    completed_at: Moment | None = None
