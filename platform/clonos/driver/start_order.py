"""When each query of a job starts: a query that names a topic which an earlier query writes starts after that query.

Queries that start together share the cores, and readers of the earlier one wait longer. The later one has no new input
before the earlier one publishes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from clonos.driver.job_graph import Graph
from clonos.driver.running import Running

_HEAD_START_S: Final = 1.0


class StartOrder:
    """Names the queries that are due to start.

    Args:
        queries: The prepared queries, in the order of their definition.
        graph: The job's graph.
    """

    def __init__(self, queries: Sequence[Running], graph: Graph) -> None:
        self._waiting = list(queries)
        self._deadline = time.monotonic() + _HEAD_START_S
        self._before: dict[str, list[Running]] = {}  # query → the earlier ones whose output it reads
        for number, running in enumerate(queries):
            read = set(graph.get(running.query.name, {}).get("topics", ()))
            self._before[running.query.name] = [
                earlier
                for earlier in queries[:number]
                if not read.isdisjoint(graph.get(earlier.query.name, {}).get("outputs", ()))
            ]

    def due(self) -> list[Running]:
        """The queries that start now; each is returned once.

        A query waits until those before it have published an epoch, and at most a second.
        """
        late = time.monotonic() >= self._deadline
        due = [
            running
            for running in self._waiting
            if late or all(earlier.runner.published for earlier in self._before[running.query.name])
        ]
        self._waiting = [running for running in self._waiting if running not in due]
        return due
