"""Spares: drivers without a job that an agent keeps warm (`clonos.standby.spare`), and gives to runs that it starts.

They live and die with their agent, until one is given away: from then on it is a driver like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from clonos.agent.environment import spare_environment
from clonos.agent.priority import aside
from clonos.agent.process import DriverProcess, end_all, identity, launch
from clonos.agent.settings import AgentSettings
from clonos.standby.offers import LOG, Given, Offer

_log = structlog.get_logger("clonos.agent")
# Before another one is started in the place of one that was given away, so that the new driver has the machine for
# itself, or that ended, because the host may be out of memory.
_PAUSE_S: Final = 10.0
_LOOK_S: Final = 1.0
_WARM_S: Final = 300.0


@dataclass
class Spare:
    """One that was started.

    Attributes:
        name: What its processes have for a run in their environment.
        pid: Also the id of its session.
        identity: As `clonos.agent.process.identity`.
    """

    name: str
    folder: Path
    pid: int
    identity: str
    process: DriverProcess
    started: float
    offer: Offer | None = None
    was_ready: bool = False

    @property
    def ready(self) -> bool:
        """Whether it would take a run at once."""
        offer = None if self.process.exited else Offer.of(self.folder)
        if offer is not None:
            self.was_ready = True
            offer.drop()
        return offer is not None

    @property
    def stuck(self) -> bool:
        """Whether it does not get warm, or listens no more."""
        return not self.ready and (self.was_ready or time.monotonic() > self.started + _WARM_S)

    def give(self, given: Given) -> bool:
        """Have it be the driver of a run; whether it will be."""
        offer, self.offer = self.offer, None
        return offer is not None and offer.give(given)


class Pool:
    """Keeps as many spares as the settings say.

    Args:
        settings: The agent's.
        folder: Of all spares of this agent.
    """

    def __init__(self, settings: AgentSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._spares: list[Spare] = []
        self._not_before = 0.0

    def clear(self, used: set[str]) -> None:
        """End what an earlier agent left behind, except for these, which became drivers."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if folder.name not in used:
                    end_spare(self._folder, folder.name)

    async def keep(self, used: set[str]) -> None:
        """Start spares, and others for those that are given away or end, until cancelled.

        Args:
            used: Those of an earlier agent that became drivers; the others that it left are ended first.
        """
        await asyncio.to_thread(self.clear, used)
        while True:
            over = [one for one in self._spares if one.process.exited or one.stuck]
            # All at once: a run may take another one while these are ended.
            self._spares = [one for one in self._spares if one not in over]
            for one in over:
                _log.warning("spare-ended", pid=one.pid, exit_code=one.process.exit_code)
                self._not_before = time.monotonic() + _PAUSE_S
                one.process.leave()
                await asyncio.to_thread(self.end, one)
            warming = self.ready < len(self._spares)  # one after the other
            wanted = len(self._spares) < self._settings.spares and not warming
            if wanted and time.monotonic() >= self._not_before:
                self._start()
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """End all that are left, at once."""
        left, self._spares = self._spares, []
        for one in left:
            one.process.leave()
        await asyncio.gather(*(asyncio.to_thread(self.end, one) for one in left))

    @property
    def ready(self) -> int:
        """How many would take a run at once."""
        return sum(one.ready for one in self._spares)

    def take(self) -> Spare | None:
        """One that is ready, which is not the pool's any more; None: there is none."""
        for one in self._spares:
            offer = None if one.process.exited else Offer.of(one.folder)
            if offer is not None:
                self._spares.remove(one)
                self._not_before = time.monotonic() + _PAUSE_S
                one.process.leave()
                one.offer = offer
                return one
        return None

    def end(self, spare: Spare) -> None:
        """End one; not in the event loop."""
        if spare.offer is not None:
            spare.offer.drop()
        end_spare(self._folder, spare.name, spare.pid, spare.identity)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(spare.pid, os.WNOHANG)

    def end_rest(self, spare: str) -> int:
        """End whatever is left of one that became a driver, which has ended; how many processes.

        Raises:
            TimeoutError: Some would not go: the run is not over yet.
        """
        killed = end_all(spare, None, "")
        shutil.rmtree(self._folder / spare, ignore_errors=True)
        return killed

    def _start(self) -> None:
        settings, name = self._settings, f"spare-{secrets.token_hex(8)}"
        folder = self._folder / name
        scratch = folder / "tmp"
        says = {"{folder}": str(folder), "{agent}": str(os.getpid())}
        try:
            scratch.mkdir(parents=True)
            self._folder.chmod(0o711)
            (folder / LOG).touch(mode=0o600)
            for one in (folder / LOG, scratch, folder):
                if one.is_dir():
                    one.chmod(0o700)
                if settings.uid is not None:
                    os.chown(one, settings.uid, settings.gid if settings.gid is not None else -1)
            pid = launch(
                [says.get(part, part) for part in settings.spare_command],
                directory=folder,
                environment=spare_environment(settings, name, folder, scratch),
                log=folder / LOG,
                uid=settings.uid,
                gid=settings.gid,
            )
            aside(pid)
            born = identity(pid) or ""
            process = DriverProcess(pid, born, lambda: None)
        except OSError as error:
            _log.error("spare-not-started", why=str(error))
            self._not_before = time.monotonic() + _PAUSE_S
            end_spare(self._folder, name)
            return
        self._spares.append(Spare(name, folder, pid, born, process, time.monotonic()))
        _log.info("spare-started", pid=pid)


def end_spare(folder: Path, name: str, pid: int | None = None, born: str = "") -> int:
    """End all processes of a spare, and remove its folder; how many there were."""
    killed = 0
    with contextlib.suppress(OSError):  # the next agent tries again
        killed = end_all(name, pid, born)
        shutil.rmtree(folder / name, ignore_errors=True)
    return killed
