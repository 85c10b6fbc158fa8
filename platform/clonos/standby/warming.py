"""The rehearsals of a standby: a few before it is READY, and more in the background afterwards."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from clonos.jobs.context import Query
from clonos.standby.mirror import Mirror
from clonos.standby.rehearsal import NotRehearsed, Rehearsal, may_read_state
from clonos.standby.scratch import CheckpointContent, checkpoint_content
from clonos.telemetry.driver_events import NotRehearsed as RehearsalFailed
from clonos.telemetry.driver_events import Rehearsed
from clonos.telemetry.events import Emit

# bench/README.md has their effect: most of it comes from the first runs. Each batch links the state once.
_RUNS_PER_BATCH: Final = 4
_BATCHES: Final = 4
# A promotion that interrupts a rehearsal stops its tasks, and with them their Python workers. Failures often follow
# each other, so the time after READY is quiet.
_PAUSE_S: Final = 5.0
_POLL_S: Final = 10.0
# Memory that is unused for longer may be swapped out or evicted from caches.
_REPEAT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 5.0


class Warming:
    """Rehearses the queries of a standby's job, in two forms.

    The filtered form reads the newest records of the sources and filters them out before the job's code. It has tasks,
    shuffles and state, and is rehearsed before READY and repeatedly afterwards. The unfiltered form is the real
    query; a standby may run it only on an epoch without input. It is rehearsed once before READY, because the filter
    changes Spark's query plan and the generated code.

    Args:
        rehearsal: Runs a query on no rows.
        filtered: The queries in the filtered form.
        queries: The queries in the unfiltered form, which a takeover starts.
        checkpoints: Query → its checkpoint if that is a path of this host, or a copy of it.
        emit: Receives the ``rehearsed`` and ``not-rehearsed`` events.
        live: The names of the queries that run live.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        filtered: Sequence[Query],
        queries: Sequence[Query],
        checkpoints: Mapping[str, Path | Mirror],
        emit: Emit,
        live: Collection[str] = (),
    ) -> None:
        self._live = live
        self._rehearsal = rehearsal
        self._filtered = filtered
        self._queries = queries
        self._checkpoints = checkpoints
        self._emit = emit
        self._content_before: dict[str, CheckpointContent] = {}  # of each checkpoint, before the newest rehearsal
        self._rehearsed: dict[str, CheckpointContent] = {}
        self._reported_failures: set[str] = set()
        self._started_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rehearsals", daemon=True)

    def run_first(self, interrupted: Callable[[], bool]) -> None:
        """Run the rehearsals that a standby needs before it is READY, until `interrupted` returns true."""
        for query in self._queries:
            if not interrupted():
                with self._report_failure():
                    self._rehearsal.evaluate_expressions(query)
        self._rehearse(_RUNS_PER_BATCH, interrupted)
        for query in self._queries:
            if not interrupted() and not self._reported_failures:
                with self._report_failure():
                    self._rehearsal.run(query, newest=False, times=1, interrupted=interrupted)
        for query in self._filtered:
            if query.name in self._live and not interrupted() and not self._reported_failures:
                with self._report_failure():
                    self._rehearsal.run_live(query, interrupted)

    def start(self) -> None:
        """Start a background thread that repeats the rehearsals until `stop` is called; returns at once."""
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        """Abandon the rehearsal in progress and start no other; `wait`: also wait until the thread exits."""
        self._stopping.set()
        if wait and self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        remaining_batches, unreported = _BATCHES - 1, True
        while not self._stopping.wait(_PAUSE_S if remaining_batches else 0.0):
            previous = dict(self._rehearsed)
            self._rehearse(_RUNS_PER_BATCH if remaining_batches else 1, self._stopping.is_set)
            remaining_batches = max(0, remaining_batches - 1)
            if self._rehearsed != previous:  # the first epoch, or the first snapshot of state: there is more to read
                remaining_batches, unreported = max(1, remaining_batches), True
            if remaining_batches == 0 and not self._stopping.is_set():
                if unreported:
                    seconds = round(time.monotonic() - self._started_at, 3)
                    epoch_s = max(self._rehearsal.seconds.values(), default=None)
                    self._emit(Rehearsed(seconds, dict(self._rehearsed), epoch_s))
                unreported = False
                self._wait_for_content()

    def _rehearse(self, times: int, interrupted: Callable[[], bool]) -> None:
        for query in self._filtered:
            if interrupted():
                return
            checkpoint = self._checkpoint(query, refresh=True)
            self._content_before[query.name] = self._content(query)
            with self._report_failure():
                self._rehearsed[query.name] = self._rehearsal.run(
                    query, newest=True, times=times, interrupted=interrupted, checkpoint=checkpoint
                )

    @contextlib.contextmanager
    def _report_failure(self) -> Iterator[None]:
        """Emit each error text once; the next rehearsal may succeed."""
        try:
            yield
        except Exception as error:
            # In the background thread no failure stops a standby that could take over.
            if not isinstance(error, NotRehearsed) and not self._thread.is_alive():
                raise
            if not self._stopping.is_set() and str(error) not in self._reported_failures:
                self._reported_failures.add(str(error))
                self._emit(RehearsalFailed(str(error)))

    def _wait_for_content(self) -> None:
        """Wait until a checkpoint has more to read, or `_REPEAT_S` have passed."""
        until = time.monotonic() + _REPEAT_S
        while not self._stopping.wait(_POLL_S) and time.monotonic() < until:
            if any(self._content(query) != self._content_before[query.name] for query in self._filtered):
                return

    def _content(self, query: Query) -> CheckpointContent:
        checkpoint = self._checkpoint(query, refresh=False)
        return checkpoint_content(checkpoint) if checkpoint is not None and may_read_state(query) else "nothing"

    def _checkpoint(self, query: Query, *, refresh: bool) -> Path | None:
        """Return the checkpoint of a query as a path of this host. A copy of one elsewhere is brought up to date by
        `refresh`, and at each call as long as it is empty.
        """
        checkpoint = self._checkpoints.get(query.name)
        if not isinstance(checkpoint, Mirror):
            return checkpoint
        if may_read_state(query) and (refresh or checkpoint_content(checkpoint.path) == "nothing"):
            checkpoint.refresh()
        return checkpoint.path
