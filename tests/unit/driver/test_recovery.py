"""Classification of failures, and the restart policy."""

from __future__ import annotations

import tempfile

import pytest

from clonos.carried_errors import carry
from clonos.driver.restart_budget import RestartBudget, classify
from clonos.errors import (
    BY_SLUG,
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
    ServiceError,
    SourceOffsetsExpired,
    Superseded,
)
from clonos.jobs.spec import RestartPolicy


class PythonException(Exception):
    """As PySpark names a worker's."""


class StreamingQueryException(Exception):
    """As PySpark names a query's."""


WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "job.py", line 7, in shout
    return 1 / 0
ZeroDivisionError: division by zero

SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


def test_typed_errors_pass() -> None:
    error = Superseded("gone")
    assert classify(error) is error


def test_carried_errors_are_unpacked_with_all_parts() -> None:
    sent = ServiceError("no answer", kept="all", hint="wait")
    text = f"Traceback (most recent call last):\n  File x\nclonos.carried_errors.CarriedError: {carry(sent)}\n\tat x"
    got = classify(PythonException(text))
    assert type(got) is ServiceError
    assert (got.what, got.kept, got.hint) == ("no answer", "all", "wait")


def test_a_workers_traceback_is_the_users_code() -> None:
    got = classify(PythonException(WORKER))
    assert type(got) is JobCodeError
    assert "ZeroDivisionError: division by zero" in got.what
    assert "PythonRunner.scala" not in got.what
    assert "SQLSTATE" not in got.what


@pytest.mark.parametrize(
    "error", ["MemoryError", "OSError: [Errno 24] Too many open files", "OSError: [Errno 12] Cannot allocate memory"]
)
def test_a_host_that_lacks_resources_is_not_the_users_code(error: str) -> None:
    got = classify(PythonException(WORKER.replace("ZeroDivisionError: division by zero", error)))
    assert type(got) is EpochFailed
    assert error in got.what


def test_a_workers_traceback_inside_a_querys_exception() -> None:
    text = f"Job aborted: org.apache.spark.api.python.PythonException: {WORKER}"
    assert type(classify(StreamingQueryException(text))) is JobCodeError


def test_a_traceback_that_begins_in_the_middle_of_a_line() -> None:
    """As Spark reports the failed task of a sink."""
    text = WORKER.replace("Please see the stack trace below.\nTraceback", "[PYTHON_EXCEPTION] Raised: Traceback")
    got = classify(StreamingQueryException(text))
    assert type(got) is JobCodeError
    assert "ZeroDivisionError: division by zero" in got.what
    assert "SQLSTATE" not in got.what


def test_the_cause_of_a_querys_failure_decides() -> None:
    """PySpark leaves the causes out of the text."""
    failure = StreamingQueryException("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred")
    failure._cause = PythonException("CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED")  # type: ignore[attr-defined]
    assert type(classify(failure)) is CheckpointDamaged


def test_a_lost_worker_may_be_replayed() -> None:
    text = f"org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\nPythonException {WORKER}"
    got = classify(StreamingQueryException(text))
    assert type(got) is EpochFailed
    assert got.retry


def test_the_innermost_cause_of_a_failed_query_is_shown() -> None:
    text = "Failed to create new KafkaAdminClient\n=== Streaming Query ===\nx\ny"
    failure, cause, innermost = (StreamingQueryException(line) for line in (text, "InvalidKey", "Invalid PEM keystore"))
    failure._cause, cause._cause = cause, innermost
    assert classify(failure).what.endswith(" | caused by: Invalid PEM keystore")
    failure = StreamingQueryException(f"{text}\nCaused by: a.B: outer\n\tat x\nCaused by: a.C: inner\n\tat y")
    assert classify(failure).what.endswith(" | caused by: a.C: inner")


def test_a_reader_that_kafka_refuses_stops_the_job() -> None:
    text = (
        "Job aborted due to stage failure: Lost task 0.0 (executor driver): "
        "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [in]\n\tat x"
    )
    got = classify(StreamingQueryException(text))
    assert type(got) is KafkaAccessDenied
    assert got.what.endswith("TopicAuthorizationException: Not authorized to access topics: [in].")


