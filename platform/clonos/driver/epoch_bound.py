"""How many records an epoch may read, where the user sets no limit.

Without a bound, the first epoch of a job on an old topic reads the whole topic: readers see nothing until it ends, and
a crash repeats all of it. The bound follows the measured speed, so that an epoch of a backlog takes some seconds, as
Spark's back-pressure for DStreams did, with a fixed target in place of the batch interval.
"""

from __future__ import annotations

from typing import Final

# Records of a source in the first epoch: also at 1,000 rows per second it ends within seconds.
FIRST_RECORDS: Final = 2_000
_TARGET_S: Final = 4.0  # the fixed cost of an epoch, some 0.1 s, is small against it
_TARGET_BYTES: Final = 256 * 1024 * 1024
_FASTEST_GROWTH: Final = 8.0
_FEWEST_RECORDS: Final = 100


class EpochBound:
    """The bound of one query's epochs. It grows while epochs are short, and shrinks when they are long.

    Attributes:
        records: Maximum number of records that each source reads in the next epoch.

    Example:
        >>> bound = EpochBound()
        >>> bound.update(read=2_000, seconds=0.5)
        True
        >>> bound.records
        16000
    """

    def __init__(self) -> None:
        self.records = FIRST_RECORDS

    def update(self, *, read: int, seconds: float, size: int = 0) -> bool:
        """Adapt the bound to an epoch that has ended; returns whether it changed.

        Args:
            read: Number of records that the epoch read.
            seconds: Duration of the epoch.
            size: Size of its output in bytes; 0: unknown.
        """
        limited = 2 * read >= self.records
        if not read or not (limited or seconds > _TARGET_S):
            return False
        factor = min(_TARGET_S / max(seconds, 0.001), _FASTEST_GROWTH)
        if size:
            factor = min(factor, _TARGET_BYTES / size)
        before = self.records
        # An epoch below the bound can only lower it.
        records = round(read * factor) if limited else min(before, round(read * factor))
        self.records = max(_FEWEST_RECORDS, records)
        return self.records != before
