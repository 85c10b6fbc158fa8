"""Run all benchmarks, one after another, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

ALL = ("protocol", "engine", "recovery", "cluster", "control_plane", "hostile_caller")

if __name__ == "__main__":
    ended = [subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode for name in ALL]
    sys.exit(max(map(abs, ended)))
