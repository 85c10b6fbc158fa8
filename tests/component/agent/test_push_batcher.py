"""The batcher sends the batches of all runs in one request; a rejected batch blocks no other."""

from __future__ import annotations

import asyncio
import time

import pytest

from clonos.agent.push_batcher import PushBatcher
from clonos.client.agent_api import ApiRejected, ApiUnavailable
from clonos.resources.hosts import BatchResult, EventsBatch, LogBatch, Push, PushResult

pytestmark = pytest.mark.anyio


class FakeControlPlane:
    """Accepts all batches, except batches of the runs in `rejected`."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self.rejected: set[str] = set()
        self.error: Exception | None = None

    async def receive(self, push: Push) -> PushResult:
        self.pushes.append(push)
        if self.error is not None and len(push.events) > 1:
            raise self.error
        return PushResult(
            events=[
                self._result(batch.run, batch.offset + sum(len(line) + 1 for line in batch.lines))
                for batch in push.events
            ],
            logs=[self._result(batch.run, batch.offset + len(batch.text)) for batch in push.logs],
        )

    def _result(self, run: str, offset: int) -> BatchResult:
        if run in self.rejected:
            return BatchResult(run=run, status=422, detail="no")
        return BatchResult(run=run, offset=offset)


def events(run: str, *lines: str) -> EventsBatch:
    return EventsBatch(run=run, offset=0, lines=list(lines))


async def test_simultaneous_batches_are_one_request() -> None:
    plane = FakeControlPlane()
    batcher = PushBatcher("i", plane.receive)
    batches = [*(events(f"r{number}", "x" * number) for number in range(5)), LogBatch(run="r1", offset=7, text="abc")]
    assert await asyncio.gather(*map(batcher.push, batches)) == [1, 2, 3, 4, 5, 10]
    assert len(plane.pushes) == 1
    assert plane.pushes[0].instance == "i"


async def test_rejected_batch_blocks_no_other() -> None:
    plane = FakeControlPlane()
    plane.rejected = {"r1"}
    batcher = PushBatcher("i", plane.receive)
    results = await asyncio.gather(*(batcher.push(events(f"r{number}")) for number in range(3)), return_exceptions=True)
    assert [results[0], results[2]] == [0, 0]
    assert isinstance(results[1], ApiRejected)
    assert results[1].status == 422


async def test_request_rejected_as_too_large_is_sent_in_parts() -> None:
    plane = FakeControlPlane()
    plane.error = ApiRejected("too large", status=413)
    batcher = PushBatcher("i", plane.receive)
    assert await asyncio.gather(*(batcher.push(events(f"r{number}", "x")) for number in range(3))) == [2, 2, 2]
    assert [len(push.events) for push in plane.pushes] == [3, 1, 1, 1]


async def test_unavailable_control_plane_fails_all_batches() -> None:
    plane = FakeControlPlane()
    plane.error = ApiUnavailable("unavailable")
    batcher = PushBatcher("i", plane.receive)
    results = await asyncio.gather(*(batcher.push(events(f"r{number}")) for number in range(2)), return_exceptions=True)
    assert all(isinstance(result, ApiUnavailable) for result in results)
    plane.error = None
    assert await batcher.push(events("r0", "x")) == 2


async def test_large_batches_are_sent_in_several_requests() -> None:
    plane = FakeControlPlane()
    batcher = PushBatcher("i", plane.receive)
    await asyncio.gather(
        *(batcher.push(LogBatch(run=f"r{number}", offset=0, text="x" * 200_000)) for number in range(25))
    )
    assert len(plane.pushes) == 3
    assert sum(len(push.logs) for push in plane.pushes) == 25


async def test_forwarders_flush_together_and_at_once_if_a_run_changes() -> None:
    batcher = PushBatcher("i", FakeControlPlane().receive)
    batcher.interval_s = 1.2
    timers = [batcher.timer() for _ in range(3)]

    async def woken(index: int) -> float:
        await asyncio.sleep(index * 0.4)
        await timers[index].wait()
        return time.monotonic()

    await timers[0].wait()
    for _ in range(20):  # a stall of 0.4 s moves a timer to the next flush
        at = await asyncio.gather(*map(woken, range(3)))
        if max(at) - min(at) < 0.4:
            break
        await timers[0].wait()
    else:
        pytest.fail("each flushes 0.4 s after the previous one")
    batcher.interval_s = 30.0
    asyncio.get_running_loop().call_later(0.01, batcher.run_changed)
    async with asyncio.timeout(60):
        await asyncio.gather(*(timer.wait() for timer in timers))


async def test_forwarders_flush_each_second_while_no_run_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    batcher = PushBatcher("i", FakeControlPlane().receive)
    batcher._phase = 0.0
    batcher.interval_s = 0.25
    assert batcher._until_flush_s() == 1.0
    batcher.run_changed()
    assert batcher._until_flush_s() == 0.25
    now += 11
    assert batcher._until_flush_s() == 1.0
    batcher.interval_s = 4.0  # many drivers report
    assert batcher._until_flush_s() == 4.0 - 1011 % 4
