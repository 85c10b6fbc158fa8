"""The cost of a standby without failures: CPU, memory, and the throughput of the driver beside it."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.outages.flow import Load
from bench.outages.subject import Platform
from bench.outages.usage import cpu_s, memory_mb
from bench.progress import log_progress
from bench.subjects import PARTITIONS, make_topic
from clonos.kafka import client_config

# Compilers and garbage collectors have settled after this time.
_SETTLE_S: Final = 15.0
_WINDOW_S: Final = 5.0
_PAIRS: Final = 4
_PER_EPOCH: Final = 50_000
_FIRST_S: Final = 60.0
_PRELOAD_MS: Final = 600_000


def idle(deployment: Platform, seconds: float) -> dict[str, Any]:
    """CPU share of a core and memory of one READY standby, whose job works under a steady load."""
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    deployment.submit("subject.py", params, standbys=1)
    deployment.job.await_driver()
    load = Load(deployment.kafka, source)
    try:
        deployment.job.await_standby()
        standby = deployment.standby()
        assert standby is not None
        time.sleep(_SETTLE_S)
        before, began = cpu_s(standby.members()), time.monotonic()
        time.sleep(seconds)
        after, took = cpu_s(standby.members()), time.monotonic() - began
        memory = memory_mb(standby.members())
    finally:
        load.close()
    deployment.stop_job()
    used = {name: round((spent - before.get(name, 0.0)) / took, 4) for name, spent in after.items()}
    result = {
        "cpu_share": round(sum(used.values()), 4),
        "pss_mb": sum(memory.values()),
        "seconds": round(took, 1),
        "cpu_by_process": used,
        "pss_mb_by_process": memory,
    }
    log_progress(f"standby: {result['cpu_share']:.2%} of a core, {result['pss_mb']} MB")
    return result


def throughput(deployment: Platform, records: int) -> dict[str, Any]:
    """Rows per second of one driver, with its standby running and with its standby paused, window by window."""
    source, output = make_topic(deployment.kafka, "load"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": str(_PER_EPOCH)}
    deployment.submit("subject.py", params, standbys=1)
    deployment.job.await_driver()
    deployment.job.await_standby()
    standby = deployment.standby()
    assert standby is not None
    _preload(deployment, source, records)
    ends = Consumer(client_config(deployment.kafka, group_id="bench", isolation_level="read_committed"))
    rates: dict[str, list[float]] = {"with": [], "without": []}
    try:
        _rate(ends, output, _FIRST_S, stop_at=_PER_EPOCH * 4)
        for pair in range(_PAIRS):
            # Both orders are equally frequent, because a driver still gets faster.
            for name in ("with", "without") if pair % 2 else ("without", "with"):
                with contextlib.nullcontext() if name == "with" else standby.paused():
                    rates[name].append(_rate(ends, output, _WINDOW_S))
                log_progress(f"{name} standby: {rates[name][-1]:,.0f} rows/s")
    finally:
        ends.close()
    deployment.stop_job()
    ratios = [with_standby / without for with_standby, without in zip(rates["with"], rates["without"], strict=True)]
    return {
        **{name: round(statistics.median(seen)) for name, seen in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "samples": {name: [round(rate) for rate in seen] for name, seen in rates.items()},
    }


def _preload(deployment: Platform, topic: str, records: int) -> None:
    """Send all records in one transaction, so that the job cannot read a part of them earlier."""
    config: dict[str, int] = {"linger_ms": 50, "batch_size": 500_000, "queue_buffering_max_messages": 500_000}
    transaction: dict[str, str | int] = {"transactional_id": topic, "transaction_timeout_ms": _PRELOAD_MS}
    producer = Producer(client_config(deployment.kafka, compression_type="lz4", **config, **transaction))
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, b"%080d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.commit_transaction(120)
    log_progress(f"{records} records are in {topic}")


def _rate(ends: Consumer, topic: str, seconds: float, stop_at: int = 0) -> float:
    """Rows a second, from the first commit in this time to the last one.

    Raises:
        RuntimeError: There was too little input.
    """
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not (stop_at and seen and seen[-1][1] >= stop_at):
        partitions = (TopicPartition(topic, partition) for partition in range(PARTITIONS))
        count = sum(ends.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions)
        if not seen or count != seen[-1][1]:
            seen.append((time.monotonic(), count))
        time.sleep(0.02)
    steps = seen[1:]  # the first sample is not at a commit
    if len(steps) < 3 or (not stop_at and deadline - steps[-1][0] > seconds / 2):
        raise RuntimeError("the input was used up; give more --records")
    return (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
