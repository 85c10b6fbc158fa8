"""Sends the events and log text of all runs of a host to the control plane in one push.

A push with ten batches costs the control plane hardly more than one with a single batch. So the forwarders of all runs
(`Forwarder`) send together. While no run changes they send each second: most events are then epochs.
After a change, for instance in a recovery, they send at the interval that the control plane sets.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from clonos.client.agent_api import ApiRejected, ApiUnavailable
from clonos.deadline import is_set_within
from clonos.resources.hosts import BatchResult, EventsBatch, LogBatch, Push, PushResult

_INTERVAL_S: Final = 0.2
_REST_INTERVAL_S: Final = 1.0
_CHANGING_S: Final = 10.0  # from a driver's failure to the first epochs after its recovery
_COLLECT_S: Final = 0.02
_MAX_CHARACTERS: Final = 2_000_000
_MAX_BATCHES: Final = 1000
_TOO_LARGE: Final = frozenset({413, 422})


@dataclass(frozen=True)
class _PendingPush:
    batch: EventsBatch | LogBatch
    acknowledged: asyncio.Future[int]

    @property
    def size(self) -> int:
        batch = self.batch
        return len(batch.text) if isinstance(batch, LogBatch) else sum(len(line) + 1 for line in batch.lines)


class FlushTimer:
    """Decides when a forwarder reads and sends its files again: with all others, after `delay_s`, or at once."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s
        self._expedited = asyncio.Event()

    def expedite(self) -> None:
        """Let the forwarder send at once."""
        self._expedited.set()

    async def wait(self) -> None:
        """Wait until the forwarder has to send."""
        await is_set_within(self._expedited, self._delay_s())
        self._expedited.clear()


class PushBatcher:
    """Collects the batches of all runs and sends them in one push."""

    def __init__(self, instance: str, send: Callable[[Push], Awaitable[PushResult]]) -> None:
        self.interval_s = _INTERVAL_S  # minimum seconds between two flushes, set by the control plane
        self._changing_until = 0.0
        self._instance = instance
        self._send = send
        self._waiting: list[_PendingPush] = []
        self._sending: asyncio.Task[None] | None = None
        self._timers: weakref.WeakSet[FlushTimer] = weakref.WeakSet()
        self._phase = random.random()  # so that agents do not all flush at the same moment

    def timer(self) -> FlushTimer:
        """Return the timer for the forwarder of one run."""
        timer = FlushTimer(self._until_flush_s)
        self._timers.add(timer)
        return timer

    @property
    def changed_recently(self) -> bool:
        """Whether a run has changed in the last seconds."""
        return time.monotonic() < self._changing_until

    def _until_flush_s(self) -> float:
        """Seconds until the next common flush."""
        interval_s = self.interval_s if self.changed_recently else max(self.interval_s, _REST_INTERVAL_S)
        return interval_s * (1 - (time.monotonic() / interval_s + self._phase) % 1)

    def run_changed(self) -> None:
        """Let the forwarders of all runs send at once, then often for a while: the control plane waits for events."""
        self._changing_until = time.monotonic() + _CHANGING_S
        for timer in list(self._timers):
            timer.expedite()

    async def push(self, batch: EventsBatch | LogBatch) -> int:
        """Send a batch with the next push; returns the offset in bytes up to which the control plane has the file.

        Raises:
            ApiUnavailable: The control plane does not respond.
            ApiRejected: The control plane rejects the batch.
        """
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingPush(batch, acknowledged))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name="push-batcher")
        return await acknowledged

    async def close(self) -> None:
        """Stop sending pushes to the control plane."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        await asyncio.sleep(_COLLECT_S)
        while self._waiting:
            # Cancelled forwarders send nothing.
            waiting = [push for push in self._waiting if not push.acknowledged.done()]
            size = 0
            pending: list[_PendingPush] = []
            for push in waiting[:_MAX_BATCHES]:
                size += push.size
                if pending and size > _MAX_CHARACTERS:
                    break
                pending.append(push)
            self._waiting = waiting[len(pending) :]
            if pending:
                await self._deliver(pending)

    async def _deliver(self, pending: list[_PendingPush]) -> None:
        events = [push for push in pending if isinstance(push.batch, EventsBatch)]
        logs = [push for push in pending if isinstance(push.batch, LogBatch)]
        combined = Push.model_construct(
            instance=self._instance,
            events=cast("list[EventsBatch]", [push.batch for push in events]),
            logs=cast("list[LogBatch]", [push.batch for push in logs]),
        )
        try:
            response = await self._send(combined)
            if (len(response.events), len(response.logs)) != (len(events), len(logs)):
                raise ApiUnavailable("The control plane returned results for other batches than were sent.")
        except asyncio.CancelledError:
            for push in pending:
                push.acknowledged.cancel()
            raise
        except Exception as error:
            if isinstance(error, ApiRejected) and error.status in _TOO_LARGE and len(pending) > 1:
                for push in pending:  # a rejected batch must not block the others
                    await self._deliver([push])
                return
            for push in pending:
                if not push.acknowledged.done():
                    push.acknowledged.set_exception(error)
            return
        for push, result in zip([*events, *logs], [*response.events, *response.logs], strict=True):
            if not push.acknowledged.done():
                _settle(push.acknowledged, result)


def _settle(future: asyncio.Future[int], result: BatchResult) -> None:
    if result.offset is None:
        future.set_exception(ApiRejected(f"run {result.run}: {result.status} {result.detail}", status=result.status))
    else:
        future.set_result(result.offset)
