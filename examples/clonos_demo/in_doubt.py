"""Kills a driver while an epoch is in doubt: at least one of its lanes is published, and it is not committed.

Such a kill makes duplicates without causal logging. The moment lasts some milliseconds, and nothing outside of the
driver can hit it by chance. So the demo freezes the driver after new output, reads the causal log, and lets the driver
continue unless the log shows such an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil

from clonos.deadline import Deadline
from clonos.log.control import ControlFollower
from clonos.log.reading import LogReader
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import ProcessGroup, pause_all

_WITHIN_S: Final = 15.0


class EpochInDoubt:
    """Freezes drivers of one job while an epoch is in doubt.

    Args:
        kafka: The Kafka cluster of the job's causal log.
        job: The job's name.
        await_output: Waits for a new record of the output, at most this number of seconds; returns whether one arrived.
    """

    def __init__(self, kafka: KafkaSettings, job: str, await_output: Callable[[float], bool]) -> None:
        self._reader = LogReader(kafka, log_topic(job))
        self._control = ControlFollower()
        self._await_output = await_output

    def freeze(self, driver: ProcessGroup) -> bool:
        """Stop all processes of a driver with SIGSTOP while an epoch is in doubt.

        Returns:
            Whether they are stopped. False: in 15 s there was no such moment, and they run.
        """
        deadline = Deadline(_WITHIN_S)
        while (left_s := deadline.left_s()) > 0:
            self._control.catch_up(self._reader)
            members = driver.members()
            if not self._await_output(left_s):
                return False
            pause_all(members)
            frozen = False
            try:
                frozen = self._exists()
            finally:
                if not frozen:
                    _resume(members)
            if frozen:
                return True
        return False

    def _exists(self) -> bool:
        state = self._control.catch_up(self._reader)
        for (sink, _), partition in state.lanes.items():
            epoch, tail = state.newest_plan(sink), self._reader.tail(partition)
            published = tail.marker.epoch if tail is not None and tail.marker is not None else -1
            if epoch > state.committed.get(sink, -1) and published == epoch:
                return True
        return False

    def close(self) -> None:
        """Close the Kafka consumer."""
        self._reader.close()


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()
