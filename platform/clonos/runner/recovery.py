"""What a failure means: whether a replay can help, and how long to wait before it."""

from __future__ import annotations

from typing import Final

from clonos.carried import uncarry
from clonos.engine.epochs import PlanRestored
from clonos.errors import (
    CheckpointDamaged,
    ClonosError,
    EpochFailed,
    JobCodeError,
    RestartsExhausted,
    SourceOffsetsExpired,
)
from clonos.spec import RestartPolicy

# Spark's words, of several of its checks.
_LOST_INPUT: Final = ("OffsetOutOfRange", "Cannot fetch offset", "KAFKA_DATA_LOSS", "Some data may have been lost")


def classify(failure: BaseException) -> ClonosError:
    """The typed error behind what Spark or a callback raised.

    A worker's own traceback means the user's code, unless it carries one of our errors; everything else
    that Spark says (a lost worker, a concurrent update of its log) may pass in a replay.
    """
    if isinstance(failure, ClonosError):
        return failure
    text = str(failure)
    carried = uncarry(text)
    if carried is not None:
        return carried
    if type(failure).__name__ in {"AnalysisException", "ParseException"}:
        return JobCodeError(f"Spark refuses the query: {_last_lines(text)}", kept="nothing was started.")
    raised_by_user = "Traceback (most recent call last)" in text and "exited unexpectedly" not in text
    if raised_by_user and (type(failure).__name__ == "PythonException" or "PythonException" in text):
        return JobCodeError(_last_lines(text))
    if any(sign in text for sign in _LOST_INPUT):
        return SourceOffsetsExpired(f"The source lost records that an epoch needs: {_last_lines(text)}")
    if "CANNOT_LOAD_STATE_STORE.CANNOT_READ" in text or "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED" in text:
        return CheckpointDamaged(f"Spark cannot read a file of the state in the checkpoint: {_last_lines(text)}")
    return EpochFailed(f"{type(failure).__name__}: {_last_lines(text)}")


def _last_lines(text: str) -> str:
    """The part of a traceback that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")), None)
    if start is None:
        return " | ".join(lines[:3])[:2000]
    # Spark repeats a worker's traceback with the JVM's stack below it; the error is the line before that.
    end = next((i for i in range(start, len(lines)) if lines[i].startswith(("at ", "SQLSTATE"))), len(lines))
    return " | ".join(lines[max(start + 1, end - 3) : end])[:2000]


class RestartBudget:
    """Counts restarts since the last finished epoch and says how long to wait.

    Args:
        policy: Attempts and pauses.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.attempts = 0

    def progressed(self) -> None:
        """An epoch finished: start counting anew."""
        self.attempts = 0

    def pause(self, error: ClonosError) -> float:
        """Seconds to wait before the next attempt after `error`.

        Raises:
            ClonosError: `error` itself, if a retry cannot help.
            RestartsExhausted: The policy's attempts are used up.
        """
        if not error.retry:
            raise error
        if isinstance(error, PlanRestored):
            return 0.0  # not a failure: the checkpoint agrees with the log now
        self.attempts += 1
        if self.attempts > self._policy.attempts:
            limit = self._policy.attempts
            raise RestartsExhausted(f"The job failed {limit + 1} times in a row; last: {error.what}") from error
        doubled: float = self._policy.backoff_ms * 2 ** (self.attempts - 1)
        return min(doubled, self._policy.max_backoff_ms) / 1000
