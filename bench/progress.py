"""Progress and end of benchmarks."""

from __future__ import annotations

import signal
import sys
import time


def log_progress(text: str) -> None:
    """Print progress to stderr."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def exit_on_sigterm() -> None:
    """Let a SIGTERM end this process as an exit does, which stops the processes that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
