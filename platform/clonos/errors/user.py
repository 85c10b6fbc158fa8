"""10-29, 120-124: the job, its specification or its code must change."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class UserError(ClonosError, exit_code=10):
    """The job, its specification or its code must change. Base class of exit codes 11-29 and 120-124."""


class SpecError(UserError, slug="spec-invalid", exit_code=11):
    """The specification, a decorator argument, an option or a setting is invalid."""

    kept_default = "nothing was started."
    hint_default = "fix the field that the message names and run the job again."


class JobFileInvalid(UserError, exit_code=12):
    """The job file is missing, or it does not define exactly one job."""

    kept_default = "nothing was started."
    hint_default = "pass a .py file with one function under @clonos.job(name=…), its job.yaml, or their folder."


class JobNotImportable(UserError, exit_code=13):
    """The job file raised an exception during import."""

    kept_default = "nothing was started."
    hint_default = "fix the line that the message names, or install the missing package, and run the job again."


class JobCodeError(UserError, slug="job-code-failed", exit_code=14):
    """The job function or a UDF raised an exception, or Spark rejected the query."""

    kept_default = "the epoch was not published; it is replayed when the job runs again."
    hint_default = (
        "fix the job's code and run it again: `clonos apply PATH`, or `clonos run … --accept-unpublished`. Epochs in "
        "doubt without published output are replayed with the new code."
    )


class ParameterMissing(UserError, KeyError, exit_code=15):
    """The job reads a parameter that has no value."""

    kept_default = "nothing was published by this attempt."
    hint_default = "pass it with -p name=value, or set it under params: of the job.yaml."


class ServiceError(UserError, slug="service-failed", exit_code=16):
    """A call through a causal service still failed after its last retry."""

    kept_default = "the epoch was not published; the determinants recorded so far are kept."
    hint_default = (
        "start the job again (`clonos job start`) when the service answers. With on_outage='wait' the job waits for "
        "it; with on_outage='record' the function can handle the failure."
    )

    @classmethod
    def recorded(cls, what: str) -> ServiceError:
        """Return the error of a recorded failure, which the job's code handles: its text is `what` alone."""
        error = cls(what)
        error.kept = error.hint = ""
        return error


class ServiceTimedOut(ServiceError, exit_code=17):
    """A call through a causal service still timed out after its last retry."""

    hint_default = (
        "start the job again (`clonos job start`) when the service answers, or raise timeout= or retries= of the "
        "service. With on_outage='wait' the job waits for it; with on_outage='record' the function can handle it."
    )


class ResultNotSerialisable(UserError, exit_code=18):
    """A causal service returned, or received, a value that the causal log cannot store."""

    kept_default = "the epoch was not published."
    hint_default = "use None, bool, int, float, str, bytes, datetime, UUID, lists, dicts or msgspec structs."


class RecordRejected(UserError, exit_code=19):
    """Kafka or a database rejects an output record permanently: it is too large, its partition does not exist, or it
    breaks a constraint of its table.
    """

    kept_default = "the record was not published."
    hint_default = "raise the topic's max.message.bytes, or fix the record's partition."


class PoisonRecord(UserError, exit_code=20):
    """An input record cannot be decoded, and the job's policy is `fail`. See docs/formats.md."""

    kept_default = "the record's lane was not published; the epoch is replayed when the job runs again."
    hint_default = (
        "fix the schema, or choose on_poison='dead-letter' (store such records in a topic) or 'drop' in ctx.decode; "
        "then `clonos apply PATH`, or `clonos run … --accept-unpublished`, replays the epoch with it."
    )


class OperatorRequired(UserError, exit_code=21):
    """A causal service was called outside a named operator, so a replay could not match its answers.

    See docs/operators.md.
    """

    kept_default = "the epoch was not published."
    hint_default = (
        "decorate the function with clonos.udf, clonos.pandas_udf or clonos.arrow_udf, or wrap the function that you "
        "pass to Spark in clonos.operator(…). In your own threads, run calls in contextvars.copy_context() or use "
        "service.map."
    )


class SessionIncompatible(UserError, exit_code=22):
    """The Spark session lacks a required setting, jar or Python environment. See docs/attached.md."""

    kept_default = "nothing was started."
    hint_default = "build the session with clonos.spark_conf()."


class SourceNotRepeatable(UserError, exit_code=23):
    """A streaming source cannot guarantee the same rows in the same order in a replay."""

    kept_default = "nothing was published."
    hint_default = "read the topic with ctx.source(…) or clonos.source(spark, …)."


class CausalLogMissing(UserError, exit_code=24):
    """No job of this name has a causal log."""

    kept_default = "nothing was read or changed."
    hint_default = "check the job's name and the Kafka address."


class SessionRequired(JobNotImportable, exit_code=25):
    """The job file uses Spark during import (`F.col`, an `F.udf` with a DDL string as type) without a Spark session."""

    hint_default = "move the line into the job's function, or start a Spark session before the import."


class SavepointMissing(UserError, exit_code=26):
    """The savepoint does not exist, or the checkpoint no longer retains the epoch."""

    kept_default = "nothing was changed."
    hint_default = "list the available points with `clonos savepoint ls` and `clonos checkpoint ls`."


class ArchiveInvalid(UserError, exit_code=27):
    """The uploaded code archive is damaged, too large, lacks the job file, or has members outside its root."""

    kept_default = "nothing was unpacked or stored."
    hint_default = "pack plain files with relative names; `clonos submit` does."


class CodeNotRepeatable(UserError, exit_code=28):
    """The linter found code whose result would differ in a replay, such as a clock, a random number or a call."""

    kept_default = "nothing was uploaded or changed."
    hint_default = (
        "use the replacements that the findings name; a comment `# clonos: allow CODE -- reason` silences a finding, "
        "--allow-lint all of them."
    )


class StartPointMissing(UserError, exit_code=29):
    """The savepoint or epoch that a job should start from does not exist any more. Reported as a job's failure."""

    kept_default = "nothing was started."
    hint_default = "start the job from another savepoint, or from its current checkpoint."


class PackagesInvalid(UserError, exit_code=120):
    """The packages of a job's requirements.lock cannot be installed, or do not fit each other or the driver's own."""

    kept_default = "nothing was started."
    hint_default = (
        "compile the lock again: `uv pip compile requirements.in --generate-hashes -o requirements.lock`; each package "
        "needs a wheel for the host's Python."
    )


class TargetUnfit(UserError, exit_code=121):
    """The table of a sink is missing, or its columns, types or unique indexes do not fit the sink's rows."""

    kept_default = "nothing was published by this attempt; an epoch in doubt is replayed when the job runs again."
    hint_default = "change the table or the job, then run the job again."
