"""A stateful job's state: filled before anything is killed, and measured on disk."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from bench.outages.platform import Platform
from bench.subjects import PARTITIONS, say
from clonos.kafka import client_config

_VALUE_BYTES: Final = 64 << 10
_PATIENCE_S: Final = 600.0


def fill(where: Platform, source: str, megabytes: int) -> dict[str, Any]:
    """Have the job keep so much, and wait until its checkpoint has a whole copy of it besides the changes.

    Returns:
        ``state_mb``: what the driver has on disk of it; ``checkpoint_mb``; ``filled_s``: how long that took.
    """
    began = time.monotonic()
    producer = Producer(client_config(where.kafka, linger_ms=5))
    for number in range(megabytes * 10**6 // _VALUE_BYTES):
        producer.produce(source, str(_VALUE_BYTES), f"f{number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    job = where.get("")
    # The folder that all hosts share, and in it that of this job.
    checkpoint = where.home / "jobs" / "jobs" / where.job
    own = where.home / "agent" / job["agent"] / "runs" / job["run"]
    where.until(lambda: _tables_mb(checkpoint) >= megabytes * 0.95, f"{megabytes} MB of state are kept", _PATIENCE_S)
    found = {
        "state_mb": round(_tables_mb(own)),
        "checkpoint_mb": round(_tables_mb(checkpoint)),
        "filled_s": round(time.monotonic() - began),
    }
    say(f"state: {found}")
    return found


def _tables_mb(folder: Path) -> float:
    """RocksDB's tables, each once, without the logs of changes since."""
    sizes: dict[int, int] = {}
    for file in folder.rglob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # dropped once no version needs it any more
            status = file.stat()
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values()) / 1e6
