"""The input of the example: readings of devices. Some are broken, some come from devices that nobody knows.

By hand: ``python generate.py`` writes key, tab and value, 20 events a second.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

DEVICES = 40
STRANGERS = 5
POISON_SHARE = 0.04
STRANGER_SHARE = 0.02


def messages(moments: random.Random) -> Iterator[tuple[str, bytes]]:
    """Keys and values, without an end."""
    number = 0
    while True:
        strange = moments.random() < STRANGER_SHARE
        device = f"x{moments.randrange(STRANGERS)}" if strange else f"d{moments.randrange(DEVICES):02}"
        event = {"event": f"e-{number}", "device": device, "reading": round(moments.uniform(0.0, 100.0), 2)}
        number += 1
        yield device, _broken(event, moments) if moments.random() < POISON_SHARE else json.dumps(event).encode()


def _broken(event: dict[str, object], moments: random.Random) -> bytes:
    good = json.dumps(event)
    kind = moments.randrange(4)
    if kind == 0:
        return good[: len(good) // 2].encode()
    if kind == 1:
        return b"not JSON at all \xff"
    if kind == 2:
        return json.dumps({**event, "reading": "warm"}).encode()
    return json.dumps({"event": event["event"]}).encode()


if __name__ == "__main__":
    for key, value in messages(random.Random()):
        print(key, value.decode(errors="replace"), sep="\t", flush=True)
        time.sleep(0.05)
