"""Recorded services: the true time, and calls to external systems.

An answer is recorded under (service, arguments) within (epoch, operator, task). Equal arguments in a task share one
call, so an answer does not depend on the order of rows. Recording the answers of external calls as determinants follows
Clonos (SIGMOD 2021, doi 10.1145/3448016.3457320).
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import functools
import inspect
import os
import threading
import types
import typing
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from itertools import count
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, get_args, overload

import msgspec
import xxhash

from clonos.causal.encoding import canonical, plain, plain_hook
from clonos.causal.outages import PATIENCE_S, Outages, is_outage, pause
from clonos.causal.scope import TaskScope, current_task, in_spark, operator_required
from clonos.causal.standin import answerer_of
from clonos.errors import ResultNotSerialisable, ServiceError, ServiceTimedOut, ServiceUnavailable, SpecError
from clonos.log.records import Determinant

P = ParamSpec("P")
R = TypeVar("R")

# What a job does during an outage of a service: it waits, it fails, or the call's failure is recorded.
OnOutage = Literal["wait", "fail", "record"]

_encoder = msgspec.msgpack.Encoder(enc_hook=plain_hook)
_UNRESOLVED: Final = object()
# A record of the log holds at most 8 MiB; the rest is for the record's other fields.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024 - 64 * 1024
# Threads of one service in this process whose calls timed out and have not returned; each long outage would add more.
_MOST_HANGING: Final = 32


def clock(*key: object) -> dt.datetime:
    """Return the true time of the call, recorded in the causal log so that a replay returns the same time.

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
    """A function whose answers are recorded once and repeated in a replay. `service` describes its arguments."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        timeout: float | None,
        retries: int,
        concurrency: int,
        on_outage: OnOutage,
        outages: tuple[type[Exception], ...] = (),
        result_type: Any = _UNRESOLVED,
    ) -> None:
        if on_outage not in get_args(OnOutage):
            raise SpecError(
                f"The service {name} has on_outage={on_outage!r}.",
                hint=f"use one of {', '.join(map(repr, get_args(OnOutage)))}.",
            )
        functools.update_wrapper(self, function)
        self.function = function  # the function itself, for unit tests
        self.name = name
        self.timeout = timeout
        self.retries = retries
        self.concurrency = concurrency
        self.on_outage = on_outage
        self.outages = outages
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
            ServiceError: The service is away, and `on_outage` is ``record``: now, or when the call was recorded.
                Also with ``fail``, and outside a job; then the job fails, even if the caller catches the error.
            ServiceTimedOut: The last attempt timed out; with ``record`` this is a recorded `ServiceError`.
            ServiceUnavailable: The service is away, and `on_outage` is ``wait``: the driver waits.
            ResultNotSerialisable: The arguments or the answer cannot be recorded, or the answer is too large.
            CarriedError: No operator wraps the calling function (carries `OperatorRequired`).
        """
        return self._repeatable(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    def _repeatable(self, *args: P.args, **kwargs: P.kwargs) -> R:
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
                    entry = self._determinant(task, key, *args, **kwargs)
                    task.record(entry)
        return self._decoded(entry)

    @overload
    def map(self, *arguments: Iterable[Any], return_errors: Literal[False] = False) -> list[R]: ...

    @overload
    def map(self, *arguments: Iterable[Any], return_errors: Literal[True]) -> list[R | ServiceError]: ...

    def map(self, *arguments: Iterable[Any], return_errors: bool = False) -> list[R] | list[R | ServiceError]:
        """Call the service for each item, as the built-in `map` does, with up to `concurrency` calls in parallel.

        For functions that receive many rows at once. Each call has its own determinant.

        Args:
            arguments: One iterable for each positional argument, all of the same length.
            return_errors: Return the `ServiceError` of a recorded failure at its place, instead of raising the first.

        Returns:
            The answers, in order.

        Raises:
            ServiceError: All attempts of a call failed; the first such call raises.
            ValueError: The iterables differ in length.

        Example::

            verdicts = is_banned.map(batch["word"])
        """
        call_service: Callable[..., Any] = self._answer_or_error if return_errors else self
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

    def _answer_or_error(self, *args: Any, **kwargs: Any) -> R | ServiceError:
        try:
            return self(*args, **kwargs)
        except ServiceError as failure:
            if self.on_outage != "record":
                raise
            return failure

    def _determinant(self, task: TaskScope, key: bytes, *args: P.args, **kwargs: P.kwargs) -> Determinant:
        """Call the function for a task; returns its answer, or the failure that its policy records.

        What is raised here and is not recorded must not decide an output: the task fails even if the caller catches it.
        """
        if task.failure is not None:
            raise task.failure
        try:
            return self._fitting(self._recordable(task, key, *args, **kwargs))
        except Exception as failure:
            task.failure = task.failure or failure
            raise

    def _recordable(self, task: TaskScope, key: bytes, *args: P.args, **kwargs: P.kwargs) -> Determinant:
        try:
            answer = self._answer(task, *args, **kwargs)
        except ServiceError as failure:
            if self.on_outage != "record":
                raise
            return Determinant(key, failure.what.encode(), failed=True, service=self.name)
        try:
            entry = Determinant(key, _encoder.encode(answer), service=self.name)
            self._decoded(entry)  # an answer that cannot be decoded must not be recorded
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ResultNotSerialisable(
                f"The service {self.name} returned a {type(answer).__name__}, "
                f"which the causal log cannot hold: {error}."
            ) from error
        return entry

    def _fitting(self, entry: Determinant) -> Determinant:
        """Return the determinant, if the log can hold it; a larger one would be refused at every attempt."""
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
            raise ServiceError.recorded(entry.value.decode())
        # A new answer is decoded too, so that the job gets the same types as in a replay.
        answer: R = msgspec.msgpack.decode(entry.value, type=self.result_type)
        return answer

    def _answer(self, task: TaskScope, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function for a task, and wait for the end of an outage if the policy says so."""
        while True:
            try:
                return self._call(*args, **kwargs)
            except ServiceError as failure:
                if self.on_outage != "wait" or not in_spark():
                    raise
                if _outages.seen(self.name, failure.what) >= PATIENCE_S:
                    task.failure = ServiceUnavailable(failure.what)
                    task.flush()  # the next attempt does not ask again for what was answered; raises the failure
                pause(10)

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, up to `retries` times more while the service is away. Other exceptions pass unchanged."""
        for attempt in count():
            try:
                answer = self._attempt(*args, **kwargs)
            except _NoAnswer as failure:
                error: ServiceError = ServiceTimedOut(f"The service {self.name} gave no answer in {self.timeout} s.")
                cause: Exception = failure
            except Exception as failure:
                if not (isinstance(failure, self.outages) or is_outage(failure)):
                    raise
                error = ServiceError(f"The service {self.name} failed: {type(failure).__name__}: {failure}.")
                cause = failure
            else:
                _outages.answered(self.name)
                return answer
            _outages.seen(self.name, error.what)
            if attempt >= self.retries:
                raise error from cause
            pause(attempt)
        raise AssertionError("unreachable: the loop returns or raises")

    def _attempt(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with _slots.setdefault(self.name, threading.BoundedSemaphore(self.concurrency)):
            function: Callable[P, R] = answerer_of(self.name, self.function)
            future: Future[R]
            if inspect.iscoroutinefunction(function):
                future = _start(function(*args, **kwargs))
            elif self.timeout is None:
                return function(*args, **kwargs)
            else:
                self._bound_hanging(self.timeout)
                # In a copy of this context, so that `clonos.param` and the derived services work inside the service.
                context = contextvars.copy_context()
                future = _thread_pool(self).submit(lambda: context.run(function, *args, **kwargs))
            try:
                return future.result(self.timeout)
            except FutureTimeout as failure:
                if future.done():
                    raise  # the function itself raised it
                if not future.cancel():
                    _hanging.setdefault(self.name, set()).add(future)
                # The hanging thread keeps its pool; the next call creates another one.
                _pools.pop(self.name, None)
                raise _NoAnswer from failure

    def _bound_hanging(self, timeout: float) -> None:
        hanging = _hanging.get(self.name)
        if hanging:
            done = {future for future in list(hanging) if future.done()}
            if len(hanging) - len(done) >= _MOST_HANGING:
                done = wait_for(list(hanging), timeout, FIRST_COMPLETED).done
                if not done:
                    raise _NoAnswer
            hanging -= done

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the arguments of the constructor."""
        rebuild = functools.partial(
            Service,
            self.function,
            name=self.name,
            timeout=self.timeout,
            retries=self.retries,
            concurrency=self.concurrency,
            on_outage=self.on_outage,
            outages=self.outages,
            result_type=self.result_type,
        )
        return rebuild, ()


class _ServiceDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Service[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Service[P, R]: ...


@overload
def service(function: Callable[P, Coroutine[Any, Any, R]], /) -> Service[P, R]: ...


@overload
def service(function: Callable[P, R], /) -> Service[P, R]: ...


@overload
def service(
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    concurrency: int = 1,
    on_outage: OnOutage = "wait",
    outages: tuple[type[Exception], ...] = (),
) -> _ServiceDecorator: ...


def service(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    concurrency: int = 1,
    on_outage: OnOutage = "wait",
    outages: tuple[type[Exception], ...] = (),
) -> Any:
    """Make a function that calls an external system a causal service: each answer is recorded, and replayed.

    Call the service in a function that an operator wraps (`udf`, `pandas_udf`, `arrow_udf`, `operator`). Arguments and
    results must be types that msgspec encodes, or numbers and arrays of numpy. A result is decoded to the function's
    annotated return type.

    The function may be an ``async def``. It is called like any other service; all coroutines of a Python worker run in
    one event loop, so a client may be kept between calls. At its timeout the coroutine is cancelled.

    Args:
        function: The function, for a decorator without parentheses.
        name: Stable name in the log; default the function's module and qualified name.
        timeout: Seconds for one attempt; None: unlimited.
        retries: Further attempts while the service is away, with exponential delay from 0.05 s to 2 s.
        concurrency: Number of rows of a batch that call the service in parallel.
        on_outage: What happens when the last attempt fails because the service is away. ``wait``: the job waits, as
            for Kafka. ``fail``: the job fails. ``record``: the failure is recorded, and the call raises the same
            `ServiceError` now and in a replay.
        outages: Further exceptions that show that the service is away, besides `clonos.causal.outages.is_outage`. Any
            other exception of the function is an error of the job's code.

    Returns:
        The service, or a decorator if `function` is None.

    Raises:
        SpecError: `on_outage` has another value.
        ServiceError: (from a call) The service is away, and `on_outage` is ``fail`` or ``record``.
        ServiceTimedOut: (from a call) The last attempt timed out, and `on_outage` is ``fail``.
        ResultNotSerialisable: (from a call) The arguments or the answer cannot be recorded.

    Example::

        @clonos.service(timeout=2, retries=3, concurrency=8)
        def is_banned(word: str) -> bool:
            return requests.get(f"{URL}/{word}").json()["banned"]
    """

    def wrap(wrapped: Callable[..., Any]) -> Service[..., Any]:
        return Service(
            wrapped,
            name=name or f"{wrapped.__module__}.{wrapped.__qualname__}",
            timeout=timeout,
            retries=retries,
            concurrency=concurrency,
            on_outage=on_outage,
            outages=outages,
        )

    return wrap if function is None else wrap(function)


def _now(*_key: object) -> dt.datetime:
    return dt.datetime.now(dt.UTC)


_clock_at: Service[..., dt.datetime] = Service(
    _now, name="clonos.clock", timeout=None, retries=0, concurrency=1, on_outage="fail"
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
_outages = Outages()
_hanging: dict[str, set[Future[Any]]] = {}
_slots: dict[str, threading.BoundedSemaphore] = {}


def _thread_pool(service: Service[..., Any]) -> ThreadPoolExecutor:
    pool = _pools.get(service.name)
    if pool is None:
        pool = _pools[service.name] = ThreadPoolExecutor(service.concurrency, f"clonos-service-{service.name}")
    return pool


_creating = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process, because Python workers are forked


def _start(coroutine: Coroutine[Any, Any, R]) -> Future[R]:
    """Start a coroutine in a copy of this context.

    Returns:
        Its future result; cancelling it cancels the coroutine.
    """
    loop = _loop()
    if asyncio._get_running_loop() is not loop:
        return asyncio.run_coroutine_threadsafe(_ended(coroutine), loop)
    # A coroutine called another service, and blocks the loop until that one has answered.
    thread = ThreadPoolExecutor(1, "clonos-coroutine")
    try:
        return thread.submit(contextvars.copy_context().run, asyncio.run, _ended(coroutine))
    finally:
        thread.shutdown(wait=False)


async def _ended(coroutine: Coroutine[Any, Any, R]) -> R:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
        raise RuntimeError(f"the coroutine raised {type(error).__name__}") from error


def _loop() -> asyncio.AbstractEventLoop:
    with _creating:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="clonos-coroutines", daemon=True).start()
        return loop
