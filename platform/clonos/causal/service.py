"""Recorded services: the true time, and calls to external systems.

An answer is recorded under (service, arguments) within (epoch, operator, task). Equal arguments in a task share one
call, so an answer does not depend on the order of rows. Recording the answers of external calls as determinants follows
Clonos (SIGMOD 2021, doi 10.1145/3448016.3457320).
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

from clonos.causal.encoding import canonical
from clonos.causal.scope import current_task, operator_required
from clonos.causal.standin import answerer_of
from clonos.errors import ClonosError, ResultNotSerialisable, ServiceError, ServiceTimedOut
from clonos.log.records import Determinant

P = ParamSpec("P")
R = TypeVar("R")

_encoder = msgspec.msgpack.Encoder()
_UNRESOLVED: Final = object()
# A record of the log holds at most 8 MiB; the rest is for the record's other fields.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024 - 64 * 1024


def clock(*key: object) -> dt.datetime:
    """The true time of the call, recorded in the causal log so that a replay returns the same time.

    `clonos.now` is cheaper: it is the epoch's time, and writes nothing to the log.

    Args:
        key: Identifies the reading. Equal keys in a task share one reading, and so do all calls without a key.

    Returns:
        An aware datetime in UTC, the same in a replay.

    Raises:
        EpochFailed: The log did not acknowledge the reading.
        CarriedError: No operator wraps the calling function (carries `OperatorRequired`).

    Example::

        @clonos.udf("timestamp")
        def arrived_at(offset):
            return clonos.clock(offset)
    """
    return _clock_at(*key)


class _NoAnswer(Exception):
    """The function did not return in time. (The function may itself raise a `TimeoutError`.)"""


class Service(Generic[P, R]):
    """A function whose answers are recorded once and repeated in a replay. `service` describes its arguments.

    Attributes:
        function: The function itself, for unit tests.
    """

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
        """The type of the decoded answers: the annotated return type.

        The driver resolves the annotation and sends the type to the workers. A function that is pickled by value lacks
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
        """Return the answer that this task or the log holds, or call the function and record its answer.

        Outside a job the function is called each time.

        Returns:
            The answer, decoded to the function's annotated type.

        Raises:
            ServiceError: All attempts failed, now or (with `record_errors`) when the call was recorded.
            ServiceTimedOut: The last attempt timed out; with `record_errors` this is a recorded `ServiceError`.
            ResultNotSerialisable: The arguments or the answer cannot be recorded, or the answer is too large.
            CarriedError: No operator wraps the calling function (carries `OperatorRequired`).
        """
        task = current_task()
        if task is None:
            return self._call(*args, **kwargs)
        if not task.wrapped:
            raise operator_required(f"The service {self.name}")
        task.concurrency = max(task.concurrency, self.concurrency)
        key = _key(self.name, args, kwargs)
        entry = task.answers.get(key)
        if entry is None:
            with task.locked(key):
                entry = task.find(key)
                if entry is None:
                    entry = self._determinant(key, *args, **kwargs)
                    task.record(entry)
        return self._decoded(entry)

    def map(self, *arguments: Iterable[Any]) -> list[R]:
        """Call the service for each item, as the built-in `map` does, with up to `concurrency` calls in parallel.

        For functions that receive many rows at once. Each call has its own determinant.

        Args:
            arguments: One iterable for each positional argument, all of the same length.

        Returns:
            The answers, in order.

        Raises:
            ServiceError: All attempts of a call failed; the first such call raises.
            ValueError: The iterables differ in length.

        Example::

            verdicts = is_banned.map(batch["word"])
        """
        call_service: Callable[..., R] = self
        calls = list(zip(*arguments, strict=True))
        if self.concurrency == 1 or len(calls) < 2:
            return [call_service(*call) for call in calls]
        pool = ThreadPoolExecutor(min(self.concurrency, len(calls)), f"clonos-map-{self.name}")
        try:
            # Each call runs in a copy of this context, which holds the operator.
            futures = [
                pool.submit(contextvars.copy_context().run, functools.partial(call_service, *call)) for call in calls
            ]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _determinant(self, key: bytes, *args: P.args, **kwargs: P.kwargs) -> Determinant:
        try:
            answer = self._call(*args, **kwargs)
        except ServiceError as failure:
            if not self.record_errors:
                raise
            return self._fitting(Determinant(key, failure.what.encode(), failed=True, service=self.name))
        try:
            entry = Determinant(key, _encoder.encode(answer), service=self.name)
            self._decoded(entry)  # an answer that cannot be decoded must not be recorded
        except (TypeError, ValueError, OverflowError) as error:
            raise ResultNotSerialisable(
                f"The service {self.name} returned a {type(answer).__name__}, "
                f"which the causal log cannot hold: {error}."
            ) from error
        return self._fitting(entry)

    def _fitting(self, entry: Determinant) -> Determinant:
        """The determinant, if the log can hold it; a larger one would be refused at every attempt."""
        size = len(entry.value)
        if size > MAX_ANSWER_BYTES:
            raise ResultNotSerialisable(
                f"The service {self.name} returned an answer of {size} bytes; the causal log holds at most "
                f"{MAX_ANSWER_BYTES}.",
                hint="return less, or store the large part elsewhere and return its address.",
            )
        return entry

    def _decoded(self, entry: Determinant) -> R:
        if entry.failed:
            raise ServiceError(entry.value.decode())
        # A new answer is decoded too, so that the job gets the same types as in a replay.
        answer: R = msgspec.msgpack.decode(entry.value, type=self.result_type)
        return answer

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            for attempt in stamina.retry_context(
                on=Exception, attempts=self.retries + 1, timeout=None, wait_initial=0.05, wait_max=2.0
            ):
                with attempt:
                    return self._attempt(*args, **kwargs)
        except ClonosError:
            raise
        except _NoAnswer as failure:
            raise ServiceTimedOut(f"The service {self.name} gave no answer in {self.timeout} s.") from failure
        except Exception as failure:
            raise ServiceError(f"The service {self.name} failed: {type(failure).__name__}: {failure}.") from failure
        raise AssertionError("unreachable: the retry context returns or raises")

    def _attempt(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with _slots.setdefault(self.name, threading.BoundedSemaphore(self.concurrency)):
            function: Callable[P, R] = answerer_of(self.name, self.function)
            if self.timeout is None:
                return function(*args, **kwargs)
            # In a copy of this context, so that `clonos.param` and the derived services work inside the service too.
            context = contextvars.copy_context()
            future: Future[R] = _thread_pool(self).submit(lambda: context.run(function, *args, **kwargs))
            try:
                return future.result(self.timeout)
            except FutureTimeout as failure:
                if future.done():
                    raise  # the function itself raised it
                future.cancel()
                # The hanging thread keeps its pool; the next call creates another one.
                _pools.pop(self.name, None)
                raise _NoAnswer from failure

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the arguments of the constructor."""
        rebuild = functools.partial(
            Service,
            self.function,
            name=self.name,
            timeout=self.timeout,
            retries=self.retries,
            concurrency=self.concurrency,
            record_errors=self.record_errors,
            result_type=self.result_type,
        )
        return rebuild, ()


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
    """Make a function that calls an external system a causal service: each answer is recorded, and replayed.

    Call the service in a function that an operator wraps (`udf`, `pandas_udf`, `arrow_udf`, `operator`). Arguments and
    results must be types that msgspec encodes. A result is decoded to the function's annotated return type.

    Args:
        function: The function, for a decorator without parentheses.
        name: Stable name in the log; default the function's module and qualified name.
        timeout: Seconds for one attempt; None: unlimited.
        retries: Further attempts after a failed one, with exponential delay from 0.05 s to 2 s.
        concurrency: Number of rows of a batch that call the service in parallel.
        record_errors: Record a final failure too, and raise the same `ServiceError` in a replay.

    Returns:
        The service, or a decorator if `function` is None.

    Raises:
        ServiceError: (from a call) All attempts failed.
        ServiceTimedOut: (from a call) The last attempt timed out, and `record_errors` is not set.
        ResultNotSerialisable: (from a call) The arguments or the answer cannot be recorded.

    Example::

        @clonos.service(timeout=2, retries=3, concurrency=8)
        def is_banned(word: str) -> bool:
            return requests.get(f"{URL}/{word}").json()["banned"]
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


def _now(*_key: object) -> dt.datetime:
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


def _thread_pool(service: Service[..., Any]) -> ThreadPoolExecutor:
    pool = _pools.get(service.name)
    if pool is None:
        pool = _pools[service.name] = ThreadPoolExecutor(service.concurrency, f"clonos-service-{service.name}")
    return pool
