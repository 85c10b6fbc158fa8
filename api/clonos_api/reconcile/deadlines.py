"""How long a job may be in a state that waits for something. The table is in docs/control-plane.md."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from clonos_api.reconcile.facts import Job, Run

CLAIM_S: Final = 120.0  # STARTING: each attempt to its first claim
RECOVER_S: Final = 300.0  # RECOVERING: each attempt until it works again
# An attempt that follows another starts the time anew, but a driver that dies late each time must not do so for ever.
ATTEMPTS_AT_MOST: Final = 5
STOP_MARGIN_S: Final = 30.0  # over the timeout that was asked for, which the agent keeps
FORCE_S: Final = 30.0
CANCEL_S: Final = 60.0
SAVEPOINT_S: Final = 300.0  # copying a checkpoint after a stop
PREPARE_S: Final = 180.0  # a drained host's driver waits for a standby elsewhere
HAND_OVER_S: Final = 20.0  # a standby that was told to take over claims
MAKE_ROOM_S: Final = 60.0  # a driver of an older version finishes its epoch
PROVE_S: Final = 60.0  # a new version finishes an epoch, or runs so long without input


def due(job: Job, run: Run, allowed_s: float) -> datetime:
    """When a run that was placed, or fell, is given up."""
    begun = max(job.since, run.created_at)
    newest = max(begun, run.started_at or begun)
    return min(newest + timedelta(seconds=allowed_s), begun + timedelta(seconds=allowed_s * ATTEMPTS_AT_MOST))
