"""50-69: continuing could publish a record twice or lose one."""

from __future__ import annotations

from collections.abc import Sequence

from clonos.errors.base import ClonosError


class ConsistencyError(ClonosError, slug="consistency", exit_code=50):
    """Continuing could publish a record twice or lose one, so the job stops. Base class of exit codes 51-69."""

    kept_default = "nothing was published by this attempt."


class CheckpointMismatch(ConsistencyError, exit_code=51):
    """Code, plan, delivery mode, schemas or input changed while an epoch was in doubt."""

    hint_default = (
        "undo the change until the epoch is committed, then run the job again; for code: the message names the command."
    )

    def __init__(self, what: str, *, kept: str = "", hint: str = "", codes: Sequence[str] = ()) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.codes = tuple(codes)  # hashes of the codes that planned the epochs in doubt; empty: code is not the cause


class CheckpointForeign(CheckpointMismatch, exit_code=62):
    """The directory belongs to another job or subject, or is a savepoint."""

    kept_default = "the directory is unchanged."
    hint_default = "name another directory; to continue the other job's state, start from a savepoint of it."


class CheckpointOutdated(CheckpointMismatch, exit_code=52):
    """The checkpoint is older than the published output, and the log no longer holds the plans in between."""

    hint_default = "restore the newer checkpoint, or start a new lineage (--new-lineage) with a new output topic."


class CheckpointDamaged(ConsistencyError, exit_code=53):
    """A checkpoint file is missing, truncated or was not written by Spark."""

    hint_default = (
        "restore the file from a copy of the checkpoint, or remove the commits that the message names: "
        "their epochs are replayed."
    )


class DatabaseNewer(ConsistencyError, exit_code=61):
    """A newer version of Clonos has upgraded the control plane's database."""

    kept_default = "the database is unchanged."
    hint_default = "run the newer version, or restore a copy of the database from before its upgrade."


class JobForeign(ConsistencyError, exit_code=64):
    """Another platform has claimed the job: another control plane, or `clonos run` with another home."""

    kept_default = "nothing was changed there: its driver was not fenced, and nothing was written."
    hint_default = "choose another name for the job, or stop it there and start it here with --adopt."


class BackupDamaged(ConsistencyError, exit_code=63):
    """A backup of the control plane lacks a file, or its database is not the one that `backup create` wrote."""

    kept_default = "nothing was restored."
    hint_default = "restore another backup."


class SourceOffsetsExpired(ConsistencyError, exit_code=54):
    """The source topic no longer holds the offsets that the checkpoint needs."""

    hint_default = (
        "restore the topic, or accept the loss: --new-lineage with a new --checkpoint starts at the oldest available "
        "records. Raise the topic's retention.ms."
    )


class CausalLogDamaged(ConsistencyError, exit_code=55):
    """The causal log lacks required records."""

    hint_default = "restore the log topic, or start a new lineage (--new-lineage) with a new output topic."


class ForeignRecord(CausalLogDamaged, exit_code=56):
    """The causal log holds a record that the job's own drivers did not write.

    See docs/errors.md#a-foreign-record-in-the-log-topic.
    """

    hint_default = (
        "reserve the log topic for the job by ACL. Kafka cannot remove a record: delete the log topic and start a new "
        "lineage (--new-lineage); an epoch in doubt may then be published again."
    )


class ReplayDivergence(ConsistencyError, exit_code=57):
    """A replay computed other records than the published ones."""

    hint_default = (
        "replace raw calls by clonos.random, clonos.clock, clonos.uuid4 or a @clonos.service, "
        "and avoid order-sensitive aggregates; `clonos lint` lists such calls."
    )


class WouldPublishAgain(ConsistencyError, exit_code=58):
    """A start from an older point would publish later records a second time, which needs permission."""

    kept_default = "nothing was changed."
    hint_default = "choose a newer point, or pass --publish-again (`publish_again`) if readers tolerate duplicates."


class LogFormatUnsupported(CausalLogDamaged, exit_code=59):
    """The causal log has a format that this version of Clonos cannot read. See docs/log.md#format-version."""

    hint_default = (
        "run the job with the version of Clonos that wrote the log. To change the version, stop the job with no epoch "
        "in doubt, delete the log topic and start a new lineage (--new-lineage)."
    )


class SinkRemoved(CheckpointMismatch, exit_code=60):
    """The causal log has output of a sink that the job no longer defines, so it was renamed or removed."""

    hint_default = "give the sink its old name, or declare it under droppedSinks: in the job.yaml."
