"""The types of the control plane's events, with a sentence for each, for REST, the dashboard and `clonos events`.

`EventType` has every type that the control plane appends, and `EVENT_KINDS` what each says. A sentence names jobs and
hosts instead of their ids. Events of older versions may lack fields: their sentences are shorter.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from clonos.resources.figures import duration, size
from clonos.resources.recovery_descriptions import OUTCOMES

EventType = Literal[
    "artifact.created",
    "artifact.deleted",
    "cluster.created",
    "cluster.deleted",
    "cluster.state",
    "cluster.updated",
    "host.back",
    "host.drained",
    "host.lost",
    "host.registered",
    "host.removed",
    "host.undrained",
    "job.created",
    "job.deleted",
    "job.desired",
    "job.exception",
    "job.generation",
    "job.move.began",
    "job.move.ended",
    "job.recovery.began",
    "job.recovery.ended",
    "job.state",
    "job.updated",
    "operation.began",
    "operation.ended",
    "run.created",
    "run.state",
    "savepoint.completed",
    "savepoint.created",
    "savepoint.deleted",
    "savepoint.deleting",
    "savepoint.failed",
    "standby.state",
    "token.created",
    "token.revoked",
]
_REQUESTS: Final = {"RUNNING": "A start", "STOPPED": "A stop", "CANCELED": "A cancellation"}
_CLAIMS: Final = {
    "crash": "after a crash",
    "host-lost": "after the loss of the host",
    "restart": "after a query failed",
    "move": "in a planned move",
    "upgrade": "in an upgrade",
    "rollback": "after the new version failed",
    "shutdown": "after its agent stopped",
}
_FAILURES: Final = {
    "crash": "crashed",
    "host-lost": "lost its host",
    "restart": "had a failed query",
    "rollback": "failed in its new version",
    "shutdown": "was stopped with its agent",
}
_MOVES: Final = {
    "move": "is being moved to another host",
    "drain": "is being moved off a drained host",
    "upgrade": "is being upgraded",
}
_LONGEST: Final = 300


def sentence_of(kind: str, data: Mapping[str, Any], *, job: str = "", host: str = "") -> str:
    """Return the sentence of an event, without a full stop; for a type of a newer version, the type and the names.

    Example:
        >>> sentence_of("standby.state", {"state": "READY"}, job="fraud", host="host-3")
        'The standby of fraud on host-3 is READY'
    """
    known = EVENT_KINDS.get(kind)  # type: ignore[call-overload]  # any type may be stored
    if known is None:
        return ": ".join(filter(None, (kind, " on ".join(filter(None, (job, host))))))
    text = " ".join(known.sentence(_Fields(data, job, host)).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class _Fields:
    """The fields of an event as texts; a field that is missing or None is an empty text."""

    def __init__(self, data: Mapping[str, Any], job: str, host: str) -> None:
        self.data = data
        self.job = job or "a job"
        self.of_job = f" of {job}" if job else ""
        self.host = host or self["name"] or "a host"
        self.on_host = f" on {host}" if host else ""

    def __getitem__(self, name: str) -> str:
        value = self.data.get(name)
        return "" if value is None else str(value)

    def joined(self, before: str, name: str, after: str = "") -> str:
        """Return the field with the texts around it; empty if the field is missing."""
        return f"{before}{self[name]}{after}" if self[name] else ""

    def failure(self) -> str:
        """Say what failed, as ``: what``; empty if nothing did."""
        failure = self.data.get("failure")
        return f": {str(failure.get('what') or failure.get('error')).rstrip('.')}" if isinstance(failure, dict) else ""


def _uploaded(event: _Fields) -> str:
    bytes_ = size(event.data.get("size_bytes"))
    return f"The code {event['name']} was uploaded{f' ({bytes_})' if bytes_ else ''}"


def _desired(event: _Fields) -> str:
    request = "A restart" if event.data.get("restart") else _REQUESTS.get(event["desired_state"], "A change")
    return f"{request} of {event.job} was requested"


def _generation(event: _Fields) -> str:
    where = event.joined(" on ", "host")
    claim = f"Generation {event['generation']} of {event.job} claimed the causal log{where}"
    return f"{claim} {_CLAIMS.get(event['cause'], '')}"


def _move_began(event: _Fields) -> str:
    return f"{event.job} {_MOVES.get(event['cause'], _MOVES['move'])}"


def _move_ended(event: _Fields) -> str:
    move = f"The {'upgrade' if event['cause'] == 'upgrade' else 'move'} of {event.job}"
    return f"{move} failed{event.failure()}" if event.failure() else f"{move} is completed"


def _recovery_began(event: _Fields) -> str:
    cause, generation = event["cause"], event["failed_generation"]
    if cause in _MOVES:
        return f"{event.job}: generation {generation} hands over to its successor {_CLAIMS[cause]}"
    return f"{event.job}: generation {generation} {_FAILURES.get(cause, 'failed')}, and a recovery began"


def _recovery_ended(event: _Fields) -> str:
    outcome, downtime_ms = event["outcome"], event.data.get("downtime_ms")
    if outcome == "IDLE" and downtime_ms is not None:
        ready = f"generation {event['generation']} is ready to read after {duration(downtime_ms)}"
        return f"{event.job} recovered: {ready}, and no record was unread"
    if outcome != "COMPLETED":
        return f"The recovery of {event.job} ended: {OUTCOMES.get(outcome, outcome.lower())}"
    gap = f" after {duration(downtime_ms)} without output" if downtime_ms is not None else ""
    return f"{event.job} recovered: generation {event['generation']} publishes{gap}"


def _operation(event: _Fields) -> str:
    kind = event["kind"].replace("-", " ")
    return f"The operation {kind}{event.of_job}"


def _operation_ended(event: _Fields) -> str:
    if event["state"] == "FAILED":
        return f"{_operation(event)} failed{event.failure()}"
    return f"{_operation(event)} is completed"


def _driver(event: _Fields) -> str:
    return f"{'standby' if event.data.get('standby') else 'driver'}{event.of_job}"


def _run_created(event: _Fields) -> str:
    version = event.joined(" (version ", "version", ")")
    return f"A {_driver(event)}{version} was placed{event.on_host}{event.joined(': ', 'why')}"


def _run_state(event: _Fields) -> str:
    state = f"The {_driver(event)}{event.on_host} is {event['state']}"
    return state + (_exit(event.data.get("exit_code")) if event["state"] == "EXITED" else "")


def _exit(code: object) -> str:
    if not isinstance(code, int):
        return ""
    try:
        return f": killed by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
    except ValueError:
        return f": killed by signal {-code}"


def _savepoint(change: str) -> Callable[[_Fields], str]:
    return lambda event: f"The savepoint {event['name']} of {event.job} {change}"


def _registered(event: _Fields) -> str:
    replaced = event.joined(": a new process replaces the one that sent a heartbeat ", "replaced_after_s", " s before")
    return f"The host {event.host} registered{replaced}"


class EventKind(NamedTuple):
    """What events of one type say."""

    when: str
    """When the control plane creates one."""
    fields: tuple[str, ...]
    """The fields of `data`; some events lack some of them."""
    sentence: Callable[[_Fields], str]
    """Builds the sentence."""


EVENT_KINDS: Final[Mapping[EventType, EventKind]] = {
    "artifact.created": EventKind("Uploaded code was stored.", ("id", "name", "size_bytes"), _uploaded),
    "artifact.deleted": EventKind(
        "Code that nothing needs was deleted.", ("id", "name"), lambda event: f"The code {event['name']} was deleted"
    ),
    "cluster.created": EventKind(
        "A Spark cluster was added, and its check requested.",
        ("cluster",),
        lambda event: f"The Spark cluster {event['cluster']} was added",
    ),
    "cluster.deleted": EventKind(
        "A Spark cluster was removed.", ("cluster",), lambda event: f"The Spark cluster {event['cluster']} was removed"
    ),
    "cluster.state": EventKind(
        "The state of a Spark cluster changed.",
        ("cluster", "from", "to"),
        lambda event: f"The Spark cluster {event['cluster']} changed from {event['from']} to {event['to']}",
    ),
    "cluster.updated": EventKind(
        "The description of a Spark cluster was replaced, and its check requested.",
        ("cluster", "version"),
        lambda event: f"The Spark cluster {event['cluster']} has version {event['version']}",
    ),
    "host.back": EventKind(
        "The agent of a host that was `LOST` sent a heartbeat.",
        ("name",),
        lambda event: f"The host {event.host} is connected again",
    ),
    "host.drained": EventKind(
        "A host was drained: no run is placed on it.",
        ("name",),
        lambda event: f"The host {event.host} is draining: no driver is placed on it",
    ),
    "host.lost": EventKind(
        "The lease of a host expired.",
        ("heartbeat_at", "name"),
        lambda event: f"The host {event.host} is LOST: its heartbeats stopped",
    ),
    "host.registered": EventKind("An agent registered its host.", ("name", "replaced_after_s"), _registered),
    "host.removed": EventKind("A host was removed.", ("name",), lambda event: f"The host {event.host} was removed"),
    "host.undrained": EventKind(
        "The drain of a host was ended.", ("name",), lambda event: f"The host {event.host} takes drivers again"
    ),
    "job.created": EventKind("A job was created.", ("desired_state", "name"), lambda event: f"{event.job} was created"),
    "job.deleted": EventKind("A job was deleted.", ("name",), lambda event: f"{event.job} was deleted"),
    "job.desired": EventKind(
        "A start, a stop, a restart or a cancellation was requested.", ("desired_state", "restart"), _desired
    ),
    "job.exception": EventKind(
        "A driver reported an error.",
        ("error", "generation", "what"),
        lambda event: f"{event.job}: generation {event['generation']} reported {event['error']}: {event['what']}",
    ),
    "job.generation": EventKind(
        "A driver claimed the causal log.", ("cause", "generation", "host", "lineage", "run"), _generation
    ),
    "job.move.began": EventKind(
        "A planned move, a drain or an upgrade began.", ("cause", "operation", "to"), _move_began
    ),
    "job.move.ended": EventKind("A planned move, a drain or an upgrade ended.", ("cause", "failure"), _move_ended),
    "job.recovery.began": EventKind(
        "A generation failed, or hands over to its successor.",
        ("cause", "failed_generation", "recovery"),
        _recovery_began,
    ),
    "job.recovery.ended": EventKind(
        "All queries of a recovery returned, or the job ended, or another failure followed.",
        ("downtime_ms", "generation", "outcome", "recovery"),
        _recovery_ended,
    ),
    "job.state": EventKind(
        "The state of a job changed.",
        ("failure", "from", "to"),
        lambda event: f"{event.job} changed from {event['from']} to {event['to']}{event.failure()}",
    ),
    "job.updated": EventKind(
        "A job has another version of its specification or code, which its next start uses.",
        ("again", "instead", "version"),
        lambda event: (
            f"{event.job} has version {event['version']}{event.joined(', which repeats version ', 'again')}"
            f"{event.joined(' again, instead of version ', 'instead')}"
        ),
    ),
    "operation.began": EventKind(
        "An operation was requested.", ("kind", "operation"), lambda event: f"{_operation(event)} began"
    ),
    "operation.ended": EventKind(
        "An operation was completed, or failed.", ("failure", "kind", "operation", "state"), _operation_ended
    ),
    "run.created": EventKind(
        "A driver or a standby was placed on a host.", ("host", "run", "standby", "version", "why"), _run_created
    ),
    "run.state": EventKind(
        "An agent reported another state of a run.",
        ("attempts", "ended", "exit_code", "run", "standby", "state"),
        _run_state,
    ),
    "savepoint.completed": EventKind(
        "A savepoint was completely written.", ("name", "savepoint"), _savepoint("is completed")
    ),
    "savepoint.created": EventKind("A savepoint was requested.", ("name", "savepoint"), _savepoint("was requested")),
    "savepoint.deleted": EventKind(
        "The files of a savepoint were deleted.", ("name", "savepoint"), _savepoint("was deleted")
    ),
    "savepoint.deleting": EventKind(
        "The deletion of a savepoint was requested.", ("name", "savepoint"), _savepoint("is being deleted")
    ),
    "savepoint.failed": EventKind(
        "The creation or the deletion of a savepoint failed.", ("name", "savepoint"), _savepoint("failed")
    ),
    "standby.state": EventKind(
        "The state of a standby changed.",
        ("standby", "state"),
        lambda event: f"The standby{event.of_job}{event.on_host} is {event['state']}",
    ),
    "token.created": EventKind(
        "An API token was created.",
        ("name", "role", "subject", "token"),
        lambda event: f"The token {event['name']} ({event['role']} of {event['subject']}) was created",
    ),
    "token.revoked": EventKind(
        "An API token was revoked.", ("name", "token"), lambda event: f"The token {event['name']} was revoked"
    ),
}
