"""70-79, 115-119: the run itself."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class Superseded(ClonosError, exit_code=70):
    """A newer generation owns the job, so this process stops."""

    kept_default = "nothing was published after the newer generation took over."
    hint_default = "nothing, if the takeover was intended; otherwise stop the other process and run the job again."


class EpochFailed(ClonosError, exit_code=71, retry=True):
    """An attempt at an epoch failed; a replay may succeed."""

    kept_default = "the epoch will be replayed from the log; lanes that are published already are skipped."
    hint_default = "nothing: the restart policy decides how often the epoch is replayed."


class OutcomeUnknown(EpochFailed, exit_code=72):
    """The outcome of a lane's commit is unknown, and the lane's marker is not in the log."""


class LateWorker(EpochFailed, exit_code=119):
    """A Python worker did not start in the time that Spark allows: the host is busy, or the worker ended."""

    hint_default = (
        "nothing: the epoch is replayed. If it recurs, the host has too many drivers for its cores, or an import "
        "of the job ends the worker: see the job's log."
    )


class RestartsExhausted(ClonosError, exit_code=73):
    """The job failed more often than its restart policy allows; the last cause is named."""

    kept_default = "published records are unchanged; the epoch in doubt is replayed at the next start."
    hint_default = "fix the cause that the message names and run the job again."


class DriverCrashed(ClonosError, exit_code=74, retry=True):
    """A driver was killed by a signal, or exited without a report. Never the exit code of a process."""

    kept_default = "published records are unchanged; the next attempt replays the epoch in doubt."
    hint_default = "nothing: it is restarted. If it crashes again, check its log and the host's memory."


class DriverUnresponsive(DriverCrashed, exit_code=75):
    """A driver sent no heartbeat, or made no progress for `stallTimeout` despite pending input; it was killed."""

    hint_default = "nothing: it is restarted. If one record takes longer, raise stallTimeout in the specification."


class EpochTooLarge(ClonosError, exit_code=78):
    """Kafka cannot take the records of an epoch within the longest transaction that the brokers allow."""

    kept_default = "the transaction was aborted; published records are unchanged, and the epoch stays in doubt."
    hint_default = (
        "for this epoch raise transaction.max.timeout.ms of the brokers, or the quota of the client, and run the job "
        "again. For later epochs set max_per_epoch= of the source."
    )


class RescaleRefused(ClonosError, exit_code=118):
    """Spark cannot repartition the state of a query into the number of partitions of `shufflePartitions`."""

    kept_default = "the state and the published records are unchanged, with the partitions that they have."
    hint_default = "remove shufflePartitions from the specification, or set the number that the message names."


class StopTimedOut(ClonosError, exit_code=79):
    """The epoch in progress was not finished within the time that the stop request allowed, so it is in doubt."""

    kept_default = "published records are unchanged; the next start replays the epoch, with the same code."
    hint_default = (
        "start the job again, and allow the next stop more time. If a changed version starts, the version that planned "
        "the epoch finishes it first."
    )


class MoveFailed(ClonosError, exit_code=76):
    """A planned move or an upgrade failed before it changed the job. Reported by an operation."""

    kept_default = "the job keeps running on its host in its version, which is what its next start runs."
    hint_default = "check `clonos standby ls` and the free slots in `clonos host ls`, then request it again."


class UpgradeFailed(ClonosError, exit_code=77):
    """A new version failed before all its queries had returned; the job was rolled back. Reported by an operation."""

    hint_default = "fix the new version, then upgrade again."


class DriverEnded(ClonosError, exit_code=115):
    """A driver exited without a report, and is not restarted. Reported as a job's failure."""

    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see its log."


class DeadlinePassed(ClonosError, exit_code=116, retry=True):
    """A job did not start, stop or recover within its time limit. Reported as a job's failure."""

    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see its log."


class JobFailed(ClonosError, exit_code=117):
    """A job failed, and no report has the reason. Reported by an operation."""

    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "see the job's log."
