"""The transactions of a Kafka cluster, with the jobs that own them.

Python's clients cannot list them. So a short-lived JVM asks with Kafka's own admin client (KIP-664;
`clonos.Transactions`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

import msgspec

from clonos.carried_errors import uncarry
from clonos.embedded.jars import Jars
from clonos.embedded.java import java_binary
from clonos.embedded.layout import render_properties
from clonos.errors import BrokerUnavailable
from clonos.kafka import java_flags, java_options
from clonos.log.control import owner_of
from clonos.settings import KafkaSettings
from clonos.spark.classes import compile_path, ensure_classes

_TIMEOUT_S: Final = 60.0
_OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


class Transaction(msgspec.Struct, frozen=True):
    """The newest transaction of a transactional id."""

    id: str  # the transactional id
    state: str  # Kafka's state of it, such as ``Ongoing`` or ``CompleteCommit``
    producer: int  # id of its producer
    epoch: int  # epoch of its producer
    timeout_ms: int  # Kafka aborts the transaction after this time
    started_ms: int  # its beginning, in ms since 1970; 0: it is not open
    topics: tuple[str, ...]  # the topics that it writes

    @property
    def is_open(self) -> bool:
        """Whether ``read_committed`` readers wait for it."""
        return self.state in _OPEN

    @property
    def job(self) -> str:
        """The job whose driver writes with this id; empty for another producer."""
        return owner_of(self.id)


def transactions(kafka: KafkaSettings, jars: Jars) -> list[Transaction]:
    """Return the newest transaction of each transactional id of the cluster, the oldest first.

    Raises:
        BrokerUnavailable: Kafka did not answer, or refused.
        EnvironmentFault: The Java classes of Clonos do not compile.
    """
    listed = msgspec.json.decode(_run(kafka, jars, ["ls"]), type=list[Transaction])
    return sorted(listed, key=lambda transaction: (transaction.started_ms, transaction.id))


def abort(kafka: KafkaSettings, jars: Jars, ids: Sequence[str]) -> None:
    """Abort the open transactions of these transactional ids, and fence their producers.

    The driver of a running job opens another producer, and replays its epoch.

    Raises:
        BrokerUnavailable: Kafka did not answer, or refused.
    """
    if ids:
        _run(kafka, jars, ["abort", *ids])


def _run(kafka: KafkaSettings, jars: Jars, arguments: Sequence[str]) -> bytes:
    path = os.pathsep.join(map(str, [*compile_path(jars), ensure_classes(jars)]))
    command = [
        str(java_binary()),
        "-Xmx128m",
        "-XX:TieredStopAtLevel=1",
        *java_flags(kafka),
        "-cp",
        path,
        "clonos.Transactions",
        *arguments,
    ]
    # By standard input: the options may hold a password.
    options = render_properties(java_options(kafka) | {"default.api.timeout.ms": str(int(_TIMEOUT_S * 500))})
    try:
        done = subprocess.run(command, input=options.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BrokerUnavailable(f"Kafka did not answer about its transactions in {_TIMEOUT_S:.0f} s.") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason"]
        raise uncarry(lines[-1]) or BrokerUnavailable(
            f"Kafka did not answer about its transactions: {lines[-1][:500]}."
        )
    return done.stdout
