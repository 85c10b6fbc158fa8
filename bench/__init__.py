"""Benchmarks: one module each, progress on stderr, one JSON object last on stdout."""

import sys
from pathlib import Path

# Benchmarks use helpers of the tests, such as their PostgreSQL server.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
