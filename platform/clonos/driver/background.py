"""Threads of a driver: periodic polls, and calls whose end nobody waits for, such as those of a JVM that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from clonos.telemetry.driver_events import DriverEvent
from clonos.telemetry.events import Emit

_T = TypeVar("_T")


class BackgroundWorker:
    """Executes calls in one thread, in the order of their submission.

    Unlike the threads of an executor, it does not delay the exit of the process. There is one thread, because Py4J
    opens a connection for each thread that calls the JVM, and keeps it.

    Args:
        name: Name of the thread.

    Example:
        >>> BackgroundWorker("example").submit(lambda: 42).result(timeout=5)
        42
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Execute `call` once all earlier calls have ended; returns its future result."""
        future: Future[_T] = Future()

        def execute() -> None:
            try:
                future.set_result(call())
            except BaseException as failure:
                future.set_exception(failure)

        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(execute)
        return future

    def _run(self) -> None:
        while True:
            self._calls.get()()


class Watch:
    """Polls something in a thread of its own, until it is stopped. A subclass has `poll_once`.

    Each watch has a thread: one that waits for Kafka or the JVM must not delay the others, which detect that.

    Args:
        name: Name of the thread.
        every_s: Pause before the first poll, and between two polls, in seconds.
        emit: Receives the events of the watch until it is stopped; None: nobody does.
    """

    def __init__(self, name: str, every_s: float, emit: Emit | None = None) -> None:
        self._receive = emit
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True, name=name)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll in progress, which then reports nothing."""
        self._stopped.set()

    def poll_once(self) -> None:
        """Poll once."""
        raise NotImplementedError

    def _emit(self, event: DriverEvent) -> None:
        """Emit an event, unless the watch is stopped."""
        if self._receive is not None and not self._stopped.is_set():
            self._receive(event)

    def _poll(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.poll_once()
