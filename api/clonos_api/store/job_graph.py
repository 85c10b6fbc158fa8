"""The graph of a job: stored with each claim, and read with the rates of the newest epochs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos.telemetry.driver_events import Graph, GraphOperator, GraphQuery
from clonos_api.store.columns import OperatorFigures, QueryFigures
from clonos_api.store.db.bulk import insert_all
from clonos_api.store.ingest import MOST_TOPICS
from clonos_api.store.recent_epochs import RecentEpochs, recent_epochs
from clonos_api.store.tables import JobGraphRow, JobRow


async def store(session: AsyncSession, job: str, generation: int, at: datetime, graph: Graph) -> None:
    """Replace the graph of a job by the graph of a newer claim. The transaction has locked the job's row."""
    row = {"job": job, "generation": generation, "reported_at": at, "body": graph}
    await insert_all(session, JobGraphRow, [row], keys=("job",), replace=("generation", "reported_at", "body"))


async def of_job(session: AsyncSession, job: JobRow) -> JobGraph:
    """Return the graph of a job; without nodes if no driver has reported one."""
    row = await session.get(JobGraphRow, job.id)
    if row is None:
        return JobGraph()
    recent = await recent_epochs(session, job)
    parts = _Parts()
    for name, reported in sorted(row.body.items()):
        figures = job.figures.queries.get(name, QueryFigures())
        parts.add(name, reported, figures, _Rates.of(recent[name]), job.figures.delivery.get(name))
    nodes = [*parts.topics.values(), *parts.queries]
    return JobGraph(generation=row.generation, reported_at=row.reported_at, nodes=nodes, edges=parts.edges)


@dataclass
class _Rates:
    """Numbers per second of one query."""

    read: float = 0.0
    published: float = 0.0
    dead_letters: float = 0.0
    topics: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # records read, by source topic
    recorded: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # determinants, by operator
    some_topics: bool = False  # whether an epoch read more topics than events name

    @classmethod
    def of(cls, recent: RecentEpochs) -> _Rates:
        seconds = recent.seconds
        rates = cls(
            recent.per_second(lambda epoch: epoch.records_in),
            recent.per_second(lambda epoch: epoch.records_out),
            recent.per_second(lambda epoch: epoch.dead_letters),
        )
        for epoch in recent.rated:
            for sums, counts in ((rates.topics, epoch.topics_in), (rates.recorded, epoch.recorded)):
                for name, count in counts.items():
                    sums[name] += count / seconds
            rates.some_topics |= sum(epoch.topics_in.values()) < epoch.records_in
        return rates

    def topic(self, name: str) -> float | None:
        """Return the records read from a topic; None: unknown."""
        return None if self.some_topics and name not in self.topics else self.topics.get(name, 0.0)


@dataclass
class _Parts:
    """The nodes and edges so far."""

    topics: dict[str, TopicNode] = field(default_factory=dict)
    queries: list[QueryNode | OperatorNode] = field(default_factory=list)
    edges: list[GraphEdge] = field(default_factory=list)

    def add(self, name: str, reported: GraphQuery, figures: QueryFigures, rates: _Rates, delivery: str | None) -> None:
        """Add a query with its operators and topics."""
        query = QueryNode(
            id=f"query:{name}",
            name=name,
            sink=reported.sink,
            delivery=delivery,
            interval_ms=reported.interval_ms,
            state=reported.state,
            records_in_per_s=rates.read,
            records_out_per_s=rates.published,
            recorded_per_s=sum(rates.recorded.values()),
        )
        self.queries.append(query)
        self.queries.extend(_operators(query, reported, figures, rates))
        self._inputs(query, reported, figures, rates)
        self._outputs(query, reported, rates)

    def _inputs(self, query: QueryNode, reported: GraphQuery, figures: QueryFigures, rates: _Rates) -> None:
        named = {topic: rates.topic(topic) for topic in reported.topics}
        for topic, records_per_s in named.items():
            self._edge("input", self._topic("topic", topic), query.id, records_per_s, figures.lag.get(topic))
        for pattern in reported.patterns:
            source = self._topic("pattern", pattern)
            if len(reported.patterns) > 1 or None in named.values():  # which one a topic matches is not reported
                self._edge("input", source, query.id, None)
                continue
            others = sum(rate for rate in named.values() if rate is not None)
            lags = [lag for topic, lag in figures.lag.items() if topic not in named]
            every = 0 < len(figures.lag) < MOST_TOPICS  # events name no more topics
            lag = sum(lags) if every else None
            self._edge("input", source, query.id, max(0.0, rates.read - others), lag)

    def _outputs(self, query: QueryNode, reported: GraphQuery, rates: _Rates) -> None:
        targets = [self._topic("topic", topic) for topic in reported.outputs]
        if reported.more_outputs:
            targets.append(self._topic("rows", "topics that rows name", query.name))
        if not targets:
            targets.append(self._topic("sink", reported.sink, query.name))
        for target in targets:
            alone = len(targets) == 1
            self._edge("output", query.id, target, rates.published - rates.dead_letters if alone else None)
        for topic in reported.dead_letters:
            alone = len(reported.dead_letters) == 1
            self._edge("dead-letters", query.id, self._topic("topic", topic), rates.dead_letters if alone else None)

    def _topic(self, kind: Literal["topic", "pattern", "sink", "rows"], name: str, query: str = "") -> str:
        node = ":".join(filter(None, (kind, query, name)))
        self.topics.setdefault(node, TopicNode(kind=kind, id=node, name=name))
        return node

    def _edge(
        self,
        kind: Literal["input", "output", "dead-letters"],
        source: str,
        target: str,
        records_per_s: float | None,
        lag: int | None = None,
    ) -> None:
        self.edges.append(GraphEdge(kind=kind, source=source, target=target, records_per_s=records_per_s, lag=lag))


def _operators(query: QueryNode, reported: GraphQuery, figures: QueryFigures, rates: _Rates) -> Iterable[OperatorNode]:
    """Yield the operators that the driver named, and those that have recorded determinants besides."""
    operators: dict[str, GraphOperator | None] = {operator.name: operator for operator in reported.operators}
    # Not all that have recorded some since the job was created: earlier versions of the code had other operators.
    operators |= {name: None for name in rates.recorded if name not in operators}
    for name, operator in operators.items():
        sums = figures.operators.get(name, OperatorFigures())
        yield OperatorNode(
            id=f"operator:{query.name}:{name}",
            name=name,
            query=query.id,
            takes=operator.takes if operator else None,
            timers=bool(operator and operator.timers),
            recorded_per_s=rates.recorded.get(name, 0.0),
            recorded=sums.recorded,
            replayed=sums.replayed,
        )
