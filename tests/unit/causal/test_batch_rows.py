"""The rows of a batch, computed in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scopes import counted, slowly, task

import clonos
from clonos.causal.scope import TaskScope
from clonos.causal.udf import _Rows

pytestmark = pytest.mark.usefixtures("fake_recorder")


@contextmanager
def rows(function: Callable[..., Any], scope: TaskScope | None) -> Iterator[_Rows]:
    with _Rows(function, scope) as batch_rows:
        yield batch_rows


def test_parallel_rows_keep_their_order() -> None:
    ask, calls = counted(slowly(lambda x: x * 10, 0.01), concurrency=4)
    with rows(lambda x: (ask(x), clonos.random()), task()) as batch_rows:
        first = batch_rows.compute(0, [list(range(20))])
    with rows(lambda x: (ask(x), clonos.random()), task()) as batch_rows:
        again = batch_rows.compute(0, [list(range(10))]) + batch_rows.compute(10, [list(range(10, 20))])
    assert [answer for answer, _ in first] == [x * 10 for x in range(20)]
    assert first == again  # positions do not depend on the batches
    assert len(calls) == 40


def test_failing_row_fails_the_batch() -> None:
    ask, _ = counted(lambda x: 1 // x, concurrency=4)
    with rows(ask, task()) as batch_rows, pytest.raises(ZeroDivisionError):
        batch_rows.compute(0, [[3, 2, 1, 0, 5]])


def test_rows_are_computed_outside_a_job() -> None:
    with rows(lambda a, b: a + b, None) as batch_rows:
        assert batch_rows.compute(0, [[1, 2], [3, 4]]) == [4, 6]
