"""The states of a standby, and the table of their transitions."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class StandbyState(StrEnum):
    """The state of a standby."""

    STARTING = "STARTING"  # starts the JVM and the session, loads the job function
    WARMING = "WARMING"  # rehearses its queries on no rows
    READY = "READY"  # is warm and follows the log: it can take over at once
    STALE = "STALE"  # the check of the log, a checkpoint, a source or the workers fails; a takeover may be slow or fail
    PROMOTING = "PROMOTING"  # the promotion arrived; nothing is published yet
    PROMOTED = "PROMOTED"  # it is the job's driver
    FAILED = "FAILED"  # its process or its host failed
    RETIRED = "RETIRED"  # the job needs it no longer


_S = StandbyState
TRANSITIONS: Final[dict[StandbyState, frozenset[StandbyState]]] = {
    _S.STARTING: frozenset({_S.WARMING, _S.FAILED, _S.RETIRED}),
    # A promotion may arrive before READY: a partly warm driver is still faster than a cold driver.
    _S.WARMING: frozenset({_S.READY, _S.PROMOTING, _S.FAILED, _S.RETIRED}),
    _S.READY: frozenset({_S.STALE, _S.PROMOTING, _S.FAILED, _S.RETIRED}),
    _S.STALE: frozenset({_S.READY, _S.PROMOTING, _S.FAILED, _S.RETIRED}),
    _S.PROMOTING: frozenset({_S.PROMOTED, _S.FAILED, _S.RETIRED}),
    _S.PROMOTED: frozenset(),
    _S.FAILED: frozenset(),
    _S.RETIRED: frozenset(),
}
FINAL_STATES: Final = frozenset(state for state, successors in TRANSITIONS.items() if not successors)
