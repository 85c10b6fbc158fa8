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

from clonos.carried_errors import carrying
from clonos.causal.counting import count
from clonos.causal.naming import operator_name
from clonos.causal.operator_task import OperatorTask
from clonos.causal.ordering import OrderBy, fingerprint, ordered_batches, ordered_frame, ordered_rows, present_columns
from clonos.causal.scope import Group

# The names of all stateful processors in Spark's plans.
_SHOWN = ("transformWithStateUDF", "transformWithStateWithInitStateUDF")


class OperatorProcessor(StatefulProcessor):
    """A stateful processor that `clonos.operator` has wrapped, so that it may call causal services.

    The processor gets all rows of a key in an epoch in one call, in canonical order. `operator` (the name with the
    number of its use) and `counters` (the accumulator for determinants) are set in a task only.
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
        """Pickle the next use, with its number."""
        operator = operator_name(self.name, *_SHOWN)
        return OperatorProcessor, (self.inner, self.name, self.order_by, operator, count.for_pickling())

    @property
    def _task(self) -> OperatorTask:
        if self._opened is None:
            self._opened = OperatorTask(self._operator or self.name, self._counters)
        return self._opened

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Call the user's `init`. Spark also calls this in the driver, to read the schema of the state."""
        self._task.call(Group(lambda: "init"), self.inner.init, handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        """Call the user's `handleInputRows`, with the rows in canonical order."""
        with carrying():
            ordered = _ordered(rows, self.order_by)
        return self._task.stream(Group(lambda: ("input", key)), self.inner.handleInputRows, key, ordered, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        """Call the user's `handleExpiredTimer`; each timer of a key has its own random draws."""
        expiry_ms = expiredTimerInfo.getExpiryTimeInMs()
        return self._task.stream(
            Group(lambda: ("timer", key, expiry_ms)), self.inner.handleExpiredTimer, key, timerValues, expiredTimerInfo
        )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        """Call the user's `handleInitialState`, with a DataFrame in canonical order, or with the single row that
        Spark passes.
        """
        if self._task.rehearsal:
            return
        state = initialState
        if hasattr(state, "iloc"):
            with carrying():
                state = ordered_frame(state, present_columns(list(state.columns), self.order_by))
        group = Group(lambda: ("initial", key, fingerprint(state) if hasattr(state, "iloc") else state))
        self._task.call(group, self.inner.handleInitialState, key, state, timerValues)

    def close(self) -> None:
        """Call the user's `close`."""
        self._task.call(Group(lambda: "close"), self.inner.close)


def _ordered(rows: Iterable[Any], by: OrderBy) -> Iterator[Any]:
    items = list(rows)
    if items and hasattr(items[0], "iloc"):
        return ordered_batches(items, by)
    return iter(ordered_rows(items, by))
