"""Tasks of an epoch without Spark, and their recorded determinants."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import clonos
from clonos.causal import scope
from clonos.causal.epoch_scope import EpochScope
from clonos.causal.scope import TaskScope
from clonos.causal.service import Service
from clonos.log.records import Determinant, EpochIdentity, Owner

EPOCH = EpochScope(
    EpochIdentity("j", "clonos.j.log", "q", 3, Owner(1, 1, "a"), replay=False),
    timestamp_ms=1_700_000_000_123,
    seed=42,
    depth="full",
    log_partitions=(1, 2),
    start_offsets={1: 0, 2: 0},
    claim_offsets={1: 5, 2: 5},
    params={"city": "Berlin"},
)


class FakeRecorder:
    """Holds the recorded determinants of a task in memory: those queued and those flushed."""

    def __init__(self, *_args: object) -> None:
        self.queued: list[Determinant] = []
        self.written: list[Determinant] = []
        self.bytes = 0

    def add(self, entry: Determinant) -> None:
        self.queued.append(entry)

    def flush(self) -> None:
        self.written += self.queued
        self.bytes += 10 * len(self.queued)
        self.queued = []


def task(operator: str = "op", number: int = 0, *, wrapped: bool = True, **changes: Any) -> TaskScope:
    of_identity = {name: changes.pop(name) for name in list(changes) if hasattr(EPOCH.identity, name)}
    identity = msgspec.structs.replace(EPOCH.identity, **of_identity)
    return TaskScope(msgspec.structs.replace(EPOCH, identity=identity, **changes), operator, number, wrapped=wrapped)


def recorder(scope: TaskScope) -> FakeRecorder:
    recorder = scope._recorder
    assert isinstance(recorder, FakeRecorder)
    return recorder


def replaying(first: TaskScope, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> TaskScope:
    """The same task in a replay, with the determinants of `first` in the log."""
    log = {entry.key: entry for entry in [*recorder(first).written, *recorder(first).queued]}
    monkeypatch.setattr(scope, "worker_kafka", lambda: None)
    monkeypatch.setattr(scope, "recorded_answers", lambda *_: log)
    return task(replay=True, **changes)


def counted(answer: Callable[..., Any] = lambda *a, **k: len(a), **options: Any) -> tuple[Service[..., Any], list[Any]]:
    calls: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return answer(*args, **kwargs)

    options.setdefault("name", f"s{time.monotonic_ns()}")
    return clonos.service(**options)(function), calls


def slowly(function: Callable[[int], int], seconds: float) -> Callable[[int], int]:
    """`function`, after a pause that differs between rows."""

    def pausing(x: int) -> int:
        time.sleep(seconds * (x % 3))
        return function(x)

    return pausing
