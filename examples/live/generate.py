"""The input of the example: payments with cards.

``python generate.py`` writes key, tab and value, 200 payments per second.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

CARDS = 50


def messages(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """An endless sequence of keys and values."""
    number = 0
    while True:
        card = f"c{rng.randrange(CARDS):02}"
        yield card, json.dumps({"payment": f"p-{number}", "card": card, "cents": rng.randrange(100_000)}).encode()
        number += 1


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(), sep="\t", flush=True)
        time.sleep(0.005)
