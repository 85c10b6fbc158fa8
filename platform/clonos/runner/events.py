"""What a driver tells about itself: one JSON line per event, and a line for the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

Emit = Callable[..., None]


class Events:
    """Writes events to a file (appended, so that restarts of a job share one) and to the log.

    Args:
        job: The job's name.
        path: JSON lines file, or None.
        logger: A structlog logger; default the process's own.
    """

    def __init__(self, job: str, path: Path | None, *, logger: Any = None) -> None:
        self._out = path.open("a", buffering=1) if path else None
        self._log = (logger or structlog.get_logger("clonos")).bind(job=job)
        self.generation = 0

    def emit(self, event: str, **fields: Any) -> None:
        """Tell one event."""
        record = {"event": event, "generation": self.generation, **fields, "at": time.time()}
        if self._out:
            self._out.write(json.dumps(record) + "\n")
        tell = self._log.warning if event == "lint" else self._log.info
        tell(event, generation=self.generation, **fields)

    def close(self) -> None:
        """Close the file."""
        if self._out:
            self._out.close()
