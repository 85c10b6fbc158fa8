"""Checkpoints (one for each epoch) and savepoints (kept by name)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure


class Span(Resource):
    """A part of an epoch's duration."""

    name: str
    duration_ms: float


class Checkpoint(Resource):
    """One finished epoch of one query.

    Attributes:
        published_lanes: Partitions of its output that have records, whichever attempt published them; None where an
            earlier version told of it.
        offsets: Topic → partition → offset up to which the epoch read.
        retained: Whether a job can be started from it.
        size_bytes: Of all files of the query's checkpoint, as its host measured them last before the epoch was told
            (each minute); None where the checkpoint is no path of a host.
        spans: Parts of its duration: ``plan`` (the plan's commit), ``publish`` (computing and writing all lanes),
            ``commit`` (the epoch's end).
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
    retained: bool = True


class CheckpointCounts(Resource):
    """How many, since the job was created."""

    completed: int = 0
    failed: int = 0
    restored: int = 0
    retained: int = 0


class CheckpointSummary(Resource):
    """Over the newest hundred; durations in milliseconds."""

    duration_ms: dict[Literal["min", "avg", "p50", "p99", "max"], float] = Field(default_factory=dict)
    records_out: dict[Literal["min", "avg", "max"], float] = Field(default_factory=dict)


class LatestCheckpoints(Resource):
    """The newest of each kind."""

    completed: Checkpoint | None = None
    failed: Checkpoint | None = None
    savepoint: Savepoint | None = None
    restored: Checkpoint | None = None


class Checkpoints(Resource):
    """As Flink gives them."""

    counts: CheckpointCounts
    summary: CheckpointSummary
    latest: LatestCheckpoints
    history: list[Checkpoint]


class SavepointCreate(Resource):
    """Take a savepoint.

    Attributes:
        name: Unique within the job; default: job, epoch and time.
        location: Folder (path or URI) to write it below; default: that of the control plane's settings.
    """

    name: str | None = Field(None, pattern=r"^[a-z0-9](?:[a-z0-9.-]{0,98}[a-z0-9])?$")
    location: str | None = None


class Savepoint(Resource):
    """A copy of a job's checkpoint at finished epochs, kept until it is deleted; it outlives its job.

    Attributes:
        epochs: Query → the newest finished epoch in it.
        failure: Of one that FAILED: why it could not be taken, or not be deleted (that can be asked for again).
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
