"""When each query of a job starts: a query that names a topic which an earlier query writes starts after that query.

Queries that start together share the cores, and readers of the earlier one wait longer. The later one has no new input
before the earlier one publishes. The earlier one may have no input at all, so the later one waits for a limited time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clonos.deadline import Deadline
from clonos.driver.running import Running
from clonos.telemetry.driver_events import Graph, GraphQuery

# Within this time a query with input has begun its first epoch: in a JVM that has run its queries, and in another one.
_BEGINS_S: Final = 1.0
_BEGINS_COLD_S: Final = 2.0
_HEAD_START_S: Final = 10.0


class StartOrder:
    """Names the queries that are due to start.

    Args:
        queries: The prepared queries, in the order of their definition.
        graph: The job's graph.
        cold: Whether no query of the job has run in this JVM, not even in a rehearsal.
    """

    def __init__(self, queries: Sequence[Running], graph: Graph, *, cold: bool = False) -> None:
        self._waiting = list(queries)
        self._begins_s = _BEGINS_COLD_S if cold else _BEGINS_S
        self._begin_by = Deadline(0.0)  # set when queries start
        self._deadline = Deadline(_HEAD_START_S)
        self._before: dict[str, list[Running]] = {}  # query → the earlier ones whose output it reads
        for number, running in enumerate(queries):
            read = set(graph.get(running.query.name, GraphQuery()).topics)
            self._before[running.query.name] = [
                earlier
                for earlier in queries[:number]
                if not read.isdisjoint(graph.get(earlier.query.name, GraphQuery()).outputs)
            ]

    def due(self) -> list[Running]:
        """Return the queries that start now; each is returned once.

        A query waits until those before it have published an epoch: for at most one second after their start (two if
        `cold`) until their first epoch begins, and for at most ten seconds in all.
        """
        due = [running for running in self._waiting if not any(map(self._precedes, self._before[running.query.name]))]
        self._waiting = [running for running in self._waiting if running not in due]
        if due:
            self._begin_by = Deadline(self._begins_s)
        return due

    def _precedes(self, earlier: Running) -> bool:
        """Whether the queries behind `earlier` still wait for it."""
        if earlier.runner.published:
            return False
        begun = earlier.runner.busy.locked() or earlier in self._waiting
        return not (self._deadline if begun else self._begin_by).passed()
