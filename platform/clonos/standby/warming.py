"""How a standby gets warm and stays it: a few rehearsals before it is READY, more of them afterwards."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from clonos.job import Query
from clonos.runner.events import Emit
from clonos.standby.rehearsal import NotRehearsed, Rehearsal, rehearsable
from clonos.standby.scratch import State, held

# What they give is in bench/README.md: the first few most of it. The links to a job's state are made once for so many.
_RUNS: Final = 4
_BATCHES: Final = 4
_LOOK_S: Final = 10.0
# What nobody uses for long is swapped out, and thrown out of caches.
_AGAIN_S: Final = 300.0
_END_S: Final = 5.0


class Warming:
    """Rehearses a job's queries.

    Args:
        rehearsal: How.
        filtered: The queries with sources whose rows do not get past them.
        queries: The same as they really are.
        own: Query → its checkpoint, where that is a path of this machine.
        emit: Where to tell.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        filtered: Sequence[Query],
        queries: Sequence[Query],
        own: Mapping[str, Path],
        emit: Emit,
    ) -> None:
        self._rehearsal = rehearsal
        self._filtered = filtered
        self._queries = queries
        self._own = own
        self._emit = emit
        self._found: dict[str, State] = {}  # what there was to rehearse on
        self._state: dict[str, State] = {}  # what was rehearsed on
        self._troubles: set[str] = set()
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="rehearsals", daemon=True)

    def first(self, enough: Callable[[], bool]) -> None:
        """As much as a standby needs for READY; `enough`: whether to stop half way."""
        self._rehearse(_RUNS, enough)
        for query in self._queries:
            if not enough() and not self._troubles:
                with self._telling():
                    self._rehearsal.run(query, newest=False, times=1, enough=enough)

    def go_on(self) -> None:
        """Rehearse on in a thread of its own."""
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        """Rehearse no more, and give up what is under way; `wait` for its end."""
        self._over.set()
        if wait and self._thread.is_alive():
            self._thread.join(_END_S)

    def _go_on(self) -> None:
        batches, news = _BATCHES - 1, True
        while not self._over.is_set():
            known = dict(self._state)
            self._rehearse(_RUNS if batches else 1, self._over.is_set)
            batches = max(0, batches - 1)
            if self._state != known:  # the first epoch, or the first snapshot of state: there is more to read
                batches, news = max(1, batches), True
            if batches == 0 and not self._over.is_set():
                if news:
                    self._emit("rehearsed", seconds=round(time.monotonic() - self._began, 3), state=self._state)
                news = False
                self._rest()

    def _rehearse(self, times: int, enough: Callable[[], bool]) -> None:
        for query in self._filtered:
            if enough():
                return
            own = self._own.get(query.name)
            self._found[query.name] = self._look(query)
            with self._telling():
                self._state[query.name] = self._rehearsal.run(query, newest=True, times=times, enough=enough, own=own)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell what could not be rehearsed, once; another time it may be."""
        try:
            yield
        except Exception as error:
            # In the thread whatever is wrong is no reason to end a standby that could take over.
            if not isinstance(error, NotRehearsed) and not self._thread.is_alive():
                raise
            if not self._over.is_set() and str(error) not in self._troubles:
                self._troubles.add(str(error))
                self._emit("not-rehearsed", what=str(error))

    def _rest(self) -> None:
        """Until there is more to read, or it is long ago."""
        until = time.monotonic() + _AGAIN_S
        while not self._over.wait(_LOOK_S) and time.monotonic() < until:
            if any(self._look(query) != self._found[query.name] for query in self._filtered):
                return

    def _look(self, query: Query) -> State:
        own = self._own.get(query.name)
        return held(own) if own is not None and rehearsable(query) else "nothing"
