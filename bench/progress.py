"""Progress of benchmarks."""

from __future__ import annotations

import sys
import time


def log_progress(text: str) -> None:
    """Print progress to stderr."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)
