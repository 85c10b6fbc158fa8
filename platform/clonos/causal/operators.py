"""`clonos.operator`: causal services in functions and processors that a job passes to Spark.

It wraps a function for ``mapInPandas``, ``mapInArrow``, ``applyInPandas``, ``applyInArrow`` (grouped or cogrouped) or
``applyInPandasWithState``, or a ``StatefulProcessor`` for ``transformWithState`` and its pandas form. The log
acknowledges the determinants of the wrapped code before its output leaves.

PySpark pickles a wrapped object once for each use, when the job function builds its frames. The pickling numbers the
use, so that two uses of one object are two operators.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from clonos.carried_errors import carry, carrying
from clonos.causal.counting import count
from clonos.causal.naming import operator_name, shown_name, stable_name
from clonos.causal.operator_task import OperatorTask
from clonos.causal.ordering import OrderBy, fingerprint, ordered_batches, ordered_frame, ordered_table, present_columns
from clonos.causal.scope import Group, operator_scope
from clonos.causal.stateful import OperatorProcessor
from clonos.errors import SpecError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class OperatorFunction(Generic[P, R]):
    """A function that `operator` has wrapped, as the job function uses it in the driver process.

    A call runs the user's function without logging, for unit tests. Pickling for Spark creates the form that tasks
    call, which logs determinants. It has the signature and annotations of the user's function.

    Args:
        function: The user's function.
        name: The operator's name in the log.
        order_by: Columns that order the rows of a group; None: the default order (see `operator`).
    """

    def __init__(self, function: Callable[P, R], name: str, order_by: OrderBy) -> None:
        functools.update_wrapper(self, function)
        # Spark derives the kind of function from its parameters and their annotations.
        self.__signature__ = inspect.signature(function)
        self.__annotations__ = dict(getattr(function, "__annotations__", {}))
        self.function = function
        self.name = name
        self.order_by = order_by

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, for unit tests."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the next use, with its number."""
        operator = operator_name(self.name, shown_name(self.function))
        arity = len(self.__signature__.parameters)
        return _FunctionInTask, (self.function, operator, self.order_by, arity, count.for_pickling())


class _FunctionInTask:
    """The function in a task, where Spark calls it."""

    def __init__(
        self, function: Callable[..., Any], operator: str, order_by: OrderBy, arity: int, counters: Any
    ) -> None:
        self._function = function
        self.operator = operator
        self._order_by = order_by
        self._arity = arity
        self._counters = counters
        self._opened: OperatorTask | None = None
        # Spark passes the key of a group only to functions of two arguments.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(f"_{number}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for number in range(max(arity, 2))
            ]
        )

    @property
    def _task(self) -> OperatorTask:
        if self._opened is None:
            self._opened = OperatorTask(self.operator, self._counters)
        return self._opened

    def __call__(self, *args: Any) -> Any:
        if operator_scope() is not None:
            return self._function(*args)  # called by the code of another operator
        first, rest = args[0], args[1:]
        if not rest and isinstance(first, Iterator):
            return self._task.stream(None, self._function, first)  # mapInPandas, mapInArrow
        if isinstance(first, tuple) and rest:
            return self._group(first, *rest)
        if len(rest) == 1 and _is_group(first) and _is_group(rest[0]):
            return self._cogroup(None, first, rest[0])
        raise carry(
            SpecError(
                f"The operator {self.operator} was used as a Spark UDF.",
                kept="the epoch was not published.",
                hint="decorate functions on columns with clonos.udf, clonos.pandas_udf or clonos.arrow_udf.",
            )
        )

    def _group(self, key: tuple[Any, ...], values: Any, *more: Any) -> Any:
        if more and _is_group(more[0]):
            return self._cogroup(key, values, more[0])
        group = Group(lambda: key)
        if _is_group(values):
            with carrying():
                ordered = _ordered(values, self._order_by)
            return self._task.call(group, self._function, *self._arguments(key, ordered))
        with carrying():
            batches = ordered_batches(values, self._order_by)
        return self._task.stream(group, self._function, *self._arguments(key, batches), *more)

    def _cogroup(self, key: tuple[Any, ...] | None, left: Any, right: Any) -> Any:
        by = self._order_by
        with carrying():
            # A column of order_by may be in one side only.
            sides = [_ordered(side, present_columns(_names(side), by)) for side in (left, right)]
        group = Group(lambda: fingerprint(*sides) if key is None else key)
        return self._task.call(group, self._function, *(() if key is None else (key,)), *sides)

    def _arguments(self, key: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
        return (values,) if self._arity == 1 else (key, values)


def _is_group(value: Any) -> bool:
    return isinstance(value, pa.Table) or (hasattr(value, "iloc") and hasattr(value, "columns"))


def _names(values: Any) -> list[str]:
    return list(values.column_names if isinstance(values, pa.Table) else values.columns)


def _ordered(values: Any, by: OrderBy) -> Any:
    if values.shape[0] == 0:
        return values  # an empty side of a cogroup
    return ordered_table(values, by) if isinstance(values, pa.Table) else ordered_frame(values, by)


@overload
def operator(target: T, /, *, name: str | None = None, order_by: str | Iterable[str] | None = None) -> T: ...


@overload
def operator(*, name: str | None = None, order_by: str | Iterable[str] | None = None) -> Callable[[T], T]: ...


def operator(
    target: T | None = None, /, *, name: str | None = None, order_by: str | Iterable[str] | None = None
) -> T | Callable[[T], T]:
    """Wrap a function or processor for Spark, so that it may call causal services.

    Functions and processors that receive groups get the rows in canonical order: by `order_by`. Without it, the order
    is by topic, partition and offset if the group has these columns, otherwise by all columns. Draws without a key are
    numbered per group. Each use in a job is an operator with its own determinants.

    Operators log their nondeterministic values as determinants before their output leaves; this is causal logging as in
    Clonos (SIGMOD 2021, doi 10.1145/3448016.3457320).

    Args:
        target: A function for ``mapInPandas``, ``mapInArrow``, ``applyInPandas``, ``applyInArrow`` or
            ``applyInPandasWithState``, or an instance of ``StatefulProcessor``.
        name: The operator's stable name in the log; default the qualified name of the function or class. Set it if the
            function may be renamed while an epoch is in doubt.
        order_by: Columns that order the rows of a group, ascending. Each side of a cogroup uses the columns it has.

    Returns:
        `target`, wrapped; without `target` a decorator.

    Raises:
        SpecError: `target` is neither a function nor such an instance, or the name is not allowed.

    Example::

        @clonos.operator(order_by="offset")
        def settle(key, rows):
            return rows.assign(rate=[rate_of(currency) for currency in rows["currency"]])

        orders.groupBy("customer").applyInPandas(settle, schema)
    """
    by: OrderBy = (order_by,) if isinstance(order_by, str) else None if order_by is None else tuple(order_by)

    def wrap(wrapped: T) -> T:
        if isinstance(wrapped, StatefulProcessor):
            return cast("T", OperatorProcessor(wrapped, stable_name(name, type(wrapped)), by))
        if not callable(wrapped) or isinstance(wrapped, type):
            raise SpecError(
                f"clonos.operator got {wrapped!r}.", hint="pass a function, or an instance of a StatefulProcessor."
            )
        return cast("T", OperatorFunction(wrapped, stable_name(name, wrapped), by))

    return wrap if target is None else wrap(target)
