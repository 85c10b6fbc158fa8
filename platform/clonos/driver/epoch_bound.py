"""How many records an epoch may read, where the user sets no limit.

Without a bound, the first epoch of a job on an old topic reads the whole topic: readers see nothing until it ends, and
a crash repeats all of it. The bound follows the measured speed, so that an epoch of a backlog takes some seconds, as
Spark's back-pressure for DStreams did, with a fixed target instead of the batch interval.

The first epoch of a later start is short: readers wait for it, and all records since a failure wait too.
"""

from __future__ import annotations

from typing import Final

# Records of a source in the first epoch: also at 1,000 rows per second it ends within seconds.
_FIRST_RECORDS: Final = 2_000
_FIRST_S: Final = 0.25  # duration of the first epoch, if the job's speed is known
_LONGEST_FIRST_S: Final = 60.0
_TARGET_S: Final = 4.0  # the fixed cost of an epoch, some 0.1 s, is small against it
_SHARE_OF_INTERVAL: Final = 0.8  # Spark starts the next epoch late if one takes longer than the interval
_TARGET_BYTES: Final = 256 * 1024 * 1024
_FASTEST_GROWTH: Final = 8.0
_FEWEST_RECORDS: Final = 100


def first_records(interval_s: float) -> int:
    """Maximum number of records that each source reads in the first epoch, with this interval of the trigger.

    A long interval allows for a minute's records: the speed of the job is not known yet.
    """
    return round(_FIRST_RECORDS * min(max(1.0, interval_s), _LONGEST_FIRST_S))


class EpochBound:
    """The bound of one query's epochs. It grows while epochs are short, and shrinks when they are long.

    Args:
        interval_s: The trigger's interval in seconds, 0 without one. An epoch has all records of its interval.
        speed: Records per second that the query read from each source before this start, so that its first epoch is
            short; None: unknown, or no reader waits for the first epoch.

    Attributes:
        records: Maximum number of records that each source reads in the next epoch.

    Example:
        >>> bound = EpochBound()
        >>> bound.update(read=2_000, seconds=0.5)
        True
        >>> bound.records
        16000
    """

    def __init__(self, interval_s: float = 0.0, speed: float | None = None) -> None:
        self._usual = self.records = first_records(interval_s)
        self._is_short = speed is not None and speed * _FIRST_S < self._usual
        if speed is not None and self._is_short:
            self.records = max(1, round(speed * _FIRST_S))
        self._target_s = max(_TARGET_S, _SHARE_OF_INTERVAL * interval_s)

    def update(self, *, read: int, seconds: float, size: int = 0) -> bool:
        """Adapt the bound to an epoch that has ended; returns whether it changed.

        Args:
            read: Number of records that the epoch read.
            seconds: Duration of the epoch.
            size: Size of its output in bytes; 0: unknown.
        """
        limited = 2 * read >= self.records
        if not read:
            return False
        if self._is_short:
            return self._end_of_short_epoch(read=read if limited else None, seconds=seconds)
        if not (limited or seconds > self._target_s):
            return False
        factor = min(self._target_s / max(seconds, 0.001), _FASTEST_GROWTH)
        if size:
            factor = min(factor, _TARGET_BYTES / size)
        before = self.records
        # An epoch below the bound can only lower it.
        records = round(read * factor) if limited else min(before, round(read * factor))
        self.records = max(_FEWEST_RECORDS, records)
        return self.records != before

    def _end_of_short_epoch(self, *, read: int | None, seconds: float) -> bool:
        """Continue as after any start, but with a backlog (`read` is not None) at the speed of the short epoch."""
        self._is_short, before = False, self.records
        records = self._usual if read is None else round(read * self._target_s / max(seconds, 0.001))
        self.records = min(max(_FEWEST_RECORDS, records), self._usual)
        return self.records != before
