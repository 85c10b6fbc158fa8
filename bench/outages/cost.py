"""What a standby costs while nothing happens: CPU, memory, and the throughput of the driver that it stands by."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.outages.flow import Load
from bench.outages.platform import Platform
from bench.outages.processes import cpu_s, memory_mb, session
from bench.subjects import PARTITIONS, make_topic, say
from clonos.kafka import client_config

# What it did to get ready has settled by then: compilers, collectors.
_SETTLE_S: Final = 15.0
_WINDOW_S: Final = 5.0
_PAIRS: Final = 4
_PER_EPOCH: Final = 50_000
_FIRST_S: Final = 60.0
_PRELOAD_MS: Final = 600_000


def idle(where: Platform, seconds: float) -> dict[str, Any]:
    """CPU share of a core and memory of one READY standby, whose job works under a steady load."""
    source, output = make_topic(where.kafka, "in"), make_topic(where.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    where.submit("subject.py", params, standbys=1)
    where.driver()
    load = Load(where.kafka, source)
    try:
        where.await_standby()
        standby = where.standby()
        assert standby is not None
        time.sleep(_SETTLE_S)
        before, began = cpu_s(session(standby.pid)), time.monotonic()
        time.sleep(seconds)
        after, took = cpu_s(session(standby.pid)), time.monotonic() - began
        memory = memory_mb(session(standby.pid))
    finally:
        load.close()
    where.end()
    used = {name: round((spent - before.get(name, 0.0)) / took, 4) for name, spent in after.items()}
    found = {
        "cpu_share": round(sum(used.values()), 4),
        "pss_mb": sum(memory.values()),
        "seconds": round(took, 1),
        "cpu_by_process": used,
        "pss_mb_by_process": memory,
    }
    say(f"standby: {found['cpu_share']:.2%} of a core, {found['pss_mb']} MB")
    return found


def throughput(where: Platform, records: int) -> dict[str, Any]:
    """Rows a second of one driver, with its standby there and with its standby stopped, window by window."""
    source, output = make_topic(where.kafka, "load"), make_topic(where.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": str(_PER_EPOCH)}
    where.submit("subject.py", params, standbys=1)
    where.driver()
    where.await_standby()
    standby = where.standby()
    assert standby is not None
    _preload(where, source, records)
    ends = Consumer(client_config(where.kafka, group_id="bench", isolation_level="read_committed"))
    rates: dict[str, list[float]] = {"with": [], "without": []}
    try:
        _rate(ends, output, _FIRST_S, stop_at=_PER_EPOCH * 4)
        for pair in range(_PAIRS):
            # Each comes first as often as the other: a driver is still getting faster.
            for name in ("with", "without") if pair % 2 else ("without", "with"):
                with contextlib.nullcontext() if name == "with" else _stopped(standby.pid):
                    rates[name].append(_rate(ends, output, _WINDOW_S))
                say(f"{name} standby: {rates[name][-1]:,.0f} rows/s")
    finally:
        ends.close()
    where.end()
    ratios = [one / other for one, other in zip(rates["with"], rates["without"], strict=True)]
    return {
        **{name: round(statistics.median(seen)) for name, seen in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "samples": {name: [round(one) for one in seen] for name, seen in rates.items()},
    }


@contextlib.contextmanager
def _stopped(leader: int) -> Iterator[None]:
    """A standby that costs nothing: paused, so that the driver beside it stays the same one."""
    members = session(leader)
    for one in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.suspend()
    try:
        yield
    finally:
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()


def _preload(where: Platform, topic: str, records: int) -> None:
    """All of it is there in the moment of the commit: the job has not read half of it meanwhile."""
    config = {"linger_ms": 50, "batch_size": 500_000, "queue_buffering_max_messages": 500_000}
    transaction = {"transactional_id": topic, "transaction_timeout_ms": _PRELOAD_MS}
    producer = Producer(client_config(where.kafka, compression_type="lz4", **config, **transaction))
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
    say(f"{records} records are in {topic}")


def _rate(ends: Consumer, topic: str, seconds: float, stop_at: int = 0) -> float:
    """Rows a second, from the first commit in this time to the last one.

    Raises:
        RuntimeError: There was too little input.
    """
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not (stop_at and seen and seen[-1][1] >= stop_at):
        partitions = (TopicPartition(topic, partition) for partition in range(PARTITIONS))
        count = sum(ends.get_watermark_offsets(one, timeout=10)[1] for one in partitions)
        if not seen or count != seen[-1][1]:
            seen.append((time.monotonic(), count))
        time.sleep(0.02)
    steps = seen[1:]  # the first look is at no commit
    if len(steps) < 3 or (not stop_at and deadline - steps[-1][0] > seconds / 2):
        raise RuntimeError("the input was used up; give more --records")
    return (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
