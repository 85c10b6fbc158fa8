"""Waiting time of readers after a kill -9 of a whole job that is started again at once."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Final

from bench.outages.flow import Load, Reader, verdict
from bench.outages.takeovers import ON_ITS_WAY_S, quantiles
from bench.progress import log_progress
from bench.subjects import Subject, make_topic, running_driver
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually

_SETTLE_S: Final = 10.0
_TIMEOUT_S: Final = 180.0


def measure(subject: Subject, kafka: KafkaSettings, home: Path, *, kills: int) -> dict[str, Any]:
    """Kill a job `kills` times under 200 records/s.

    Returns:
        The gaps in seconds, from the kill to the next committed record, and the comparison of output and input.
    """
    source = make_topic(kafka, "in")
    with running_driver(subject, kafka, home, source) as run:
        load, reader = Load(kafka, source), Reader(kafka, run.output)
        gaps: list[float] = []
        try:
            reader.after(0.0)
            for number in range(kills):
                time.sleep(_SETTLE_S + random.random())
                moment = run.restart()
                gaps.append(reader.after(moment + ON_ITS_WAY_S) - moment)
                log_progress(f"{subject}, kill {number + 1} of {kills}: {gaps[-1]:.2f} s")
            load.close()
            eventually(lambda: len(reader.numbers) >= load.sent, "all of it is published", timeout_s=_TIMEOUT_S)
            time.sleep(1.0)  # a second publication would arrive in this time
        finally:
            load.close()
            reader.close()
    return {**quantiles(gaps), **verdict(reader.rows, load.sent)}
