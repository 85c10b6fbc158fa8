"""The cost of a standby without failures: CPU, memory, and the throughput of the driver beside it."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.outages.flow import Load
from bench.outages.subject import Platform
from bench.outages.usage import cpu_s, memory_mb
from bench.progress import log_progress
from bench.subjects import PARTITIONS, make_topic
from clonos.kafka import client_config
from clonos.testing.harness import ProcessGroup, processes_of_home

# Compilers and garbage collectors have settled after this time.
_SETTLE_S: Final = 15.0
_WINDOW_S: Final = 5.0
_PAIRS: Final = 4
_PER_EPOCH: Final = 50_000
_FIRST_S: Final = 60.0
_PRELOAD_MS: Final = 600_000
_PARTS: Final = {"clonos_api": "control_plane", "kafka.Kafka": "broker", "agent": "agents"}  # by command line


def idle(deployment: Platform, seconds: float) -> dict[str, Any]:
    """What one job with a READY standby costs, without input and under a steady load.

    Returns:
        ``standby_cost``: CPU share of a core and memory of the standby under load; ``job_cost``: the same for every
        part of the platform, ``idle`` and ``loaded``.
    """
    source, output = make_topic(deployment.kafka, "in"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": "0"}
    deployment.submit("subject.py", params, standbys=1)
    with contextlib.ExitStack() as stack:
        stack.callback(deployment.stop_job)
        driver = deployment.job.await_driver()
        load = Load(deployment.kafka, source)  # a standby rehearses with a driver that works
        stack.callback(load.close)
        deployment.job.await_standby()
        standby = deployment.standby()
        assert standby is not None
        loaded, shares = _shares(deployment, driver, standby, seconds)
        load.close()
        job_cost = {"loaded": loaded, "idle": _shares(deployment, driver, standby, seconds)[0]}
    used, memory = shares
    result = {
        "cpu_share": round(sum(used.values()), 4),
        "pss_mb": sum(memory.values()),
        "seconds": seconds,
        "cpu_by_process": used,
        "pss_mb_by_process": memory,
    }
    log_progress(f"standby: {result['cpu_share']:.2%} of a core, {result['pss_mb']} MB")
    return {"standby_cost": result, "job_cost": job_cost}


def _shares(
    deployment: Platform, driver: ProcessGroup, standby: ProcessGroup, seconds: float
) -> tuple[dict[str, dict[str, float]], tuple[dict[str, float], dict[str, int]]]:
    """CPU shares and memory: of each part of the platform, and of the standby by process."""
    time.sleep(_SETTLE_S)
    parts = parts_of(deployment, driver, standby)
    before, began = {name: cpu_s(processes) for name, processes in parts.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    used = {
        part: {name: round((spent - before[part].get(name, 0.0)) / took, 4) for name, spent in cpu_s(processes).items()}
        for part, processes in parts.items()
    }
    memory = {part: memory_mb(processes) for part, processes in parts.items()}
    figures = {
        part: {"cores": round(sum(used[part].values()), 3), "pss_mb": sum(memory[part].values())} for part in parts
    }
    log_progress(f"{figures}")
    return figures, (used["standby"], memory["standby"])


def parts_of(
    deployment: Platform, driver: ProcessGroup | None, standby: ProcessGroup | None
) -> dict[str, list[psutil.Process]]:
    """The live processes of each part of the platform."""
    groups = {"driver": driver, "standby": standby}
    parts = {name: group.members() if group is not None else [] for name, group in groups.items()}
    known = {process.pid for members in parts.values() for process in members}
    for process, run in processes_of_home(deployment.home):
        if process.pid not in known:
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                part = next((part for text, part in _PARTS.items() if text in command), "other")
                parts.setdefault("pool_drivers" if run.startswith("pool-driver-") else part, []).append(process)
    return parts


def throughput(deployment: Platform, records: int) -> dict[str, Any]:
    """Rows per second of one driver, with its standby running and with its standby paused, window by window."""
    source, output = make_topic(deployment.kafka, "load"), make_topic(deployment.kafka, "out")
    params = {"input": source, "output": output, "kind": "identity", "per_epoch": str(_PER_EPOCH)}
    deployment.submit("subject.py", params, standbys=1)
    rates: dict[str, list[float]] = {"with": [], "without": []}
    with contextlib.ExitStack() as stack:
        stack.callback(deployment.stop_job)
        deployment.job.await_driver()
        deployment.job.await_standby()
        standby = deployment.standby()
        assert standby is not None
        _preload(deployment, source, records)
        ends = Consumer(client_config(deployment.kafka, group_id="bench", isolation_level="read_committed"))
        stack.callback(ends.close)
        _rate(ends, output, _FIRST_S, stop_at=_PER_EPOCH * 4)
        for pair in range(_PAIRS):
            # Both orders are equally frequent, because a driver still gets faster.
            for name in ("with", "without") if pair % 2 else ("without", "with"):
                with contextlib.nullcontext() if name == "with" else standby.paused():
                    rates[name].append(_rate(ends, output, _WINDOW_S))
                log_progress(f"{name} standby: {rates[name][-1]:,.0f} rows/s")
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
