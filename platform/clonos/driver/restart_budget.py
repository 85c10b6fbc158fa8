"""Decides whether a failed query is restarted, and after which pause."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from clonos.carried_errors import texts_of, uncarry
from clonos.errors import (
    CheckpointDamaged,
    CheckpointMismatch,
    ClonosError,
    EpochFailed,
    JobCodeError,
    JvmExited,
    KafkaAccessDenied,
    LateWorker,
    RestartsExhausted,
    ScratchUnwritable,
    SourceOffsetsExpired,
)
from clonos.jobs.code_failures import error_line, has_traceback, python_failure, refused_query
from clonos.jobs.spec import RestartPolicy

_PYTHON_FAILED: Final = re.compile("PythonException|PYTHON_EXCEPTION")  # in the text of another exception
_MESSAGE_CHARACTERS: Final = 600
# A worker's host lacks memory or file descriptors, whichever code noticed it.
_SHORT_OF: Final = re.compile(r"MemoryError\b|OSError: \[Errno (?:12|23|24)\]|BlockingIOError: \[Errno 11\]")
# Spark's condition for a state that it cannot load has many causes. These are a damaged file; a retry does not help.
_DAMAGED_STATE: Final = re.compile(
    r"CANNOT_LOAD_STATE_STORE\.CANNOT_READ|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    r"|(?s:CANNOT_LOAD_STATE_STORE.*(?:ChecksumException|EOFException|FileNotFoundException|ZipException"
    r"|Stream is corrupted|readLineage))"
)
# Exceptions of Kafka's Java client, from the readers of a source: the user lacks a right, or its login is refused.
_REFUSED: Final = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w*Auth(?:oriz|entic)ation\w*: [^\n]*)")
# A condition of Spark, its sentence and its state; the innermost one of nested conditions.
_CONDITION: Final = re.compile(
    r"\[(?P<name>[A-Z][A-Z0-9_.]{3,})\] (?P<text>(?:(?!\[[A-Z][A-Z0-9_.]{3,}\] ).)*?)\s*SQLSTATE: (?P<state>\w{5})",
    re.DOTALL,
)
_DATA_STATES: Final = "22"  # the class of data exceptions: a cast, an overflow, a division by zero
_CHANGED_STATE: Final = re.compile(
    r"STATE_STORE_\w*(?:NOT_COMPATIBLE|INCOMPATIBLE|INVALID_CONFIG_AFTER_RESTART|INVALID_VARIABLE_TYPE_CHANGE|THRESHOLD_EXCEEDED)"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
)
_CHANGED_SOURCES: Final = re.compile(
    r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\] sources[^\n|]{0,60}"
)
_NO_STATE: Final = "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"
# Spark's folders for blocks, and the spool, in the folder for temporary files.
_SCRATCH_GONE: Final = re.compile(
    r"(?:NoSuchFileException|FileNotFoundException|NotDirectoryException): ?"
    r"(?P<path>/\S*/(?:blockmgr-|spark-|clonos-)[^\s:,)]*)"
)
_DISK_FULL: Final = re.compile("No space left on device|Disk quota exceeded|Read-only file system")
_DISK_FULL_HINT: Final = (
    "free space on the disk of the folder for temporary files (CLONOS_SCRATCH; with an agent: its --home) and on that "
    "of the checkpoint, of the driver's host and of each worker."
)
_PATH: Final = re.compile(r"(?<![\w.])/[^\s:,)'\"]+")
_WRONG_TYPE: Final = re.compile(r'Cannot call the method "get(?P<type>\w+)" of [^\n]*Arrow')
# Spark gives a Python worker ten seconds, and has no setting for it.
_LATE_WORKER: Final = "failed to connect back"
# A worker that ends while it starts, as by a library that kills it, looks the same: it must not be retried for long.
_MOST_LATE_WORKERS: Final = 10
# From the texts of several checks of Spark.
_LOST_INPUT: Final = ("OffsetOutOfRange", "Cannot fetch offset", "KAFKA_DATA_LOSS", "Some data may have been lost")


def classify(failure: BaseException) -> ClonosError:
    """Convert an exception of Spark or of a callback to the typed error that caused it.

    Returns:
        `failure` itself if it is typed, or the `ClonosError` that a worker's traceback carries. `JobCodeError` if the
        user's code raised, a value cannot be converted or Spark refuses the query. `CheckpointMismatch` if the query's
        sources or state are not those of its checkpoint. `SourceOffsetsExpired` or `CheckpointDamaged` if Spark cannot
        read the source or the state. `JvmExited` if only a new process helps. `EpochFailed` after any other failure,
        such as a lost worker: a replay may succeed.
    """
    if isinstance(failure, ClonosError):
        return failure
    text = texts_of(failure)
    carried = uncarry(text)
    if carried is not None:
        return carried
    if type(failure).__name__ in {"AnalysisException", "ParseException"}:
        return JobCodeError(f"Spark refuses the query: {refused_query(text)}", kept="nothing was started.")
    raised_by_user = has_traceback(text) and "exited unexpectedly" not in text
    if raised_by_user and (type(failure).__name__ == "PythonException" or _PYTHON_FAILED.search(text)):
        error = error_line(text)
        if _SHORT_OF.match(error):
            return EpochFailed(f"A Python worker ran out of memory, processes or file descriptors: {error}")
        if error.startswith("OSError: ") and _DISK_FULL.search(error):
            return _disk_full(error, error)
        return JobCodeError(f"{python_failure(text)}.")
    if (refused := _REFUSED.search(text)) is not None:
        return KafkaAccessDenied(f"Kafka refused a reader of the job's sources: {refused[1].rstrip('.')}.")
    if any(sign in text for sign in _LOST_INPUT):
        # The records concerned are in a line of its own, after the advice.
        reason = next((line for line in text.splitlines() if line.startswith("Reason: ")), "")
        return SourceOffsetsExpired(
            f"The source lost records that an epoch needs: {reason.removeprefix('Reason: ') or _last_lines(text)}"
        )
    if (permanent := _refused(text)) is not None:
        return permanent
    if _LATE_WORKER in text:
        return LateWorker(f"A Python worker did not start within Spark's limit of ten seconds: {_last_lines(text)}")
    reason = _last_lines(text)
    caused = text.rpartition("\nCaused by: ")
    innermost = caused[2].partition("\n")[0] if caused[1] else _innermost(failure)
    more = f" | caused by: {innermost[:500]}" if innermost and innermost not in reason else ""
    return EpochFailed(f"{type(failure).__name__}: {reason}{more}")


def _innermost(failure: BaseException) -> str:
    """Return the first line of the innermost cause that PySpark knows; empty: the failure has none."""
    cause: BaseException | None = getattr(failure, "_cause", None)
    while cause is not None and (inner := getattr(cause, "_cause", None)) is not None:
        cause = inner
    return next(iter(str(cause).splitlines()), "") if cause is not None else ""


class WrongColumnType(JobCodeError):
    """An operator returned an Arrow column of another type than it declares. Spark names no column.

    `clonos.spark.arrow_results` refuses it by its name, unless the session has another daemon for its Python workers.
    """

    def __init__(self, what: str, *, kept: str = "", hint: str = "", type: str = "") -> None:  # noqa: A002
        super().__init__(what, kept=kept, hint=hint)
        self.type = type  # the declared type that Spark asked for, such as ``Int``


class UncomputableValue(JobCodeError):
    """Spark cannot convert or compute a value of a record, and refuses it as ANSI SQL does."""


def _refused(text: str) -> ClonosError | None:
    """Return the error of a failure that every replay repeats, or of a missing file or full disk; None: another
    failure.
    """
    if _NO_STATE in text:
        return CheckpointDamaged("The state of a query is missing in its checkpoint.", hint=_RESTORE_STATE)
    changed = _CHANGED_SOURCES.search(text)
    condition = next((match for match in _CONDITION.finditer(text) if _CHANGED_STATE.search(match["name"])), None)
    if changed is not None or condition is not None:
        reason = changed[0] if changed is not None else f"[{condition['name']}] {_sentence(condition['text'])}"  # type: ignore[index]
        return CheckpointMismatch(
            f"The sources or the state of a query are not those of its checkpoint: {reason}",
            kept="the checkpoint and the published records are unchanged.",
            hint="run the older code again: it continues from the checkpoint. For the change, start a job with a new "
            "name and a new output topic.",
        )
    wrong = _WRONG_TYPE.search(text)
    if wrong is not None:
        declared = {"UTF8String": "string"}.get(wrong["type"], wrong["type"].lower())
        return WrongColumnType(
            f"An operator returned an Arrow column that is not of its declared type {declared}.",
            hint=_WRONG_TYPE_HINT,
            type=wrong["type"],
        )
    data = next((match for match in _CONDITION.finditer(text) if match["state"].startswith(_DATA_STATES)), None)
    if data is not None:
        return UncomputableValue(
            f"Spark cannot compute a value: [{data['name']}] {_sentence(data['text'])}",
            hint="use a function that returns null instead, such as try_cast, try_divide, try_to_timestamp or "
            f"try_element_at, or remove such records before; then {JobCodeError.hint_default}",
        )
    # Before the missing files and full disks: the state is in the checkpoint.
    if _DAMAGED_STATE.search(text):
        return CheckpointDamaged(f"Spark cannot read a file of the state in the checkpoint: {_last_lines(text)}")
    full = next((line for line in text.splitlines() if _DISK_FULL.search(line)), None)
    if full is not None:
        return _disk_full(full, _last_lines(text))
    gone = next((match for match in _SCRATCH_GONE.finditer(text) if _is_temporary(match["path"])), None)
    if gone is not None:
        return JvmExited(
            f"The temporary files of the driver were deleted while it ran: {gone['path']} is missing.",
            hint="run the job again (an agent does so): a new process has new files. Keep cleaners of old files out of "
            "CLONOS_SCRATCH.",
        )
    return None


def _disk_full(line: str, reason: str) -> ScratchUnwritable | EpochFailed:
    """Return the error of a full disk; `line` may name the file. `Driver.check`, which follows, tries the
    checkpoint.
    """
    if any(map(_is_temporary, _PATH.findall(line))):
        return ScratchUnwritable(f"The folder for temporary files {tempfile.gettempdir()} cannot be written: {reason}")
    return EpochFailed(f"A file could not be written: {reason}", hint=_DISK_FULL_HINT)


def _is_temporary(path: str) -> bool:
    """Whether a file belongs to this driver's temporary files."""
    return Path(path).resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())


