"""The states of a standby, and the one table of what its process goes through."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class StandbyState(StrEnum):
    """What a standby is doing."""

    STARTING = "STARTING"  # JVM, session, job function
    WARMING = "WARMING"  # rehearses its queries with no rows
    READY = "READY"
    STALE = "STALE"  # cannot follow the log: it would be slow, not wrong
    PROMOTING = "PROMOTING"  # told to take over; nothing published yet
    PROMOTED = "PROMOTED"  # the primary
    FAILED = "FAILED"


_S = StandbyState
TRANSITIONS: Final[dict[StandbyState, frozenset[StandbyState]]] = {
    _S.STARTING: frozenset({_S.WARMING, _S.FAILED}),
    # It may be told to before it is READY: half warm is still faster than cold.
    _S.WARMING: frozenset({_S.READY, _S.PROMOTING, _S.FAILED}),
    _S.READY: frozenset({_S.STALE, _S.PROMOTING, _S.FAILED}),
    _S.STALE: frozenset({_S.READY, _S.PROMOTING, _S.FAILED}),
    _S.PROMOTING: frozenset({_S.PROMOTED, _S.FAILED}),
    _S.PROMOTED: frozenset(),
    _S.FAILED: frozenset(),
}
# What a standby never is anything after.
OVER: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)
