"""Job files are parsed by several threads at once."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from clonos import python_source


class _Slow:
    """Garbage in a circle, whose destructor lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.0005)


def test_threads_parse_at_the_same_time():
    nested = ("x = " + "(" * 40 + "1" + " + y)" * 40 + "\n").encode() * 100

    def parse_often(_: int) -> None:
        for _round in range(20):
            _Slow()
            python_source.parse(nested)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(parse_often, range(4)))
    finally:
        sys.setswitchinterval(interval)
