"""Causal services in stateful processors: ``transformWithState`` and ``transformWithStateInPandas``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from clonos.carried import carrying
from clonos.causal.counting import count
from clonos.causal.naming import operator_name
from clonos.causal.operators import OperatorTask
from clonos.causal.ordering import OrderBy, fingerprint, ordered_batches, ordered_frame, ordered_rows, those_of
from clonos.causal.scope import Group

# What Spark's plans call any stateful processor.
_SHOWN = ("transformWithStateUDF", "transformWithStateWithInitStateUDF")


class OperatorProcessor(StatefulProcessor):
    """A stateful processor with an operator's name; made by `clonos.operator`.

    All rows of a key in an epoch are handed over together, in canonical order.

    Args:
        inner: The user's processor.
        name: The stable name.
        order_by: Columns that order the rows of a key.
        operator: The numbered name; in a task only.
        counters: What `clonos.causal.counting` made; in a task only.
    """

    def __init__(
        self,
        inner: StatefulProcessor,
        name: str,
        order_by: OrderBy,
        operator: str | None = None,
        counters: Any = None,
    ) -> None:
        self.inner = inner
        self.name = name
        self.order_by = order_by
        self._operator = operator
        self._counters = counters
        self._opened: OperatorTask | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """One more use: what Spark unpickles in a task has a number of its own."""
        operator = operator_name(self.name, *_SHOWN)
        return OperatorProcessor, (self.inner, self.name, self.order_by, operator, count.for_pickling())

    @property
    def _task(self) -> OperatorTask:
        if self._opened is None:
            self._opened = OperatorTask(self._operator or self.name, self._counters)
        return self._opened

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Delegate; in the driver too, where Spark reads the schema of the state."""
        self._task.call(Group(lambda: "init"), self.inner.init, handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        """Delegate, with the rows in canonical order."""
        with carrying():
            ordered = _ordered(rows, self.order_by)
        return self._task.stream(Group(lambda: ("input", key)), self.inner.handleInputRows, key, ordered, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        """Delegate; each timer of a key draws by itself."""
        at = expiredTimerInfo.getExpiryTimeInMs()
        return self._task.stream(
            Group(lambda: ("timer", key, at)), self.inner.handleExpiredTimer, key, timerValues, expiredTimerInfo
        )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        """Delegate; a DataFrame in canonical order, rows one by one as Spark has them."""
        if self._task.rehearsal:
            return
        state = initialState
        if hasattr(state, "iloc"):
            with carrying():
                state = ordered_frame(state, those_of(list(state.columns), self.order_by))
        place = Group(lambda: ("initial", key, fingerprint(state) if hasattr(state, "iloc") else state))
        self._task.call(place, self.inner.handleInitialState, key, state, timerValues)

    def close(self) -> None:
        """Delegate."""
        self._task.call(Group(lambda: "close"), self.inner.close)


def _ordered(rows: Iterable[Any], by: OrderBy) -> Iterator[Any]:
    items = list(rows)
    if items and hasattr(items[0], "iloc"):
        return ordered_batches(items, by)
    return iter(ordered_rows(items, by))
