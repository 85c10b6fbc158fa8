"""Takes what the forwarders of all runs have to tell to the control plane, in one request.

What a request costs there is nearly the same whether it tells of one run or of ten; so forwarders have their turns
together, as often as the control plane wants to hear.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from clonos.agent.client import ApiAway, ApiRefused
from clonos.agent.waiting import happens
from clonos.resources.hosts import EventsPiece, LogPiece, PieceTaken, Pushes, PushesTaken

_PAUSE_S: Final = 0.2
_GATHER_S: Final = 0.02
_MOST_CHARACTERS: Final = 2_000_000
_MOST_PIECES: Final = 1000
_TOO_MUCH: Final = frozenset({413, 422})


@dataclass(frozen=True)
class _Parcel:
    piece: EventsPiece | LogPiece
    taken: asyncio.Future[int]

    @property
    def size(self) -> int:
        piece = self.piece
        return len(piece.text) if isinstance(piece, LogPiece) else sum(len(line) + 1 for line in piece.lines)


class Turn:
    """When a forwarder looks for what is new: with all others, or at once.

    Args:
        delay: Seconds until all have their turn.
    """

    def __init__(self, delay: Callable[[], float]) -> None:
        self._delay = delay
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Have it at once."""
        self._hurried.set()

    async def wait(self) -> None:
        """Wait for it."""
        await happens(self._hurried, self._delay())
        self._hurried.clear()


class Courier:
    """Gathers and sends.

    Args:
        instance: Of this agent.
        send: Sends to the control plane.

    Attributes:
        pause_s: Between two turns, as the control plane says.
    """

    def __init__(self, instance: str, send: Callable[[Pushes], Awaitable[PushesTaken]]) -> None:
        self.pause_s = _PAUSE_S
        self._instance = instance
        self._send = send
        self._waiting: list[_Parcel] = []
        self._sending: asyncio.Task[None] | None = None
        self._turns: weakref.WeakSet[Turn] = weakref.WeakSet()
        self._phase = random.random()  # of all agents' turns, which are not to be in one moment

    def turn(self) -> Turn:
        """For one forwarder."""
        turn = Turn(lambda: self.pause_s * (1 - (time.monotonic() / self.pause_s + self._phase) % 1))
        self._turns.add(turn)
        return turn

    def hurry(self) -> None:
        """Something happened that the control plane waits for: have all look at once."""
        for turn in list(self._turns):
            turn.hurry()

    async def take(self, piece: EventsPiece | LogPiece) -> int:
        """Tell a piece; the offset up to which the control plane has it.

        Raises:
            ApiAway: Nobody answers.
            ApiRefused: It will not be taken.
        """
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Parcel(piece, taken))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name="courier")
        return await taken

    async def close(self) -> None:
        """Send nothing any more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while self._waiting:
            # Whoever was cancelled meanwhile tells nothing.
            waiting = [parcel for parcel in self._waiting if not parcel.taken.done()]
            size = 0
            parcels: list[_Parcel] = []
            for parcel in waiting[:_MOST_PIECES]:
                size += parcel.size
                if parcels and size > _MOST_CHARACTERS:
                    break
                parcels.append(parcel)
            self._waiting = waiting[len(parcels) :]
            if parcels:
                await self._deliver(parcels)

    async def _deliver(self, parcels: list[_Parcel]) -> None:
        events = [parcel for parcel in parcels if isinstance(parcel.piece, EventsPiece)]
        logs = [parcel for parcel in parcels if isinstance(parcel.piece, LogPiece)]
        pushes = Pushes.model_construct(
            instance=self._instance,
            events=cast("list[EventsPiece]", [parcel.piece for parcel in events]),
            logs=cast("list[LogPiece]", [parcel.piece for parcel in logs]),
        )
        try:
            answer = await self._send(pushes)
            if (len(answer.events), len(answer.logs)) != (len(events), len(logs)):
                raise ApiAway("The control plane answered for other pieces than were sent.")
        except asyncio.CancelledError:
            for parcel in parcels:
                parcel.taken.cancel()
            raise
        except Exception as error:
            if isinstance(error, ApiRefused) and error.status in _TOO_MUCH and len(parcels) > 1:
                for parcel in parcels:  # one that nobody takes must not hold up the others
                    await self._deliver([parcel])
                return
            for parcel in parcels:
                if not parcel.taken.done():
                    parcel.taken.set_exception(error)
            return
        for parcel, taken in zip([*events, *logs], [*answer.events, *answer.logs], strict=True):
            if not parcel.taken.done():
                _settle(parcel.taken, taken)


def _settle(future: asyncio.Future[int], taken: PieceTaken) -> None:
    if taken.offset is None:
        future.set_exception(ApiRefused(f"run {taken.run}: {taken.status} {taken.detail}", status=taken.status))
    else:
        future.set_result(taken.offset)
