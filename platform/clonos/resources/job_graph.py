"""Bodies of a job's graph: topics, queries with their operators, and what flows between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource


class TopicNode(Resource):
    """What a query reads or writes."""

    kind: Literal["topic", "pattern", "sink", "rows"]
    """``topic``; ``pattern``: all topics with a matching name; ``sink``: the target of a sink that names no topic;
    ``rows``: topics that the rows name.
    """
    id: str
    name: str
    """The topic, the pattern, or the class of the sink."""


class QueryNode(Resource):
    """A query, with what it publishes to one sink."""

    kind: Literal["query"] = "query"
    """Kind of the node."""
    id: str
    name: str
    sink: str
    """Class of its sink."""
    delivery: str | None = None
    """The sink's delivery guarantee; None: not reported."""
    interval_ms: int | None = None
    """Minimum time between the starts of two epochs; None: not reported."""
    state: list[str] = Field(default_factory=list)
    """Spark's own steps that keep state, such as ``aggregate``."""
    records_in_per_s: float = 0.0
    """Records read and published per second; dead letters are among the latter."""
    records_out_per_s: float = 0.0
    """Records read and published per second; dead letters are among the latter."""
    recorded_per_s: float = 0.0
    """Determinants that its operators recorded per second."""


class OperatorNode(Resource):
    """An operator of a query."""

    kind: Literal["operator"] = "operator"
    """Kind of the node."""
    id: str
    name: str
    query: str
    """Id of its query."""
    takes: Literal["columns", "batches", "groups", "state"] | None = None
    """What its function receives: ``columns``, ``batches``, ``groups``, or the rows of a key with their ``state``;
    None: not reported.
    """
    timers: bool = False
    """Whether it may set timers."""
    recorded_per_s: float = 0.0
    """Determinants (answers of services, and clocks) that it recorded per second."""
    recorded: int = 0
    """Number of them since the job was created; `replayed`: how many of them replays have read."""
    replayed: int = 0
    """Determinants that replays read."""


class GraphEdge(Resource):
    """Records between a topic and a query."""

    kind: Literal["input", "output", "dead-letters"]
    """``input``: the query reads; ``output``: it writes; ``dead-letters``: it writes records that cannot be decoded."""
    source: str
    """Ids of the nodes, in the direction of the records."""
    target: str
    """Ids of the nodes, in the direction of the records."""
    records_per_s: float | None = None
    """Records per second; None: unknown, because drivers count what a query writes, not for each topic."""
    lag: int | None = None
    """Unread records of an input; None: not reported."""


Node = Annotated[TopicNode | QueryNode | OperatorNode, Field(discriminator="kind")]


class JobGraph(Resource):
    """What a job reads, runs and writes, as its newest driver reported it. Rates are of the last ten seconds."""

    generation: int | None = None
    """The generation of that driver; None: no driver has reported a graph."""
    reported_at: Moment | None = None
    """Time of its claim."""
    nodes: list[Node] = Field(default_factory=list)
    """Topics, queries by name, and operators of each query in the order of the data."""
    edges: list[GraphEdge] = Field(default_factory=list)
    """Connections of nodes."""
