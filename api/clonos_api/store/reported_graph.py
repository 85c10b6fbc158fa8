"""What drivers report about the queries of a job with each claim, checked and limited in size.

Job code can write events, so that lists and texts may have any length.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

_QUERIES: Final = 200
_NAMES: Final = 100
_LONGEST: Final = 250  # characters; a topic's name has at most 249


def _shortened(value: Any) -> Any:
    return value[:_LONGEST] if isinstance(value, str) else value


def _limited(value: Any) -> Any:
    return value[:_NAMES] if isinstance(value, list) else value


_Name = Annotated[str, BeforeValidator(_shortened)]
_Names = Annotated[list[_Name], BeforeValidator(_limited)]


class ReportedOperator(BaseModel):
    """An operator of a query.

    Attributes:
        takes: What its function receives: ``columns``, ``batches``, ``groups`` or ``state``.
        timers: Whether it may set timers.
    """

    model_config = ConfigDict(frozen=True)

    name: _Name
    takes: Literal["columns", "batches", "groups", "state"] = "columns"
    timers: bool = False


class ReportedQuery(BaseModel):
    """A query.

    Attributes:
        sink: Name of the sink's class.
        topics: Topics that it reads by name; `patterns`: patterns of further topics.
        operators: Its operators, in the order of the data.
        state: Spark's own steps that keep state, such as ``aggregate``.
        outputs: Topics that it writes; `dead_letters`: those for records that cannot be decoded.
        more_outputs: Whether its rows may name further topics.
    """

    model_config = ConfigDict(frozen=True)

    sink: _Name = ""
    topics: _Names = []
    patterns: _Names = []
    operators: Annotated[list[ReportedOperator], BeforeValidator(_limited)] = []
    state: _Names = []
    outputs: _Names = []
    dead_letters: _Names = []
    more_outputs: bool = False


ReportedGraph = dict[str, ReportedQuery]
"""Query → what its driver reported about it."""


def parse(value: Any) -> ReportedGraph:
    """The graph in an event or a row, without queries that are unreadable: the claim counts without them."""
    graph: ReportedGraph = {}
    if isinstance(value, dict):
        for query, reported in itertools.islice(value.items(), _QUERIES):
            with suppress(ValidationError):
                graph[_shortened(str(query))] = ReportedQuery.model_validate(reported)
    return graph
