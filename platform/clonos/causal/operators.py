"""`clonos.operator`: causal services in whatever a job hands to Spark by value.

A function for ``mapInPandas``, ``mapInArrow``, ``applyInPandas``, ``applyInArrow`` (grouped or cogrouped) or
``applyInPandasWithState``, or a ``StatefulProcessor`` for ``transformWithState`` and its pandas form. Inside, the
causal services find the scope of a named operator, and what they answered is acknowledged by the log before
anything that may have used it leaves.

PySpark pickles such an object once for each use, when the job function builds its frames; that is where a use
gets its number, so that two uses of one object are two operators.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from clonos.carried import carry, carrying
from clonos.causal.counting import Tally, count
from clonos.causal.naming import operator_name, shown_name, stable_name
from clonos.causal.ordering import OrderBy, fingerprint, ordered_batches, ordered_frame, ordered_table, those_of
from clonos.causal.scope import Group, Inside, open_task_scope, operator_scope
from clonos.errors import SpecError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Spark rows that are acknowledged together; DataFrames and Arrow batches are, one by one.
_ROWS_AT_ONCE: Final = 1000


class OperatorTask:
    """One operator in one task: runs user code in its scope, and lets nothing out that the log may not hold.

    Args:
        operator: The numbered name.
        counters: What `clonos.causal.counting` made in the driver.
    """

    def __init__(self, operator: str, counters: Any) -> None:
        self._scope = open_task_scope(operator)
        self._counters = counters
        self._told = Tally()

    @property
    def rehearsal(self) -> bool:
        """Whether nobody is to be called with rows."""
        return self._scope is not None and self._scope.epoch.rehearsal

    def call(self, place: Group | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`; when this returns, the log holds what it was answered."""
        with carrying():
            result = Inside(self._scope, place)(function, *args, **kwargs)
            self._settle()
            return result

    def stream(self, place: Group | None, function: Callable[..., Iterable[Any]], *args: Any) -> Iterator[Any]:
        """What `function` returns, item by item; before one is handed on, the log holds what was answered so far."""
        with carrying():
            if self.rehearsal:
                deque(args[0] if place is None else (), maxlen=0)  # there are no rows, and nobody is to be called
                return
            inside = Inside(self._scope, place)
            items = inside(lambda: iter(function(*args)))
            try:
                while held := inside(_some, items):
                    self._settle()
                    yield from held
                self._settle()  # state may have changed after the last one
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    inside(close)

    def _settle(self) -> None:
        scope = self._scope
        if scope is None:
            return
        scope.flush()
        tally = scope.tally
        if tally != self._told:
            count.add(self._counters, scope.epoch.query, scope.operator, tally.less(self._told))
            self._told = tally


def _some(items: Iterator[Any]) -> list[Any]:
    """The next item, or as many Spark rows as are acknowledged together; empty at the end."""
    held = list(islice(items, 1))
    if held and isinstance(held[0], tuple):
        held += islice(items, _ROWS_AT_ONCE - 1)
    return held


