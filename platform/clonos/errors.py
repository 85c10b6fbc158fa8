"""Every error Clonos raises on purpose, as one tree.

::

    ClonosError
    ├── UserError                 the job, its specification or its code must change       exit 2
    │   ├── SpecError             the job file or specification is not usable               exit 2
    │   ├── SessionUnfit          the Spark session lacks what the promise needs            exit 2
    │   ├── SourceNotRepeatable   a source would not read the same again in a replay        exit 2
    │   ├── JobUnknown            no job of this name has a causal log                      exit 2
    │   ├── JobCodeError          the user's code raised                                    exit 3
    │   ├── OperatorUnknown       a causal service was called in code that no operator wraps exit 3
    │   ├── ServiceError          a call through a causal service failed                    exit 3
    │   ├── ResultNotSerialisable a causal service returned what the log cannot hold        exit 3
    │   ├── PoisonRecord          an input record cannot be decoded                         exit 3
    │   └── RecordRefused         Kafka can never take an output record                     exit 3
    ├── EnvironmentFault          something outside the job is missing or refuses           exit 4
    │   ├── JavaNotFound, JarsUnavailable, BrokerUnavailable, PortTaken, DirectoryTaken, TopicMissing
    │   ├── RegistryUnavailable   no Schema Registry answered, or it refused us
    │   └── BrokerLimit           a broker setting makes the promise impossible
    ├── ConsistencyError          going on could publish twice or lose records              exit 5
    │   ├── CheckpointMismatch    checkpoint, plan, markers or code do not agree
    │   ├── SourceOffsetsExpired  the source no longer holds what the checkpoint needs
    │   ├── CausalLogDamaged      the log lacks what it must hold
    │   └── ReplayDivergence      a replay computed something else than was published
    ├── Superseded                a newer generation owns the job                           exit 6
    ├── EpochFailed               this attempt at an epoch failed; a replay may succeed     exit 7
    │   └── OutcomeUnknown        a commit's outcome was unknown and it is not in the log
    └── RestartsExhausted         an epoch kept failing                                     exit 7

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
    exit_code = 2


class SpecError(UserError):
    """The job file or its specification is not usable."""

    slug = "spec-invalid"
    kept_default = "nothing was started."


class SessionUnfit(UserError):
    """The Spark session lacks a setting, a jar or a Python environment that the promise needs."""

    slug = "session-unfit"
    kept_default = "nothing was started."


class SourceNotRepeatable(UserError):
    """A streaming source that would not, or may not, read the same in the same order in a replay."""

    slug = "source-not-repeatable"
    kept_default = "nothing was published."


class JobUnknown(UserError):
    """No job of this name has a causal log."""

    slug = "job-unknown"
    kept_default = "nothing was read or changed."


class JobCodeError(UserError):
    """The user's own code raised."""

    slug = "job-code-failed"
    exit_code = 3
    kept_default = "the epoch was not published; it is replayed when the job runs again."
    hint_default = "mend the job's code and run it again."


class OperatorUnknown(UserError):
    """A causal service was called in Python code that is no named operator, so a replay could mix up its answers."""

    slug = "operator-unknown"
    exit_code = 3
    kept_default = "the epoch was not published."
    hint_default = (
        "decorate the function with clonos.udf, clonos.pandas_udf or clonos.arrow_udf, or wrap what you hand to Spark "
        "in clonos.operator(…); in threads of your own, run calls in contextvars.copy_context() or use service.map."
    )


class ServiceError(UserError):
    """A call through a causal service failed for good (after its retries, or in time)."""

    slug = "service-failed"
    exit_code = 3
    kept_default = "the epoch was not published; answers recorded so far are kept."
    hint_default = "raise timeout= or retries= of the service, or record its errors with record_errors=True."


class ResultNotSerialisable(UserError):
    """A causal service returned a value that the causal log cannot hold."""

    slug = "result-not-serialisable"
    exit_code = 3
    kept_default = "the epoch was not published."
    hint_default = "return None, bool, int, float, str, bytes, datetime, UUID, lists, dicts or msgspec structs."


