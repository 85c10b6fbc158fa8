"""Recorded services: the true time, and any call to the world outside.

An answer is recorded under (service, arguments) within (epoch, operator, task). Equal arguments in a task
share one call, so an answer does not depend on the order of rows.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import functools
import threading
import types
import typing
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec
import stamina
import xxhash

from clonos.causal.scope import canonical, current_task, unwrapped
from clonos.causal.standin import outside
from clonos.errors import ClonosError, ResultNotSerialisable, ServiceError, ServiceTimedOut
from clonos.log.records import Entry

P = ParamSpec("P")
R = TypeVar("R")

_encoder = msgspec.msgpack.Encoder()
_UNRESOLVED: Final = object()


def clock(*what: object) -> dt.datetime:
    """The true time in UTC, recorded. Equal arguments in a task share one reading."""
    return _clock_at(*what)


class _NoAnswer(Exception):
    """The function did not answer in time (it may raise a `TimeoutError` of its own)."""


class Service(Generic[P, R]):
    """A function whose answers are recorded once and replayed; made by `service`."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        timeout: float | None,
        retries: int,
        concurrency: int,
        record_errors: bool,
        result_type: Any = _UNRESOLVED,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.timeout = timeout
        self.retries = retries
        self.concurrency = concurrency
        self.record_errors = record_errors
        self._known_type = result_type

    @property
    def result_type(self) -> Any:
        """What answers are decoded to: the annotated type.

        Resolved in the driver and sent to the workers, because a function that travels by value leaves behind
        the names that only its annotations use.
        """
        if self._known_type is _UNRESOLVED:
            annotated = types.SimpleNamespace(
                __annotations__={"return": getattr(self.function, "__annotations__", {}).get("return", Any)}
            )
            try:
                names = getattr(self.function, "__globals__", {})
                self._known_type = typing.get_type_hints(annotated, names)["return"]
            except (NameError, TypeError):
                self._known_type = Any
        return self._known_type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer from this task, from the log, or by calling the function.

        Raises:
            ServiceError: The call failed for good, now or (with `record_errors`) when it was recorded.
            ServiceTimedOut: It gave no answer in time, and that is not recorded.
            ResultNotSerialisable: The answer cannot be recorded.
            CarriedError: No operator wraps the function that calls (carries `OperatorUnknown`).
        """
        task = current_task()
        if task is None:
            return self._call(*args, **kwargs)
        if not task.wrapped:
            raise unwrapped(f"The service {self.name}")
        task.concurrency = max(task.concurrency, self.concurrency)
        key = _key(self.name, args, kwargs)
        entry = task.answers.get(key)
        if entry is None:
            with task.asking(key):
                entry = task.known(key)
                if entry is None:
                    entry = self._ask(key, *args, **kwargs)
                    task.record(entry)
        return self._answer(entry)

    def map(self, *arguments: Iterable[Any]) -> list[R]:
        """Call the service for each item, as the built-in `map` does, up to `concurrency` at once.

        For functions that see many rows at a time::

            verdicts = is_banned.map(batch["word"])

        Each call is recorded as if made alone.

        Args:
            arguments: One iterable for each positional argument.

        Returns:
            The answers, in order.

        Raises:
            ServiceError: The first call that failed for good.
        """
        one: Callable[..., R] = self
        calls = list(zip(*arguments, strict=True))
        if self.concurrency == 1 or len(calls) < 2:
            return [one(*call) for call in calls]
        pool = ThreadPoolExecutor(min(self.concurrency, len(calls)), f"clonos-map-{self.name}")
        try:
            # Each call runs in a copy of this context, so that it finds its operator.
            waiting = [pool.submit(contextvars.copy_context().run, functools.partial(one, *call)) for call in calls]
            return [future.result() for future in waiting]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, key: bytes, *args: P.args, **kwargs: P.kwargs) -> Entry:
        try:
            answer = self._call(*args, **kwargs)
        except ServiceError as failure:
            if not self.record_errors:
                raise
            return Entry(key, failure.what.encode(), failed=True, service=self.name)
        try:
            entry = Entry(key, _encoder.encode(answer), service=self.name)
            self._answer(entry)  # what cannot be read back must not be recorded
        except (TypeError, ValueError, OverflowError) as error:
            raise ResultNotSerialisable(
                f"The service {self.name} returned a {type(answer).__name__}, "
                f"which the causal log cannot hold: {error}."
            ) from error
        return entry

    def _answer(self, entry: Entry) -> R:
        if entry.failed:
            raise ServiceError(entry.value.decode())
        # Decoded even when fresh, so that the job sees the same types as in a replay.
        answer: R = msgspec.msgpack.decode(entry.value, type=self.result_type)
        return answer

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            for attempt in stamina.retry_context(
                on=Exception, attempts=self.retries + 1, timeout=None, wait_initial=0.05, wait_max=2.0
            ):
                with attempt:
                    return self._once(*args, **kwargs)
        except ClonosError:
            raise
        except _NoAnswer as failure:
            raise ServiceTimedOut(f"The service {self.name} gave no answer in {self.timeout} s.") from failure
        except Exception as failure:
            raise ServiceError(f"The service {self.name} failed: {type(failure).__name__}: {failure}.") from failure
        raise AssertionError("unreachable: the retry context returns or raises")

    def _once(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with _slots.setdefault(self.name, threading.BoundedSemaphore(self.concurrency)):
            function: Callable[P, R] = outside(self.name, self.function)
            if self.timeout is None:
                return function(*args, **kwargs)
            # In this context, so that `clonos.param` and the derived services answer inside the service too.
            context = contextvars.copy_context()
            future: Future[R] = _callers(self).submit(lambda: context.run(function, *args, **kwargs))
            try:
                return future.result(self.timeout)
            except FutureTimeout as failure:
                if future.done():
                    raise  # the function's own
                future.cancel()
                # The thread that hangs in the call is left behind; a fresh pool takes the next calls.
                _pools.pop(self.name, None)
                raise _NoAnswer from failure

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by parts: locks and pools stay behind."""
        return (
            _rebuild,
            (
                self.function,
                self.name,
                self.timeout,
                self.retries,
                self.concurrency,
                self.record_errors,
                self.result_type,
            ),
        )