@pytest.mark.parametrize(
    "text",
    [
        "OffsetOutOfRangeException",
        "Cannot fetch offset 7",
        "[KAFKA_DATA_LOSS.X] y",
        "Some data may have been lost because they are not available in Kafka any more",
    ],
)
def test_lost_input_stops_the_job(text: str) -> None:
    got = classify(StreamingQueryException(text))
    assert type(got) is SourceOffsetsExpired
    assert not got.retry
    got = classify(StreamingQueryException(f"{text};\neither …\nor …\nReason: Partitions Set(in-0) have been deleted."))
    assert got.what.endswith("needs: Partitions Set(in-0) have been deleted.")


@pytest.mark.parametrize(
    "text",
    [
        "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_KEY_SIZE] An error occurred during loading state.",
        "[CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED] Checksum verification failed",
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: o.a.h.fs.ChecksumException: 1.zip at 0",
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: java.io.EOFException",
    ],
)
def test_damaged_state_stops_the_job(text: str) -> None:
    got = classify(StreamingQueryException(text))
    assert type(got) is CheckpointDamaged
    assert not got.retry


@pytest.mark.parametrize(
    "text",
    [
        "Concurrent update to the log",
        "",
        "a\nb\nc\nd",
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: java.net.ConnectException",
        "java.io.EOFException",
    ],
)
def test_anything_else_may_be_replayed(text: str) -> None:
    got = classify(StreamingQueryException(text))
    assert type(got) is EpochFailed
    assert got.what.startswith("StreamingQueryException: ")


def test_a_traceback_of_the_driver_is_not_the_users_code() -> None:
    got = classify(RuntimeError("Traceback (most recent call last):\n  File x\nValueError: y"))
    assert type(got) is EpochFailed


def budget(**policy: int) -> RestartBudget:
    return RestartBudget(RestartPolicy.model_validate(policy))


def test_pauses_double_up_to_the_limit() -> None:
    restarts = budget(attempts=5, initial_backoff_ms=100, max_backoff_ms=500)
    assert [restarts.pause(EpochFailed("x")) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    with pytest.raises(RestartsExhausted, match="6 times in a row; last: x") as failed:
        restarts.pause(EpochFailed("x"))
    assert isinstance(failed.value.__cause__, EpochFailed)


def test_no_attempts_at_all() -> None:
    with pytest.raises(RestartsExhausted, match="1 times"):
        budget(attempts=0).pause(EpochFailed("x"))


def test_finished_epoch_resets_the_count() -> None:
    restarts = budget(attempts=1, initial_backoff_ms=10)
    for _ in range(3):
        assert restarts.pause(EpochFailed("x")) == 0.01
        restarts.progressed()
    assert restarts.attempts == 0


def test_permanent_error_is_raised_at_once() -> None:
    restarts, error = budget(attempts=5), JobCodeError("mine")
    with pytest.raises(JobCodeError) as raised:
        restarts.pause(error)
    assert raised.value is error
    assert restarts.attempts == 0


def test_many_attempts_do_not_overflow() -> None:
    restarts = budget(attempts=5000, initial_backoff_ms=1, max_backoff_ms=10)
    assert max(restarts.pause(EpochFailed("x")) for _ in range(5000)) == 0.01


_STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
_TASK = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0: "


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        (
            f"{_STREAM}{_TASK}org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'abc' of the "
            'type "STRING" cannot be cast to "INT" because it is malformed. SQLSTATE: 22018\n\tat o.a.s.X.y(Z.scala:1)',
            JobCodeError,
            ("[CAST_INVALID_INPUT] The value 'abc'", "try_cast"),
        ),
        (
            f"{_STREAM}{_TASK}[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012",
            JobCodeError,
            ("[DIVIDE_BY_ZERO]", "try_divide"),
        ),
        (
            f"{_STREAM}assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources "
            "requested by the query. Cannot continue.",
            CheckpointMismatch,
            ("There are [1] sources", "run the older code again"),
        ),
        (
            f"{_STREAM}{_TASK}[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing "
            "state value schema. SQLSTATE: 42K06",
            CheckpointMismatch,
            ("Provided value schema", "run the older code again"),
        ),
        (
            f"{_STREAM}[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does "
            "not match. SQLSTATE: 42K03",
            CheckpointMismatch,
            ("operator name", "new name"),
        ),
        (
            "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query. SQLSTATE: 42K03",
            CheckpointDamaged,
            ("is missing", "savepoint"),
        ),
        (
            f'{_STREAM}{_TASK}[UNSUPPORTED_CALL.WITHOUT_SUGGESTION] Cannot call the method "getInt" of the class '
            '"org.apache.spark.sql.vectorized.ArrowColumnVector$ArrowVectorAccessor". SQLSTATE: 0A000',
            JobCodeError,
            ("not of its declared type int", "pyarrow.int32()"),
        ),
    ],
)
def test_failures_that_each_replay_repeats_are_refused_at_once(
    text: str, expected: type[ClonosError], names: tuple[str, ...]
) -> None:
    got = classify(StreamingQueryException(text))
    assert isinstance(got, expected)
    assert not got.retry
    assert all(name in str(got) for name in names), str(got)
    with pytest.raises(expected):
        budget(attempts=8).pause(got)