class OperatorFunction(Generic[P, R]):
    """A function with an operator's name; in the driver. It looks like the function itself to whoever inspects it."""

    def __init__(self, function: Callable[P, R], name: str, order_by: OrderBy) -> None:
        functools.update_wrapper(self, function)
        # Spark takes the kind of function from its parameters and their annotations.
        self.__signature__ = inspect.signature(function)
        self.__annotations__ = dict(getattr(function, "__annotations__", {}))
        self.function = function
        self.name = name
        self.order_by = order_by

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as a unit test does."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """One more use: what Spark unpickles in a task has a number of its own."""
        operator = operator_name(self.name, shown_name(self.function))
        arity = len(self.__signature__.parameters)
        return _FunctionInTask, (self.function, operator, self.order_by, arity, count.for_pickling())


class _FunctionInTask:
    """The same function in one task, called by Spark."""

    def __init__(
        self, function: Callable[..., Any], operator: str, order_by: OrderBy, arity: int, counters: Any
    ) -> None:
        self._function = function
        self._operator = operator
        self._order_by = order_by
        self._arity = arity
        self._counters = counters
        self._opened: OperatorTask | None = None
        # Spark tells the key of a group only to functions of two arguments.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(f"_{number}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for number in range(max(arity, 2))
            ]
        )

    @property
    def _task(self) -> OperatorTask:
        if self._opened is None:
            self._opened = OperatorTask(self._operator, self._counters)
        return self._opened

    def __call__(self, *args: Any) -> Any:
        if operator_scope() is not None:
            return self._function(*args)  # another operator's own code calls
        first, rest = args[0], args[1:]
        if not rest and isinstance(first, Iterator):
            return self._task.stream(None, self._function, first)  # mapInPandas, mapInArrow
        if isinstance(first, tuple) and rest:
            return self._group(first, *rest)
        if len(rest) == 1 and _is_group(first) and _is_group(rest[0]):
            return self._cogroup(None, first, rest[0])
        raise carry(
            SpecError(
                f"The operator {self._operator} was used as a Spark UDF.",
                kept="the epoch was not published.",
                hint="decorate functions on columns with clonos.udf, clonos.pandas_udf or clonos.arrow_udf.",
            )
        )

    def _group(self, key: tuple[Any, ...], values: Any, *more: Any) -> Any:
        if more and _is_group(more[0]):
            return self._cogroup(key, values, more[0])
        place = Group(lambda: key)
        if _is_group(values):
            with carrying():
                ordered = _ordered(values, self._order_by)
            return self._task.call(place, self._function, *self._given(key, ordered))
        with carrying():
            batches = ordered_batches(values, self._order_by)
        return self._task.stream(place, self._function, *self._given(key, batches), *more)

    def _cogroup(self, key: tuple[Any, ...] | None, left: Any, right: Any) -> Any:
        by = self._order_by
        with carrying():
            # A column may be in one side only.
            sides = [_ordered(side, those_of(_names(side), by)) for side in (left, right)]
        place = Group(lambda: fingerprint(*sides) if key is None else key)
        return self._task.call(place, self._function, *(() if key is None else (key,)), *sides)

    def _given(self, key: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
        return (values,) if self._arity == 1 else (key, values)


def _is_group(value: Any) -> bool:
    return isinstance(value, pa.Table) or (hasattr(value, "iloc") and hasattr(value, "columns"))


def _names(values: Any) -> list[str]:
    return list(values.column_names if isinstance(values, pa.Table) else values.columns)


def _ordered(values: Any, by: OrderBy) -> Any:
    if values.shape[0] == 0:
        return values  # the side of a cogroup that is not there
    return ordered_table(values, by) if isinstance(values, pa.Table) else ordered_frame(values, by)


@overload
def operator(target: T, /, *, name: str | None = None, order_by: str | Iterable[str] | None = None) -> T: ...


@overload
def operator(*, name: str | None = None, order_by: str | Iterable[str] | None = None) -> Callable[[T], T]: ...


def operator(
    target: T | None = None, /, *, name: str | None = None, order_by: str | Iterable[str] | None = None
) -> T | Callable[[T], T]:
    """Make what a job hands to Spark by value an operator, with causal services inside.

    Functions and processors that see groups get their rows in canonical order: by `order_by`, else by topic,
    partition and offset where the group has these columns, else by all columns. Draws without a key are made
    per group. Each use in a job is an operator with answers of its own.

    Args:
        target: A function for ``mapInPandas``, ``mapInArrow``, ``applyInPandas``, ``applyInArrow`` or
            ``applyInPandasWithState``, or an instance of ``StatefulProcessor``.
        name: The operator's stable name in the log; default the qualified name of the function or class. Give
            one when it may be renamed while an epoch is in doubt.
        order_by: Columns whose ascending order the rows of a group have; a cogroup's sides by those they have.

    Raises:
        SpecError: Something else, or a name that cannot be one.

    Example::

        @clonos.operator(order_by="offset")
        def settle(key, rows):
            return rows.assign(rate=[rate_of(currency) for currency in rows["currency"]])

        orders.groupBy("customer").applyInPandas(settle, schema)
    """
    by: OrderBy = (order_by,) if isinstance(order_by, str) else None if order_by is None else tuple(order_by)

    def wrap(wrapped: T) -> T:
        if isinstance(wrapped, StatefulProcessor):
            from clonos.causal.stateful import OperatorProcessor

            return cast("T", OperatorProcessor(wrapped, stable_name(name, type(wrapped)), by))
        if not callable(wrapped) or isinstance(wrapped, type):
            raise SpecError(
                f"clonos.operator got {wrapped!r}.", hint="pass a function, or an instance of a StatefulProcessor."
            )
        return cast("T", OperatorFunction(wrapped, stable_name(name, wrapped), by))

    return wrap if target is None else wrap(target)