def _rebuild(
    function: Callable[..., Any],
    name: str,
    timeout: float | None,
    retries: int,
    concurrency: int,
    record_errors: bool,
    result_type: Any,
) -> Service[..., Any]:
    return Service(
        function,
        name=name,
        timeout=timeout,
        retries=retries,
        concurrency=concurrency,
        record_errors=record_errors,
        result_type=result_type,
    )


@overload
def service(function: Callable[P, R], /) -> Service[P, R]: ...


@overload
def service(
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    concurrency: int = 1,
    record_errors: bool = False,
) -> Callable[[Callable[P, R]], Service[P, R]]: ...


def service(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    concurrency: int = 1,
    record_errors: bool = False,
) -> Service[P, R] | Callable[[Callable[P, R]], Service[P, R]]:
    """Make a function that calls the outside world a causal service.

    Arguments and results are what msgspec can encode; a result is decoded to the function's annotated type.

    Args:
        function: The function, when used without parentheses.
        name: Stable name in the log; default the function's module and qualified name.
        timeout: Seconds for one attempt.
        retries: Further attempts after a failed one, with growing pauses.
        concurrency: How many rows of a batch may wait for the service at once.
        record_errors: Record a final failure too, and raise the same `ServiceError` in a replay.
    """

    def wrap(wrapped: Callable[P, R]) -> Service[P, R]:
        return Service(
            wrapped,
            name=name or f"{wrapped.__module__}.{wrapped.__qualname__}",
            timeout=timeout,
            retries=retries,
            concurrency=concurrency,
            record_errors=record_errors,
        )

    return wrap if function is None else wrap(function)


def _now(*_what: object) -> dt.datetime:
    return dt.datetime.now(dt.UTC)


_clock_at: Service[..., dt.datetime] = Service(
    _now, name="clonos.clock", timeout=None, retries=0, concurrency=1, record_errors=False
)


def _key(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    try:
        text = canonical((name, args, kwargs))
    except (TypeError, ValueError, OverflowError) as error:
        raise ResultNotSerialisable(
            f"The service {name} was called with arguments that cannot be recorded: {error}.",
            hint="pass plain values: numbers, text, bytes, dates, lists, dicts.",
        ) from error
    return xxhash.xxh3_128_digest(text)


_pools: dict[str, ThreadPoolExecutor] = {}
_slots: dict[str, threading.BoundedSemaphore] = {}


def _callers(of: Service[..., Any]) -> ThreadPoolExecutor:
    pool = _pools.get(of.name)
    if pool is None:
        pool = _pools[of.name] = ThreadPoolExecutor(of.concurrency, f"clonos-service-{of.name}")
    return pool
