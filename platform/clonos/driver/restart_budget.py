"""Decides whether a failed query is restarted, and after which pause."""

from __future__ import annotations

import re
from typing import Final

from clonos.carried_errors import texts_of, uncarry
from clonos.driver.epochs import PlanRestored
from clonos.errors import (
    CheckpointDamaged,
    ClonosError,
    EpochFailed,
    JobCodeError,
    KafkaAccessDenied,
    RestartsExhausted,
    SourceOffsetsExpired,
)
from clonos.jobs.code_failures import error_line, has_traceback, python_failure, refused_query
from clonos.jobs.spec import RestartPolicy

_PYTHON_FAILED: Final = re.compile("PythonException|PYTHON_EXCEPTION")  # in the text of another exception
# A worker's host lacks memory or file descriptors, whichever code noticed it.
_SHORT_OF: Final = re.compile(r"MemoryError\b|OSError: \[Errno (?:12|23|24)\]|BlockingIOError: \[Errno 11\]")
# Spark's condition for a state that it cannot load has many causes. These are a damaged file; a retry does not help.
_DAMAGED_STATE: Final = re.compile(
    r"CANNOT_LOAD_STATE_STORE\.CANNOT_READ|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    r"|(?s:CANNOT_LOAD_STATE_STORE.*(?:ChecksumException|EOFException|ZipException|Stream is corrupted|readLineage))"
)
# Exceptions of Kafka's Java client, from the readers of a source: the user lacks a right, or its login is refused.
_REFUSED: Final = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w*Auth(?:oriz|entic)ation\w*: [^\n]*)")
# From the texts of several checks of Spark.
_LOST_INPUT: Final = ("OffsetOutOfRange", "Cannot fetch offset", "KAFKA_DATA_LOSS", "Some data may have been lost")


def classify(failure: BaseException) -> ClonosError:
    """Convert an exception of Spark or of a callback to the typed error that caused it.

    Returns:
        `failure` itself if it is typed, or the `ClonosError` that a worker's traceback carries. `JobCodeError` if the
        user's code raised or Spark refuses the query. `SourceOffsetsExpired` or `CheckpointDamaged` if Spark cannot
        read the source or the state. `EpochFailed` after any other failure, such as a lost worker: a replay may
        succeed.
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
        return JobCodeError(f"{python_failure(text)}.")
    if (refused := _REFUSED.search(text)) is not None:
        return KafkaAccessDenied(f"Kafka refused a reader of the job's sources: {refused[1].rstrip('.')}.")
    if any(sign in text for sign in _LOST_INPUT):
        return SourceOffsetsExpired(f"The source lost records that an epoch needs: {_last_lines(text)}")
    if _DAMAGED_STATE.search(text):
        return CheckpointDamaged(f"Spark cannot read a file of the state in the checkpoint: {_last_lines(text)}")
    reason = _last_lines(text)
    caused = text.rpartition("\nCaused by: ")
    innermost = caused[2].partition("\n")[0] if caused[1] else _innermost(failure)
    more = f" | caused by: {innermost[:500]}" if innermost and innermost not in reason else ""
    return EpochFailed(f"{type(failure).__name__}: {reason}{more}")


def _innermost(failure: BaseException) -> str:
    """The first line of the innermost cause that PySpark knows; empty: the failure has none."""
    cause: BaseException | None = getattr(failure, "_cause", None)
    while cause is not None and (inner := getattr(cause, "_cause", None)) is not None:
        cause = inner
    return next(iter(str(cause).splitlines()), "") if cause is not None else ""


def _last_lines(text: str) -> str:
    """The last lines of a traceback, which hold the error."""
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
        self.attempts = 0

    def progressed(self) -> None:
        """Reset the count of restarts, because an epoch has finished."""
        self.attempts = 0

    def pause(self, error: ClonosError) -> float:
        """Count one restart after `error`, and return the seconds to wait before it.

        Raises:
            ClonosError: `error` itself, if a retry cannot help.
            RestartsExhausted: The policy's attempts are used up.
        """
        if not error.retry:
            raise error
        if isinstance(error, PlanRestored):
            return 0.0  # no failure: the checkpoint now agrees with the log
        self.attempts += 1
        if self.attempts > self._policy.attempts:
            limit = self._policy.attempts
            raise RestartsExhausted(f"The job failed {limit + 1} times in a row; last: {error.what}") from error
        doubled: float = self._policy.initial_backoff_ms * 2 ** (self.attempts - 1)
        return min(doubled, self._policy.max_backoff_ms) / 1000
