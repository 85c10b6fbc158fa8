"""The user's decisions about epochs in doubt: requested as options of a run, recorded in the causal log.

An epoch whose replay differs from its published lanes stops the job (`ReplayDivergence`). The user then decides:

- ``keep``: the published lanes stand. The other lanes, and the state, follow the replay.
- ``republish``: all lanes of the replay are published, also those that readers have already.
- ``dead-letter``: the published lanes stand. The other lanes go to another topic.

An epoch whose plan is of other code stops the job too (`CheckpointMismatch`):

- ``new-code``: the epoch is replayed with the current code. Its published lanes must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from clonos.errors import SpecError, TopicMissing
from clonos.extend.sink import Decision, Sink
from clonos.kafka import topics_missing
from clonos.log.claiming import Ownership
from clonos.log.records import Resolution

_REQUEST: Final = re.compile(r"(?P<query>[a-z0-9-]+):(?P<epoch>\d+)=(?P<decision>[a-z-]+)(:(?P<topic>.+))?")
Action = Literal[Decision, "new-code"]
_ACTIONS: Final = (*get_args(Decision), "new-code")
_EVERY_SINK: Final = frozenset({"keep"})


@dataclass(frozen=True)
class RequestedResolution:
    """A decision that the user requested for one epoch of one query."""

    query: str  # the query, which has the name of its sink
    epoch: int  # Spark's batch id
    decision: Action  # ``keep``, ``republish``, ``dead-letter`` or ``new-code``
    topic: str = ""  # for ``dead-letter``: the topic of the records

    @classmethod
    def parse(cls, text: str) -> RequestedResolution:
        """Read ``QUERY:EPOCH=DECISION``, or ``QUERY:EPOCH=dead-letter:TOPIC``.

        Raises:
            SpecError: The text has another form.

        Example:
            >>> RequestedResolution.parse("orders:12=dead-letter:suspect")
            RequestedResolution(query='orders', epoch=12, decision='dead-letter', topic='suspect')
        """
        match = _REQUEST.fullmatch(text)
        decision = match["decision"] if match is not None else ""
        if match is None or decision not in _ACTIONS or (decision == "dead-letter") != bool(match["topic"]):
            raise SpecError(
                f"The resolution {text!r} is invalid.",
                hint="use QUERY:EPOCH=keep, =republish, =dead-letter:TOPIC or =new-code.",
            )
        return cls(match["query"], int(match["epoch"]), cast("Action", decision), match["topic"] or "")

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.query}:{self.epoch}={self.decision}{f':{self.topic}' if self.topic else ''}"


def accepted_decisions(sink: Sink) -> frozenset[str]:
    """Return the decisions about published lanes that a sink accepts."""
    return frozenset(getattr(sink, "decisions", _EVERY_SINK))


def record_resolutions(
    own: Ownership, sink: Sink, committed: int, requests: Iterable[RequestedResolution], code: str
) -> list[Resolution]:
    """Record the decisions for one query in the causal log; returns those that were not recorded before.

    Args:
        own: The claimed log.
        sink: The query's sink.
        committed: The newest epoch that Spark's checkpoint has committed; a decision about it or an older one is over.
        requests: The requested decisions, of all queries.
        code: Hash of the job's code.

    Raises:
        SpecError: The epoch is not in doubt, or the sink cannot do what was decided.
        TopicMissing: The dead-letter topic does not exist.
    """
    recorded = []
    for request in requests:
        if request.query != sink.name or request.epoch <= committed:
            continue
        if request.decision not in {"new-code", *accepted_decisions(sink)}:
            raise SpecError(f"The sink {sink.name} cannot {request.decision} an epoch in doubt.", hint="use keep.")
        if request.topic and topics_missing(own.kafka, [request.topic]):
            raise TopicMissing(
                f"The dead-letter topic {request.topic!r} does not exist.", kept="nothing was published."
            )
        if own.state.plan(sink.name, request.epoch) is None:
            raise SpecError(
                f"Epoch {request.epoch} of {sink.name} is not in doubt: the causal log has no plan of it.",
                hint="`clonos causal-log ls` shows the epochs in doubt.",
            )
        record = Resolution(own.owner, sink.name, request.epoch, request.decision, code, request.topic)
        earlier = own.state.resolutions.get((sink.name, request.epoch))
        if earlier is not None and (earlier.action, earlier.code, earlier.topic) == (record.action, code, record.topic):
            continue  # a restart repeats the options of its run
        own.state.take(own.control.append(record), record)
        recorded.append(record)
    return recorded
