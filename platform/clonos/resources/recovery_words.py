"""What the words of a recovery mean: for `clonos recovery explain` and the dashboard."""

from __future__ import annotations

from typing import Final

CAUSES: Final = {
    "crash": "the driver ended without a word (killed, out of memory, a crash of its Java)",
    "host-lost": "its host was not heard of any more",
    "restart": "a query failed and was replayed by the same driver",
    "move": "it was moved to another host",
    "upgrade": "it got another version",
    "start": "it was started",
}
PHASES: Final = {
    "detect": "until the failure was known",
    "finish": "until the driver of the old version had finished its epoch",
    "decide": "until it was decided who goes on, and where",
    "start": "until the new driver ran",
    "wake": "until the standby had heard of it",
    "claim": "until it owned the causal log, and the old one was fenced",
    "restore": "until checkpoint and state were read",
    "replay": "until what was in doubt was computed again, with the recorded answers",
    "epoch": "until the first epoch was published; none was in doubt",
    "commit": "until that epoch was finished",
}
OUTCOMES: Final = {
    "superseded": "the next failure came before its first epoch",
    "overtaken": "the job went on before it was noticed",
    "idle": "the job runs, and had no input to work on",
    "abandoned": "the job ended",
}
