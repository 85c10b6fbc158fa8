"""The state of a stateful job: filled before the first kill, and measured on disk."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from bench.outages.subject import Platform
from bench.progress import log_progress
from bench.subjects import PARTITIONS
from clonos.kafka import client_config

_VALUE_BYTES: Final = 64 << 10
_FILL_S: Final = 600.0


def fill(deployment: Platform, source: str, megabytes: int) -> dict[str, Any]:
    """Fill the job's state, and wait until its checkpoint holds a full snapshot of it.

    Returns:
        ``state_mb``: its size on the driver's disk; ``checkpoint_mb``; ``filled_s``: the time that it took.
    """
    began = time.monotonic()
    producer = Producer(client_config(deployment.kafka, linger_ms=5))
    for number in range(megabytes * 10**6 // _VALUE_BYTES):
        producer.produce(source, str(_VALUE_BYTES), f"f{number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    job = deployment.job.get()
    assert job.host is not None
    assert job.run is not None
    # The job's directory in the checkpoints that all hosts share.
    checkpoint = deployment.home / "jobs" / deployment.job.name
    own = deployment.home / "agent" / job.host / "runs" / job.run
    deployment.job.until(
        lambda: _tables_mb(checkpoint) >= megabytes * 0.95, f"{megabytes} MB of state are written", _FILL_S
    )
    sizes = {
        "state_mb": round(_tables_mb(own)),
        "checkpoint_mb": round(_tables_mb(checkpoint)),
        "filled_s": round(time.monotonic() - began),
    }
    log_progress(f"state: {sizes}")
    return sizes


def _tables_mb(folder: Path) -> float:
    """Size of RocksDB's tables, each once, without changelogs."""
    sizes: dict[int, int] = {}
    for file in folder.rglob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # dropped once no version needs it any more
            status = file.stat()
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values()) / 1e6
