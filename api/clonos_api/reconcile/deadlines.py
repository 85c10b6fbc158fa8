"""The maximum time that a job may spend in each state that waits for something. docs/control-plane.md has the table."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from clonos_api.reconcile.facts import JobFacts, RunFacts

CLAIM_S: Final = 300.0  # STARTING: each attempt, until its first claim; on a cluster it waits for executors
RECOVER_S: Final = 300.0  # RECOVERING: each attempt, until it runs
# Each attempt restarts the deadline; this limits a driver that fails late each time.
MAX_ATTEMPTS: Final = 5
STOP_MARGIN_S: Final = 30.0  # in addition to the requested timeout, which the agent enforces
FORCE_S: Final = 30.0
CANCEL_S: Final = 60.0
SAVEPOINT_S: Final = 300.0  # the copy of a checkpoint after a stop
PREPARE_S: Final = 180.0  # the driver of a draining host waits for a standby on another host
HAND_OVER_S: Final = 20.0  # a standby claims the log
MAKE_ROOM_S: Final = 60.0  # the driver of an older version finishes its epoch
ROOM_MARGIN_S: Final = 30.0  # in addition to `MAKE_ROOM_S`, which the agent enforces
PROVE_S: Final = 60.0  # the queries of a new version return, or it runs without input


def due(job: JobFacts, run: RunFacts, allowed_s: float) -> datetime:
    """Return the deadline of a job that starts or recovers: `allowed_s` seconds after the newest attempt began.

    It is at most `MAX_ATTEMPTS` times `allowed_s` after the beginning of the run or of the job's state, the later one.
    """
    begun = max(job.since, run.created_at)
    newest = max(begun, run.started_at or begun)
    return min(newest + timedelta(seconds=allowed_s), begun + timedelta(seconds=allowed_s * MAX_ATTEMPTS))