class PoisonRecord(UserError):
    """An input record cannot be decoded, and the job's policy is to stop there."""

    slug = "poison-record"
    exit_code = 3
    kept_default = "the record's lane was not published; the epoch is replayed when the job runs again."
    hint_default = (
        "mend the schema, or choose on_poison='dead-letter' (keep such records in a topic) or 'drop' in ctx.decode."
    )


class RecordRefused(UserError):
    """Kafka can never take an output record: too large, or for a partition that does not exist."""

    slug = "record-refused"
    exit_code = 3
    kept_default = "the epoch was not published."
    hint_default = "raise the topic's max.message.bytes, or mend the record's partition."


class EnvironmentFault(ClonosError):
    """Something outside the job is missing or refuses."""

    slug = "environment"
    exit_code = 4


class JavaNotFound(EnvironmentFault):
    """No usable Java runtime."""

    slug = "java-not-found"


class JarsUnavailable(EnvironmentFault):
    """The pinned jars could not be resolved, or a checksum differs."""

    slug = "jars-unavailable"


class BrokerUnavailable(EnvironmentFault):
    """No Kafka broker answered, or it refused the credentials."""

    slug = "broker-unavailable"
    retry = True
    kept_default = "nothing was published in doubt; unfinished transactions are aborted at the next start."
    hint_default = "check bootstrap servers, security settings and that the broker is up."


class RegistryUnavailable(EnvironmentFault):
    """No Schema Registry answered, or it refused the credentials."""

    slug = "registry-unavailable"
    retry = True
    hint_default = "check CLONOS_REGISTRY__URL and its credentials, and that the registry is up."


class BrokerLimit(EnvironmentFault):
    """A broker or topic setting makes the promise impossible."""

    slug = "broker-limit"


class TopicMissing(EnvironmentFault):
    """A topic that the job names does not exist."""

    slug = "topic-missing"


class PortTaken(EnvironmentFault):
    """A port that the user asked for is in use."""

    slug = "port-taken"


class DirectoryTaken(EnvironmentFault):
    """A data directory is in use or belongs to something else."""

    slug = "directory-taken"


class ConsistencyError(ClonosError):
    """Going on could publish a record twice or lose one, so the job stops."""

    slug = "consistency"
    exit_code = 5
    kept_default = "nothing was published by this attempt."


class CheckpointMismatch(ConsistencyError):
    """Checkpoint, plan, markers or code do not agree."""

    slug = "checkpoint-mismatch"


class SourceOffsetsExpired(ConsistencyError):
    """The source topic no longer holds the offsets that the checkpoint needs."""

    slug = "source-offsets-expired"


class CausalLogDamaged(ConsistencyError):
    """The causal log lacks a record it must hold, or holds a foreign one."""

    slug = "causal-log-damaged"


class ReplayDivergence(ConsistencyError):
    """A replay computed something else than what was already published."""

    slug = "replay-divergence"
    hint_default = (
        "use clonos.random, clonos.clock, clonos.uuid4 or a @clonos.service instead of raw calls, "
        "and avoid order-sensitive aggregates; `clonos lint` names such calls."
    )


class Superseded(ClonosError):
    """A newer generation owns the job; this process must stop."""

    slug = "superseded"
    exit_code = 6
    kept_default = "nothing was published after the newer generation took over."
    hint_default = "nothing to do if the takeover was meant; otherwise stop the other process and run again."


class EpochFailed(ClonosError):
    """This attempt at an epoch failed; a replay may succeed."""

    slug = "epoch-failed"
    exit_code = 7
    retry = True
    kept_default = "the transaction was aborted; the epoch will be replayed from the log."


class OutcomeUnknown(EpochFailed):
    """A commit's outcome was unknown and its marker is not in the log."""

    slug = "outcome-unknown"


class RestartsExhausted(ClonosError):
    """An epoch kept failing for longer than the restart policy allows."""

    slug = "restarts-exhausted"
    exit_code = 7
    kept_default = "everything published so far; the epoch in doubt is replayed at the next start."
    hint_default = "mend the cause below and run the job again."
