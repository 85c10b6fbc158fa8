"""50-69: continuing could publish a record twice or lose one."""

from __future__ import annotations

from collections.abc import Sequence

from clonos.errors.base import ClonosError


class ConsistencyError(ClonosError):
    """Continuing could publish a record twice or lose one, so the job stops. Base class of exit codes 51-69."""

    slug = "consistency"
    exit_code = 50
    kept_default = "nothing was published by this attempt."


class CheckpointMismatch(ConsistencyError):
    """Code, plan, delivery mode, schemas or input changed while an epoch was in doubt."""

    slug = "checkpoint-mismatch"
    exit_code = 51
    hint_default = (
        "undo the change until the epoch is committed, then run the job again; for code: the message names the command."
    )

    def __init__(self, what: str, *, kept: str = "", hint: str = "", codes: Sequence[str] = ()) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.codes = tuple(codes)  # hashes of the codes that planned the epochs in doubt; empty: code is not the cause


class CheckpointForeign(CheckpointMismatch):
    """The directory belongs to another job or subject, or is a savepoint."""

    slug = "checkpoint-foreign"
    exit_code = 62
    kept_default = "the directory is unchanged."
    hint_default = "name another directory; to continue the other job's state, start from a savepoint of it."


class CheckpointOutdated(CheckpointMismatch):
    """The checkpoint is older than the published output, and the log no longer holds the plans in between."""

    slug = "checkpoint-outdated"
    exit_code = 52
    hint_default = "restore the newer checkpoint, or start a new lineage (--new-lineage) with a new output topic."


class CheckpointDamaged(ConsistencyError):
    """A checkpoint file is missing, truncated or was not written by Spark."""

    slug = "checkpoint-damaged"
    exit_code = 53
    hint_default = (
        "restore the file from a copy of the checkpoint, or remove the commits that the message names: "
        "their epochs are replayed."
    )


class DatabaseNewer(ConsistencyError):
    """A newer version of Clonos has upgraded the control plane's database."""

    slug = "database-newer"
    exit_code = 61
    kept_default = "the database is unchanged."
    hint_default = "run the newer version, or restore a copy of the database from before its upgrade."


class JobForeign(ConsistencyError):
    """Another platform has claimed the job: another control plane, or `clonos run` with another home."""

    slug = "job-foreign"
    exit_code = 64
    kept_default = "nothing was changed there: its driver was not fenced, and nothing was written."
    hint_default = "choose another name for the job, or stop it there and start it here with --adopt."


class BackupDamaged(ConsistencyError):
    """A backup of the control plane lacks a file, or its database is not the one that `backup create` wrote."""

    slug = "backup-damaged"
    exit_code = 63
    kept_default = "nothing was restored."
    hint_default = "restore another backup."


class SourceOffsetsExpired(ConsistencyError):
    """The source topic no longer holds the offsets that the checkpoint needs."""

    slug = "source-offsets-expired"
    exit_code = 54
    hint_default = (
        "restore the topic, or accept the loss: --new-lineage with a new --checkpoint starts at the oldest available "
        "records. Raise the topic's retention.ms."
    )


class CausalLogDamaged(ConsistencyError):
    """The causal log lacks required records."""

    slug = "causal-log-damaged"
    exit_code = 55
    hint_default = "restore the log topic, or start a new lineage (--new-lineage) with a new output topic."


class ForeignRecord(CausalLogDamaged):
    """The causal log holds a record that the job's own drivers did not write.

    See docs/errors.md#a-foreign-record-in-the-log-topic.
    """

    slug = "foreign-record"
    exit_code = 56
    hint_default = (
        "reserve the log topic for the job by ACL. Kafka cannot remove a record: delete the log topic and start a new "
        "lineage (--new-lineage); an epoch in doubt may then be published again."
    )


class ReplayDivergence(ConsistencyError):
    """A replay computed other records than the published ones."""

    slug = "replay-divergence"
    exit_code = 57
    hint_default = (
        "replace raw calls by clonos.random, clonos.clock, clonos.uuid4 or a @clonos.service, "
        "and avoid order-sensitive aggregates; `clonos lint` lists such calls."
    )


class WouldPublishAgain(ConsistencyError):
    """A start from an older point would publish later records a second time, which needs permission."""

    slug = "would-publish-again"
    exit_code = 58
    kept_default = "nothing was changed."
    hint_default = "choose a newer point, or pass --publish-again (`publish_again`) if readers tolerate duplicates."


class LogFormatUnsupported(CausalLogDamaged):
    """The causal log has a format that this version of Clonos cannot read. See docs/log.md#format-version."""

    slug = "log-format-unsupported"
    exit_code = 59
    hint_default = (
        "run the job with the version of Clonos that wrote the log. To change the version, stop the job with no epoch "
        "in doubt, delete the log topic and start a new lineage (--new-lineage)."
    )


class SinkRemoved(CheckpointMismatch):
    """The causal log has output of a sink that the job no longer defines, so it was renamed or removed."""

    slug = "sink-removed"
    exit_code = 60
    hint_default = "give the sink its old name, or declare it under droppedSinks: in the job.yaml."
