"""70-79, 115-119: the run itself."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class Superseded(ClonosError):
    """A newer generation owns the job, so this process stops."""

    slug = "superseded"
    exit_code = 70
    kept_default = "nothing was published after the newer generation took over."
    hint_default = "nothing, if the takeover was intended; otherwise stop the other process and run the job again."


class EpochFailed(ClonosError):
    """An attempt at an epoch failed; a replay may succeed."""

    slug = "epoch-failed"
    exit_code = 71
    retry = True
    kept_default = "the epoch will be replayed from the log; lanes that are published already are skipped."
    hint_default = "nothing: the restart policy decides how often the epoch is replayed."


class OutcomeUnknown(EpochFailed):
    """The outcome of a lane's commit is unknown, and the lane's marker is not in the log."""

    slug = "outcome-unknown"
    exit_code = 72


class LateWorker(EpochFailed):
    """A Python worker did not start in the time that Spark allows: the host is busy, or the worker ended."""

    slug = "late-worker"
    exit_code = 119
    hint_default = (
        "nothing: the epoch is replayed. If it recurs, the host has too many drivers for its cores, or an import "
        "of the job ends the worker: see the job's log."
    )


class RestartsExhausted(ClonosError):
    """The job failed more often than its restart policy allows; the last cause is named."""

    slug = "restarts-exhausted"
    exit_code = 73
    kept_default = "published records are unchanged; the epoch in doubt is replayed at the next start."
    hint_default = "fix the cause that the message names and run the job again."


class DriverCrashed(ClonosError):
    """A driver was killed by a signal, or exited without a report. Never the exit code of a process."""

    slug = "driver-crashed"
    exit_code = 74
    retry = True
    kept_default = "published records are unchanged; the next attempt replays the epoch in doubt."
    hint_default = "nothing: it is restarted. If it crashes again, check its log and the host's memory."


class DriverUnresponsive(DriverCrashed):
    """A driver sent no heartbeat, or made no progress for `stallTimeout` despite pending input; it was killed."""

    slug = "driver-unresponsive"
    exit_code = 75
    hint_default = "nothing: it is restarted. If one record takes longer, raise stallTimeout in the specification."


class EpochTooLarge(ClonosError):
    """Kafka cannot take the records of an epoch within the longest transaction that the brokers allow."""

    slug = "epoch-too-large"
    exit_code = 78
    kept_default = "the transaction was aborted; published records are unchanged, and the epoch stays in doubt."
    hint_default = (
        "for this epoch raise transaction.max.timeout.ms of the brokers, or the quota of the client, and run the job "
        "again. For later epochs set max_per_epoch= of the source."
    )


class RescaleRefused(ClonosError):
    """Spark cannot repartition the state of a query into the number of partitions of `shufflePartitions`."""

    slug = "rescale-refused"
    exit_code = 118
    kept_default = "the state and the published records are unchanged, with the partitions that they have."
    hint_default = "remove shufflePartitions from the specification, or set the number that the message names."


class StopTimedOut(ClonosError):
    """The epoch in progress was not finished within the time that the stop request allowed, so it is in doubt."""

    slug = "stop-timed-out"
    exit_code = 79
    kept_default = "published records are unchanged; the next start replays the epoch, with the same code."
    hint_default = (
        "start the job again, and allow the next stop more time. If a changed version starts, the version that planned "
        "the epoch finishes it first."
    )


class MoveFailed(ClonosError):
    """A planned move or an upgrade failed before it changed the job. Reported by an operation."""

    slug = "move-failed"
    exit_code = 76
    kept_default = "the job keeps running on its host in its version, which is what its next start runs."
    hint_default = "check `clonos standby ls` and the free slots in `clonos host ls`, then request it again."


class UpgradeFailed(ClonosError):
    """A new version failed before all its queries had returned; the job was rolled back. Reported by an operation."""

    slug = "upgrade-failed"
    exit_code = 77
    hint_default = "fix the new version, then upgrade again."


class DriverEnded(ClonosError):
    """A driver exited without a report, and is not restarted. Reported as a job's failure."""

    slug = "driver-ended"
    exit_code = 115
    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see its log."


class DeadlinePassed(ClonosError):
    """A job did not start, stop or recover within its time limit. Reported as a job's failure."""

    slug = "deadline-passed"
    exit_code = 116
    retry = True
    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see its log."


class JobFailed(ClonosError):
    """A job failed, and no report has the reason. Reported by an operation."""

    slug = "job-failed"
    exit_code = 117
    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see the job's log."
