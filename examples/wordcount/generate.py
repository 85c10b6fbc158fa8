"""The input of the example: the lines of ``lines.txt`` in a cycle, each with its own key.

``python generate.py`` writes key, tab and value, 20 lines per second.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path


def messages(_rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """An endless sequence of keys and values."""
    rows = (Path(__file__).parent / "lines.txt").read_text(encoding="utf-8").splitlines()
    lines = [row.strip() for row in rows if row.strip() and not row.startswith("#")]
    for number, line in enumerate(itertools.cycle(lines)):
        yield f"line-{number}", line.encode()


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(), sep="\t", flush=True)
        time.sleep(0.05)
