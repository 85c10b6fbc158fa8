"""The input of the example: orders of customers who come in turns, some of them late.

By hand: ``python generate.py`` writes key, tab and value, 20 orders a second.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

CUSTOMERS = 40
SHOPPING = 6
"""So many customers order at a time; then others do, and those fall silent."""

ORDERS_PER_TURN = 200
LATE_SHARE = 0.05


def messages(moments: random.Random) -> Iterator[tuple[str, bytes]]:
    """Keys and values, without an end."""
    number = 0
    while True:
        shopping = moments.sample(range(CUSTOMERS), SHOPPING)
        for _ in range(ORDERS_PER_TURN):
            customer = f"c{moments.choice(shopping):02}"
            delay_ms = moments.randrange(15_000, 60_000) if moments.random() < LATE_SHARE else moments.randrange(500)
            order = {
                "order": f"o-{number}",
                "customer": customer,
                "cents": moments.randrange(1, 10_000),
                "at": int(time.time() * 1000) - delay_ms,
            }
            number += 1
            yield customer, json.dumps(order).encode()


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(), sep="\t", flush=True)
        time.sleep(0.05)