_RESTORE_STATE: Final = (
    "restore the query's folder from a copy, or from a savepoint. Without a copy, start a job with a new name and a "
    "new output topic."
)
_WRONG_TYPE_HINT: Final = (
    "convert the column, for example with .cast(pyarrow.int32()), or declare the type that the function returns; then "
    + JobCodeError.hint_default
)


def _sentence(text: str) -> str:
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]


def _last_lines(text: str) -> str:
    """Return the last lines of a traceback, which hold the error; without one, the first lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    if start is None:
        return " | ".join(lines[:3])[:2000]
    # Spark appends the JVM's stack to a worker's traceback; the error is the line before that stack.
    end = next((i for i in range(start, len(lines)) if lines[i].startswith(("at ", "SQLSTATE"))), len(lines))
    return " | ".join(lines[max(start + 1, end - 3) : end])[:2000]


class RestartBudget:
    """Counts the restarts of failed queries since the last finished epoch, and computes the pause before the next
    restart.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._late_workers = 0
        self.attempts = 0

    def progressed(self) -> None:
        """Reset the count of restarts, because an epoch has finished."""
        self.attempts = 0
        self._late_workers = 0

    def pause(self, error: ClonosError) -> float:
        """Count one restart after `error`, and return the seconds to wait before it.

        Raises:
            ClonosError: `error` itself, if a retry cannot help.
            RestartsExhausted: The policy's attempts are used up.
        """
        if not error.retry or isinstance(error, JvmExited):  # only another process may help
            raise error
        if isinstance(error, LateWorker) and self._late_workers < _MOST_LATE_WORKERS:
            self._late_workers += 1  # a busy host alone does not end a job
            return self._policy.max_backoff_ms / 1000
        self.attempts += 1
        if self.attempts > self._policy.attempts:
            limit = self._policy.attempts
            hint = error.hint if error.hint != EpochFailed.hint_default else ""
            raise RestartsExhausted(
                f"The job failed {limit + 1} times in a row; last: {error.what}", hint=hint
            ) from error
        doubled: float = self._policy.initial_backoff_ms * 2 ** (self.attempts - 1)
        return min(doubled, self._policy.max_backoff_ms) / 1000
