"""Checkpoints (one for each finished epoch) and savepoints (named copies)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure


class Span(Resource):
    """One step of an epoch with its duration in milliseconds."""

    name: str
    duration_ms: float
    """Duration in milliseconds."""


class EpochCheckpoint(Resource):
    """One finished epoch of one query, from which the job may be started."""

    epoch: int
    query: str
    status: Literal["COMPLETED", "FAILED"]
    """``COMPLETED``, because only finished epochs are reported."""
    trigger: Literal["PERIODIC", "SAVEPOINT", "REPLAY"] = "PERIODIC"
    """``REPLAY`` if the epoch was replayed, else ``PERIODIC``."""
    generation: int
    completed_at: Moment
    duration_ms: float
    """Duration of the epoch in milliseconds."""
    records_in: int
    """Records that it read."""
    records_out: int
    """Records that it published."""
    published_lanes: int | None = None
    """Number of output partitions (lanes) with records; None if an earlier version of Clonos reported the epoch."""
    size_bytes: int | None = None
    """Size of the query's checkpoint, from its host's newest measurement (each minute) before the epoch's report; None
    if the checkpoint is not a path of a host.
    """
    offsets: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Topic → partition → offset up to which the epoch read."""
    spans: list[Span] = Field(default_factory=list)
    """Steps of the epoch: ``plan`` (the plan's commit), ``publish`` (computing and writing all lanes), ``commit`` (the
    epoch's end).
    """
    topics_in: dict[str, int] = Field(default_factory=dict)
    """Source topic → records read, if the epoch read any; empty if an earlier version of Clonos reported it."""
    dead_letters: int = 0
    """Number of poison records among `records_out`."""
    recorded: dict[str, int] = Field(default_factory=dict)
    """Operator → determinants that it recorded, if it recorded any."""
    live: bool = False
    """Whether the epoch belongs to a live query. Its figures cover the epoch so far; `duration_ms` is the longest step
    of the newest second.
    """
    steps: int = 0
    """Number of steps in which a live epoch was published."""
    repeated: bool = False
    """Whether the epoch had finished before. Its replay published nothing."""
    retained: bool = True
    """Whether the job's checkpoint still has the epoch, so that the job can be started from it."""


class CheckpointCounts(Resource):
    """Numbers of a job's checkpoints since the job was created."""

    completed: int = 0
    """Number of finished epochs."""
    failed: int = 0
    """Number of failures after which a driver restarted its queries."""
    restored: int = 0
    """Number of replayed epochs."""
    retained: int = 0
    """Number of checkpoints from which the job can be started now."""


class CheckpointSummary(Resource):
    """Statistics of a job's newest hundred checkpoints; durations in milliseconds."""

    duration_ms: dict[Literal["min", "avg", "p50", "p99", "max"], float] = Field(default_factory=dict)
    """Durations of the epochs."""
    records_out: dict[Literal["min", "avg", "max"], float] = Field(default_factory=dict)
    """Published records of an epoch."""


class LatestCheckpoints(Resource):
    """The newest checkpoint of each kind; None if there is none."""

    completed: EpochCheckpoint | None = None
    """The newest finished epoch."""
    failed: EpochCheckpoint | None = None
    """Always None, because a failed epoch leaves no checkpoint."""
    savepoint: Savepoint | None = None
    """The newest completed savepoint."""
    restored: EpochCheckpoint | None = None
    """The newest epoch that was replayed."""


class Checkpoints(Resource):
    """Checkpoints of a job, in the structure of Flink's REST API."""

    counts: CheckpointCounts
    """Numbers since the job was created."""
    summary: CheckpointSummary
    """Statistics of the newest ones."""
    latest: LatestCheckpoints
    """The newest of each kind."""
    history: list[EpochCheckpoint]
    """The newest ones, newest first."""


class SavepointCreate(Resource):
    """The request to take a savepoint."""

    name: str | None = Field(None, pattern=r"^[a-z0-9](?:[a-z0-9.-]{0,98}[a-z0-9])?$")
    """Unique within the job; default: job, epoch and time."""
    location: str | None = None
    """Folder (path or URI) to write it below; default: the folder of the control plane's settings."""


class Savepoint(Resource):
    """A copy of a job's checkpoint at finished epochs, kept until it is deleted; it outlives its job."""

    id: str
    job: str
    job_name: str
    name: str
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED", "DELETING"]
    location: str
    """Folder of its files."""
    epochs: dict[str, int] = Field(default_factory=dict)
    """Query → newest finished epoch in the savepoint."""
    size_bytes: int | None = None
    failure: Failure | None = None
    """Failure of a FAILED savepoint, or of its deletion (which can be requested again)."""
    version: int
    """Version of the job's specification with which the checkpoint was written; `artifact`: id of its code."""
    artifact: str
    created_at: Moment
    completed_at: Moment | None = None
