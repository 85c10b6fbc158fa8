"""Reads with one statement whether a round of the reconciler can find anything to do.

After a round without work, another one can only find work if a row has changed that it reads, or if heartbeats are
missing. Each change of these rows increments their `row_version` (`store.db.swap`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import case, func, or_, select

from clonos.resources.hosts import HostState
from clonos_api.reconcile.facts import StandbyDemand
from clonos_api.reconcile.load import MISSING, JobCase
from clonos_api.store.db.clock import clock, seconds_between
from clonos_api.store.db.database import Database, Origin
from clonos_api.store.db.swap import versions
from clonos_api.store.tables import ClusterRow, EventRow, HostRow, JobRow, OperationRow, RunRow, StandbyRow, table_of

# A whole round follows after this time at the latest: the capacity of a host has no version.
WHOLE_ROUND_S: Final = 5.0
_VERSIONED: Final = [table_of(rows) for rows in (HostRow, JobRow, RunRow, StandbyRow, OperationRow, ClusterRow)]
_HOST: Final = table_of(HostRow).c
_IS_ALIVE: Final = or_(_HOST.state == HostState.READY, _HOST.state == HostState.DRAINING)
_LEASE_S: Final = case((_IS_ALIVE, seconds_between(clock(), _HOST.lease_until)))
_SILENCE_S: Final = seconds_between(clock(), _HOST.heartbeat_at) + MISSING * _HOST.heartbeat_interval_s
_SIGNS: Final = select(
    func.min(case((_HOST.state == HostState.READY, _SILENCE_S))),
    func.min(_LEASE_S),
    func.max(_LEASE_S),
    select(func.max(table_of(EventRow).c.seq)).scalar_subquery(),
    *(select(versions(table)).scalar_subquery() for table in _VERSIONED),
)


@dataclass(frozen=True)
class Signs:
    """What shows that a round may find work."""

    unresponsive_in_s: float | None  # seconds until the first READY host is unresponsive unless it sends a heartbeat
    lost_in_s: float | None  # seconds until the first lease of a host expires
    longest_lease_s: float | None  # seconds until the last of these leases expires
    versions: tuple[int | None, ...]  # the newest event, and sums of the versions of rows


async def read(database: Database) -> Signs:
    """Read the signs, before the rows that a round works on."""
    [row] = await database.execute(_SIGNS, origin=Origin.LEADER)
    unresponsive_in_s, lost_in_s, longest_lease_s, *versions = row
    return Signs(unresponsive_in_s, lost_in_s, longest_lease_s, tuple(versions))


def is_satisfied(demands: Sequence[tuple[StandbyDemand, JobCase]]) -> bool:
    """Whether no job waits for a time or a host to get a standby."""
    return all(
        not demand.failed_recently and not demand.recovery_open and len(case.standbys) >= demand.replicas
        for demand, case in demands
    )
