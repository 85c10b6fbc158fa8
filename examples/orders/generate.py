"""The input of the example: orders of changing customers, some of them late.

``python generate.py`` writes key, tab and value, 20 orders per second.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

CUSTOMERS = 40
SHOPPING = 6
"""Number of customers that order at a time; then other customers order."""

ORDERS_PER_TURN = 200
LATE_SHARE = 0.05


def messages(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """An endless sequence of keys and values."""
    number = 0
    while True:
        shopping = rng.sample(range(CUSTOMERS), SHOPPING)
        for _ in range(ORDERS_PER_TURN):
            customer = f"c{rng.choice(shopping):02}"
            delay_ms = rng.randrange(15_000, 60_000) if rng.random() < LATE_SHARE else rng.randrange(500)
            order = {
                "order": f"o-{number}",
                "customer": customer,
                "cents": rng.randrange(1, 10_000),
                "at": int(time.time() * 1000) - delay_ms,
            }
            number += 1
            yield customer, json.dumps(order).encode()


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(), sep="\t", flush=True)
        time.sleep(0.05)
