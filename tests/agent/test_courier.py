"""What all runs have to tell goes together, as often as the control plane wants it; one that is wrong harms none."""

from __future__ import annotations

import asyncio
import time

import pytest

from clonos.agent.client import ApiAway, ApiRefused
from clonos.agent.courier import Courier
from clonos.resources.hosts import EventsPiece, LogPiece, PieceTaken, Pushes, PushesTaken

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Plane:
    """It takes everything but the runs that it refuses."""

    def __init__(self) -> None:
        self.heard: list[Pushes] = []
        self.refused: set[str] = set()
        self.error: Exception | None = None

    async def take(self, pushes: Pushes) -> PushesTaken:
        self.heard.append(pushes)
        if self.error is not None and len(pushes.events) > 1:
            raise self.error
        return PushesTaken(
            events=[
                self._taken(one.run, one.offset + sum(len(line) + 1 for line in one.lines)) for one in pushes.events
            ],
            logs=[self._taken(one.run, one.offset + len(one.text)) for one in pushes.logs],
        )

    def _taken(self, run: str, offset: int) -> PieceTaken:
        if run in self.refused:
            return PieceTaken(run=run, status=422, detail="no")
        return PieceTaken(run=run, offset=offset)


def events(run: str, *lines: str) -> EventsPiece:
    return EventsPiece(run=run, offset=0, lines=list(lines))


async def test_all_that_is_told_at_once_is_one_request() -> None:
    plane = Plane()
    courier = Courier("i", plane.take)
    pieces = [*(events(f"r{number}", "x" * number) for number in range(5)), LogPiece(run="r1", offset=7, text="abc")]
    assert await asyncio.gather(*map(courier.take, pieces)) == [1, 2, 3, 4, 5, 10]
    assert len(plane.heard) == 1
    assert plane.heard[0].instance == "i"


async def test_a_refused_piece_is_refused_alone() -> None:
    plane = Plane()
    plane.refused = {"r1"}
    courier = Courier("i", plane.take)
    found = await asyncio.gather(*(courier.take(events(f"r{number}")) for number in range(3)), return_exceptions=True)
    assert [found[0], found[2]] == [0, 0]
    assert isinstance(found[1], ApiRefused)
    assert found[1].status == 422


async def test_a_request_that_is_too_much_is_sent_in_parts() -> None:
    plane = Plane()
    plane.error = ApiRefused("too large", status=413)
    courier = Courier("i", plane.take)
    assert await asyncio.gather(*(courier.take(events(f"r{number}", "x")) for number in range(3))) == [2, 2, 2]
    assert [len(one.events) for one in plane.heard] == [3, 1, 1, 1]


async def test_who_is_away_is_away_for_all() -> None:
    plane = Plane()
    plane.error = ApiAway("away")
    courier = Courier("i", plane.take)
    found = await asyncio.gather(*(courier.take(events(f"r{number}")) for number in range(2)), return_exceptions=True)
    assert all(isinstance(one, ApiAway) for one in found)
    plane.error = None
    assert await courier.take(events("r0", "x")) == 2


async def test_more_than_fits_goes_in_several_requests() -> None:
    plane = Plane()
    courier = Courier("i", plane.take)
    await asyncio.gather(
        *(courier.take(LogPiece(run=f"r{number}", offset=0, text="x" * 200_000)) for number in range(25))
    )
    assert len(plane.heard) == 3
    assert sum(len(one.logs) for one in plane.heard) == 25


async def test_forwarders_have_their_turn_together_and_at_once_if_hurried() -> None:
    courier = Courier("i", Plane().take)
    courier.pause_s = 0.3
    turns = [courier.turn() for _ in range(3)]

    async def woken(index: int) -> float:
        await asyncio.sleep(index * 0.02)
        await turns[index].wait()
        return time.monotonic()

    await turns[0].wait()
    at = await asyncio.gather(*map(woken, range(3)))
    assert max(at) - min(at) < 0.1
    courier.pause_s = 30.0
    asyncio.get_running_loop().call_later(0.01, courier.hurry)
    began = time.monotonic()
    await asyncio.gather(*(turn.wait() for turn in turns))
    assert time.monotonic() - began < 5
