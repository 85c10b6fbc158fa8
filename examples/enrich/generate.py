"""The input of the example: readings of devices. Some cannot be decoded, some are from unknown devices.

``python generate.py`` writes key, tab and value, 20 events per second.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

DEVICES = 40
UNKNOWN_DEVICES = 5
POISON_SHARE = 0.04
UNKNOWN_SHARE = 0.02


def messages(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """An endless sequence of keys and values."""
    number = 0
    while True:
        unknown = rng.random() < UNKNOWN_SHARE
        device = f"x{rng.randrange(UNKNOWN_DEVICES)}" if unknown else f"d{rng.randrange(DEVICES):02}"
        event = {"event": f"e-{number}", "device": device, "reading": round(rng.uniform(0.0, 100.0), 2)}
        number += 1
        yield device, _poison(event, rng) if rng.random() < POISON_SHARE else json.dumps(event).encode()


def _poison(event: dict[str, object], rng: random.Random) -> bytes:
    text = json.dumps(event)
    kind = rng.randrange(4)
    if kind == 0:
        return text[: len(text) // 2].encode()
    if kind == 1:
        return b"not JSON at all \xff"
    if kind == 2:
        return json.dumps({**event, "reading": "warm"}).encode()
    return json.dumps({"event": event["event"]}).encode()


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(errors="replace"), sep="\t", flush=True)
        time.sleep(0.05)
