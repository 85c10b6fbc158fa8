"""How long records take from the producer to the read_committed reader, with the kills."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from clonos_demo.evidence import Published, Sent, SourcePosition, decode_sourced

_BARS = "▁▂▃▄▅▆▇█"
_PROMPT_S = 1.0
_DECADES = 4  # of the bars: from 1 ms to 10 s


@dataclass(frozen=True, slots=True)
class Latencies:
    """The records of one run that were published.

    The figures leave out records that were on their way during the start or a gap, which lasts from a kill to the next
    driver's first record; and those sent before the job has caught up: until a record takes less than a second again.
    """

    taken: Sequence[
        tuple[float, float]
    ] = ()  # when a record was sent, on the monotonic clock, and its latency in seconds
    gaps: Sequence[tuple[float, float]] = ()  # begin and end of each gap

    @classmethod
    def of(cls, sent: Iterable[Sent], published: Iterable[Published], gaps: Sequence[tuple[float, float]]) -> Self:
        """Compare the input with the watched output, whose records name their source records."""
        arrived: dict[SourcePosition, float] = {}
        for record in published:
            if (value := decode_sourced(record.value)) is not None:
                arrived.setdefault(value.position, record.arrived)
        return cls([(each.at, arrived[each.position] - each.at) for each in sent if each.position in arrived], gaps)

    def _steady(self) -> list[float]:
        started = min((at for at, _ in self.taken), default=0.0)
        behind = [(begin, self._caught_up(end)) for begin, end in ((started, started), *self.gaps)]
        return sorted(
            took for at, took in self.taken if not any(at < end and at + took >= begin for begin, end in behind)
        )

    def _caught_up(self, moment: float) -> float:
        """Return when the first prompt record after a moment was sent; infinite if there is none."""
        return min((at for at, took in self.taken if at >= moment and took < _PROMPT_S), default=math.inf)

    def as_json(self) -> dict[str, Any]:
        """Median and 99th percentile in milliseconds, and the number of records; without records None."""
        steady = [1000 * took for took in self._steady()]
        if not steady:
            return {"p50": None, "p99": None, "n": 0}
        p99 = steady[min(len(steady) - 1, int(0.99 * len(steady)))]
        return {"p50": round(statistics.median(steady), 1), "p99": round(p99, 1), "n": len(steady)}

    def drawn(self, width: int) -> tuple[str, str]:
        """Draw the longest latency over the run, and below it the kills, each in at most `width` characters.

        A bar is a part of the time, on a logarithmic scale from 1 ms to 10 s; a part without records has none.
        """
        if not self.taken:
            return "", ""
        first = min(at for at, _ in self.taken)
        last = max(at for at, _ in self.taken)
        part_s = max((last - first) / (width - 1), 1.0)
        cells = int((last - first) / part_s) + 1
        longest = [0.0] * cells
        for at, took in self.taken:
            cell = int((at - first) / part_s)
            longest[cell] = max(longest[cell], took)
        marks = [" "] * cells
        for begin, _ in self.gaps:
            if first <= begin <= last:
                marks[int((begin - first) / part_s)] = "✝"
        return "".join(map(_bar, longest)), "".join(marks).rstrip()


def _bar(seconds: float) -> str:
    if not seconds:
        return " "
    share = math.log10(max(1.0, 1000 * seconds)) / _DECADES
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