_TEMPORARY = f"{tempfile.gettempdir()}/spark-1f/blockmgr-2/0c/temp_shuffle_3"


def test_deleted_temporary_files_need_another_process() -> None:
    path = f"{tempfile.gettempdir()}/x/blockmgr-32afbcdf/0d"
    text = f"Task serialization failed: java.nio.file.NoSuchFileException: {path}"
    got = classify(StreamingQueryException(text))
    assert (type(got), got.exit_code) == (JvmExited, 45)
    assert path in got.what
    with pytest.raises(JvmExited):
        budget(attempts=8).pause(got)


@pytest.mark.parametrize(
    "failure",
    [
        StreamingQueryException(
            f"{_TASK}java.io.FileNotFoundException: {_TEMPORARY} (No space left on device)\n\tat x"
        ),
        StreamingQueryException(f"{_TASK}java.nio.file.FileSystemException: {_TEMPORARY}: Disk quota exceeded"),
        PythonException(
            WORKER.replace(
                "ZeroDivisionError: division by zero", f"OSError: [Errno 28] No space left on device: '{_TEMPORARY}'"
            )
        ),
    ],
)
def test_a_full_folder_for_temporary_files_is_named_also_after_the_last_attempt(failure: Exception) -> None:
    got = classify(failure)
    assert type(got) is ScratchUnwritable
    assert tempfile.gettempdir() in got.what
    with pytest.raises(RestartsExhausted) as ended:
        budget(attempts=0).pause(got)
    assert "CLONOS_SCRATCH" in ended.value.hint


@pytest.mark.parametrize(
    "failure",
    [
        StreamingQueryException(f"{_TASK}java.io.IOException: No space left on device\n\tat java.base/x"),
        StreamingQueryException(f"{_TASK}java.io.FileNotFoundException: /data/out/commits/7 (Read-only file system)"),
        PythonException(
            WORKER.replace("ZeroDivisionError: division by zero", "OSError: [Errno 28] No space left on device")
        ),
    ],
)
def test_a_full_disk_is_not_said_to_be_that_of_the_temporary_files(failure: Exception) -> None:
    got = classify(failure)
    assert type(got) is EpochFailed
    assert tempfile.gettempdir() not in got.what
    with pytest.raises(RestartsExhausted) as ended:
        budget(attempts=0).pause(got)
    assert "checkpoint" in ended.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("java.io.FileNotFoundException: /data/spark-exports/2024.csv", EpochFailed),
        (
            f"[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\nCaused by: java.io.FileNotFoundException: {_TEMPORARY}",
            CheckpointDamaged,
        ),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_X] java.io.IOException: Read-only file system", CheckpointDamaged),
    ],
)
def test_a_missing_file_of_the_user_or_the_state_is_not_a_temporary_one(text: str, expected: type[ClonosError]) -> None:
    assert type(classify(StreamingQueryException(text))) is expected


def test_a_busy_host_alone_does_not_use_up_the_attempts() -> None:
    late = classify(StreamingQueryException("java.io.IOException: Python worker failed to connect back."))
    restarts = budget(attempts=1, max_backoff_ms=500)
    assert isinstance(late, LateWorker)
    assert BY_SLUG[late.slug] is LateWorker
    assert [restarts.pause(late) for _ in range(10)] == [0.5] * 10
    assert restarts.attempts == 0
    assert restarts.pause(late) > 0
    with pytest.raises(RestartsExhausted):
        restarts.pause(late)
