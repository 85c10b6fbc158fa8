"""Runs an operator's user code in a Spark task.

Output leaves the operator only after the log has acknowledged its determinants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa

from clonos.carried_errors import carrying
from clonos.causal import exact
from clonos.causal.counting import Tally, count
from clonos.causal.scope import Group, Inside, open_task_scope
from clonos.errors import JobCodeError

P = ParamSpec("P")
R = TypeVar("R")

# Spark rows that share one acknowledgement. Each DataFrame or Arrow batch has its own.
_ROWS_AT_ONCE: Final = 1000


class OperatorTask:
    """One operator in one Spark task.

    Args:
        operator: The operator's name, with the number of its use.
        counters: The accumulator for numbers of determinants.
    """

    def __init__(self, operator: str, counters: Any) -> None:
        self._operator = operator
        self._scope = open_task_scope(operator)
        self._counters = counters
        self._reported = Tally()

    @property
    def rehearsal(self) -> bool:
        """Whether the epoch is a rehearsal, so that user code must not be called with rows."""
        return self._scope is not None and self._scope.epoch.rehearsal

    def call(self, group: Group | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`, and return its result once the log has acknowledged its determinants.

        `group` is the group of rows that `function` receives; random draws without a key are numbered in it. None: the
        function receives no group, and draws are numbered in the task.
        """
        with carrying():
            result = Inside(self._scope, group)(function, *args, **kwargs)
            self._acknowledge()
            return result

    def stream(self, group: Group | None, function: Callable[..., Iterable[Any]], *args: Any) -> Iterator[Any]:
        """Yield the items that `function` returns, each after the log acknowledged the determinants so far.

        `group` as in `call`. In a rehearsal the function is not called, and nothing is yielded.
        """
        with carrying():
            if self.rehearsal:
                deque(args[0] if group is None else (), maxlen=0)  # reads the input, which has no rows
                return
            if group is None:
                args = (self._readable(args[0]),)
            inside = Inside(self._scope, group)
            items = inside(lambda: iter(function(*args)))
            try:
                while chunk := inside(_next_chunk, items):
                    self._acknowledge()
                    yield from chunk
                self._acknowledge()  # state may have changed after the last item
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    inside(close)

    def _readable(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of the task; an error names the operator if pandas cannot hold a text of them."""
        rows, remaining = 0, iter(batches)
        while True:
            try:
                batch = next(remaining, None)
            except (UnicodeDecodeError, pa.ArrowException) as error:
                bad = exact.shown(error.object if isinstance(error, UnicodeDecodeError) else str(error))
                raise JobCodeError(
                    f"The operator {self._operator} cannot read its input after row {rows} of its task: {bad}.",
                    hint=exact.READABLE,
                ) from error
            if batch is None:
                return
            first = batch[0] if isinstance(batch, tuple) else batch
            rows += len(first) if isinstance(first, Sized) else 0
            yield batch

    def _acknowledge(self) -> None:
        scope = self._scope
        if scope is None:
            return
        scope.flush()
        tally = scope.tally
        if tally != self._reported:
            count.add(self._counters, scope.epoch.identity.query, scope.operator, tally.less(self._reported))
            self._reported = tally


def _next_chunk(items: Iterator[Any]) -> list[Any]:
    """Return the next item, or the next Spark rows that share one acknowledgement; empty at the end."""
    chunk = list(islice(items, 1))
    if chunk and isinstance(chunk[0], tuple):
        chunk += islice(items, _ROWS_AT_ONCE - 1)
    return chunk
