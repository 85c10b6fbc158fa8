"""Texts that explain the causes, phases and outcomes of recoveries, for incidents, events and reports."""

from __future__ import annotations

from typing import Final

CAUSES: Final = {
    "crash": "the driver crashed (killed, out of memory, or a JVM crash)",
    "host-lost": "the host was lost (its heartbeats stopped)",
    "restart": "a query failed and was replayed by the same driver",
    "move": "the job was moved to another host",
    "upgrade": "the job was upgraded to another version",
    "rollback": "the new version failed, and the previous one continued",
    "shutdown": "the driver was stopped with its agent",
    "start": "the job was started",
}
PHASES: Final = {
    "detect": "until the failure was detected",
    "finish": "until the driver of the old version finished its epoch",
    "decide": "until the new driver and its host were chosen",
    "start": "until the new driver process ran",
    "wake": "until the standby received the promotion",
    "claim": "until the new driver owned the causal log and the old driver was fenced",
    "restore": "until the checkpoint and its state were loaded",
    "replay": "until the epoch in doubt was replayed with its determinants",
    "epoch": "until the first epoch was published; no epoch was in doubt",
    "commit": "until that epoch was committed",
    "ready": "until all queries were ready to read; there was no input",
    "others": "until the other queries had published an epoch",
}
# Causes of recoveries in which the old driver works until its successor takes over.
PLANNED: Final = frozenset({"move", "upgrade"})
OUTCOMES: Final = {
    "SUPERSEDED": "the next failure occurred before all queries had returned",
    "OVERTAKEN": "the job continued before the failure was noticed",
    "IDLE": "the job runs, and no record was unread",
    "ABANDONED": "the job stopped",
}
