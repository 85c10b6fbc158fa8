"""The graph of a job: stored with each claim, and read with the rates of the newest epochs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.checkpoints import EpochCheckpoint
from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos.resources.jobs import OperatorMetrics, QueryMetrics
from clonos_api.store.db.bulk import insert_all
from clonos_api.store.db.clock import now
from clonos_api.store.reported_graph import ReportedGraph, ReportedOperator, ReportedQuery, parse
from clonos_api.store.tables import EpochRow, JobGraphRow, JobRow

_RATE: Final = timedelta(seconds=10)


async def store(session: AsyncSession, job: str, generation: int, at: datetime, graph: ReportedGraph) -> None:
    """Replace the graph of a job by that of a newer claim. The transaction has locked the job's row."""
    body = {query: reported.model_dump() for query, reported in graph.items()}
    row = {"job": job, "generation": generation, "reported_at": at, "body": body}
    await insert_all(session, JobGraphRow, [row], keys=("job",), replace=("generation", "reported_at", "body"))


async def of_job(session: AsyncSession, job: JobRow) -> JobGraph:
    """The graph of a job; without nodes if no driver has reported one."""
    row = await session.get(JobGraphRow, job.id)
    if row is None:
        return JobGraph()
    moment = await now(session)
    epochs: dict[str, list[EpochCheckpoint]] = defaultdict(list)
    rows = select(EpochRow).where(EpochRow.job == job.id, EpochRow.completed_at > moment - _RATE)
    for epoch in await session.scalars(rows):
        epochs[epoch.query].append(EpochCheckpoint.model_validate(epoch.body))
    metrics = job.metrics or {}
    drawing = _Drawing()
    for name, reported in sorted(parse(row.body).items()):
        figures = QueryMetrics.model_validate((metrics.get("queries") or {}).get(name, {}))
        drawing.add(name, reported, figures, _Rates.of(epochs[name]), (metrics.get("delivery") or {}).get(name))
    nodes = [*drawing.topics.values(), *drawing.queries]
    return JobGraph(generation=row.generation, reported_at=row.reported_at, nodes=nodes, edges=drawing.edges)


@dataclass
class _Rates:
    """Numbers per second of one query."""

    read: float = 0.0
    published: float = 0.0
    dead_letters: float = 0.0
    topics: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # records read, by source topic
    recorded: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # determinants, by operator

    @classmethod
    def of(cls, epochs: Iterable[EpochCheckpoint]) -> _Rates:
        rates = cls()
        seconds = _RATE.total_seconds()
        for epoch in epochs:
            rates.read += epoch.records_in / seconds
            rates.published += epoch.records_out / seconds
            rates.dead_letters += epoch.dead_letters / seconds
            for sums, counts in ((rates.topics, epoch.topics_in), (rates.recorded, epoch.recorded)):
                for name, count in counts.items():
                    sums[name] += count / seconds
        return rates


@dataclass
class _Drawing:
    """The nodes and edges so far."""

    topics: dict[str, TopicNode] = field(default_factory=dict)
    queries: list[QueryNode | OperatorNode] = field(default_factory=list)
    edges: list[GraphEdge] = field(default_factory=list)

    def add(
        self, name: str, reported: ReportedQuery, figures: QueryMetrics, rates: _Rates, delivery: str | None
    ) -> None:
        """Add a query with its operators and topics."""
        query = QueryNode(
            id=f"query:{name}",
            name=name,
            sink=reported.sink,
            delivery=delivery,
            state=reported.state,
            records_in_per_s=rates.read,
            records_out_per_s=rates.published,
            recorded_per_s=sum(rates.recorded.values()),
        )
        self.queries.append(query)
        self.queries.extend(_operators(query, reported, figures, rates))
        self._inputs(query, reported, figures, rates)
        self._outputs(query, reported, rates)

    def _inputs(self, query: QueryNode, reported: ReportedQuery, figures: QueryMetrics, rates: _Rates) -> None:
        for topic in reported.topics:
            self._edge(
                "input", self._topic("topic", topic), query.id, rates.topics.get(topic, 0.0), figures.lag.get(topic)
            )
        matching = (figures.lag.keys() | rates.topics.keys()) - set(reported.topics)
        for pattern in reported.patterns:
            # Which pattern a topic matches is not reported.
            alone = len(reported.patterns) == 1
            records_per_s = sum(rates.topics.get(topic, 0.0) for topic in matching) if alone else None
            lag = sum(figures.lag.get(topic, 0) for topic in matching) if alone and figures.lag else None
            self._edge("input", self._topic("pattern", pattern), query.id, records_per_s, lag)

    def _outputs(self, query: QueryNode, reported: ReportedQuery, rates: _Rates) -> None:
        targets = [self._topic("topic", topic) for topic in reported.outputs]
        if reported.open:
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
        id_ = ":".join(filter(None, (kind, query, name)))
        self.topics.setdefault(id_, TopicNode(kind=kind, id=id_, name=name))
        return id_

    def _edge(
        self,
        kind: Literal["input", "output", "dead-letters"],
        source: str,
        target: str,
        records_per_s: float | None,
        lag: int | None = None,
    ) -> None:
        self.edges.append(GraphEdge(kind=kind, source=source, target=target, records_per_s=records_per_s, lag=lag))


def _operators(
    query: QueryNode, reported: ReportedQuery, figures: QueryMetrics, rates: _Rates
) -> Iterable[OperatorNode]:
    """The operators that the driver named, and those that have recorded determinants besides."""
    operators: dict[str, ReportedOperator | None] = {operator.name: operator for operator in reported.operators}
    # Not all that have recorded some since the job was created: earlier versions of the code had other operators.
    operators |= {name: None for name in rates.recorded if name not in operators}
    for name, operator in operators.items():
        sums = figures.operators.get(name, OperatorMetrics())
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
