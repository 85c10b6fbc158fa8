"""Failures of the user's code in one sentence, from texts as Spark 4.2 writes them."""

from __future__ import annotations

import pytest

from clonos.jobs.code_failures import error_line, python_failure, refused_query

WORKER = """Aborted: PythonException: [PYTHON_EXCEPTION] Raised: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/clonos/causal/udf.py", line 99, in run
    yield from _run(function, operator, columns, arrow_type, struct, counters)
  File "/opt/venv/lib/python3.11/site-packages/clonos/causal/udf.py", line 209, in compute
    values.append(self._function(*row))
                  ^^^^^^^^^^^^^^^^^^^^
  File "/srv/jobs/raising.py", line 9, in ratio
    return inner(value)
           ^^^^^^^^^^^^
  File "/srv/jobs/raising.py", line 5, in inner
    return 1 / (len(value) - len(value))
           ~~^~~~~~~~~~~~~~~~~~~~~~~~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:665)
"""


def test_the_error_comes_before_the_users_frames() -> None:
    assert python_failure(WORKER) == (
        "ZeroDivisionError: division by zero, in inner (raising.py, line 5: return 1 / (len(value) - len(value))), "
        "called by ratio (raising.py, line 9: return inner(value))"
    )
    assert error_line(WORKER) == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("text", "described"),
    [
        (
            WORKER.replace("/srv/jobs/", "/opt/venv/lib/python3.11/site-packages/tool/"),
            "ZeroDivisionError: division by zero",
        ),
        ("Traceback (most recent call last):\nMemoryError", "MemoryError"),
        (
            "Traceback (most recent call last):\n  File \"job.py\", line 2, in f\nKeyError: 'a'",
            "KeyError: 'a', in f (job.py, line 2)",
        ),
        ("", ""),
    ],
)
def test_tracebacks_with_less(text: str, described: str) -> None:
    assert python_failure(text) == described


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `valeu` cannot be resolved. Did you mean one of "
            "the following? [`value`, `key`]. SQLSTATE: 42703;\n'Project ['valeu]\n+- ~S",
            "A column with name `valeu` cannot be resolved. Did you mean [`value`, `key`].",
        ),
        (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED] Invalid streaming output mode: append. It is not supported "
            "without\nwatermark SQLSTATE: 42KDE;\nAggregate [key#0]\n",
            "Invalid streaming output mode: append. It is not supported without watermark",
        ),
        ("Something else;\nProject", "Something else;"),
    ],
)
def test_the_sentence_of_a_refused_query(text: str, sentence: str) -> None:
    assert refused_query(text) == sentence
