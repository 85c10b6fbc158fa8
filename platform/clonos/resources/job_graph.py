"""Bodies of a job's graph: topics, queries with their operators, and what flows between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource


class TopicNode(Resource):
    """What a query reads or writes.

    Attributes:
        kind: ``topic``; ``pattern``: all topics with a matching name; ``sink``: the target of a sink that names no
            topic; ``rows``: topics that the rows name.
        name: The topic, the pattern, or the class of the sink.
    """

    kind: Literal["topic", "pattern", "sink", "rows"]
    id: str
    name: str


class QueryNode(Resource):
    """A query, with what it publishes to one sink.

    Attributes:
        sink: Class of its sink.
        delivery: The sink's delivery guarantee; None: not reported.
        state: Spark's own steps that keep state, such as ``aggregate``.
        records_in_per_s, records_out_per_s: Records read and published per second; dead letters are among the latter.
        recorded_per_s: Determinants that its operators recorded per second.
        kind: Kind of the node.
    """

    kind: Literal["query"] = "query"
    id: str
    name: str
    sink: str
    delivery: str | None = None
    state: list[str] = Field(default_factory=list)
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    recorded_per_s: float = 0.0


class OperatorNode(Resource):
    """An operator of a query.

    Attributes:
        query: Id of its query.
        takes: What its function receives: ``columns``, ``batches``, ``groups``, or the rows of a key with their
            ``state``; None: not reported.
        timers: Whether it may set timers.
        recorded_per_s: Determinants (answers of services, and clocks) that it recorded per second.
        recorded: Number of them since the job was created; `replayed`: how many of them replays have read.
        kind: Kind of the node.
        replayed: Determinants that replays read.
    """

    kind: Literal["operator"] = "operator"
    id: str
    name: str
    query: str
    takes: Literal["columns", "batches", "groups", "state"] | None = None
    timers: bool = False
    recorded_per_s: float = 0.0
    recorded: int = 0
    replayed: int = 0


class GraphEdge(Resource):
    """Records between a topic and a query.

    Attributes:
        kind: ``input``: the query reads; ``output``: it writes; ``dead-letters``: it writes records that cannot be
            decoded.
        source, target: Ids of the nodes, in the direction of the records.
        records_per_s: Records per second; None: unknown, because drivers count what a query writes, not for each topic.
        lag: Unread records of an input; None: not reported.
    """

    kind: Literal["input", "output", "dead-letters"]
    source: str
    target: str
    records_per_s: float | None = None
    lag: int | None = None


Node = Annotated[TopicNode | QueryNode | OperatorNode, Field(discriminator="kind")]


class JobGraph(Resource):
    """What a job reads, runs and writes, as its newest driver reported it. Rates are of the last ten seconds.

    Attributes:
        generation: The generation of that driver; None: no driver has reported a graph.
        reported_at: Time of its claim.
        nodes: Topics, queries by name, and operators of each query in the order of the data.
        edges: Connections of nodes.
    """

    generation: int | None = None
    reported_at: Moment | None = None
    nodes: list[Node] = Field(default_factory=list)
    edges: list[GraphEdge] = Field(default_factory=list)
