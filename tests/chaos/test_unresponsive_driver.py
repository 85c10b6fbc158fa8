"""A driver whose epoch does not end while input waits exits by itself, with everything it started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from drivers import Feeder, JobRun

from clonos.errors import DriverUnresponsive
from clonos.settings import KafkaSettings

HANGS = """
import time
from pyspark.sql import functions as F
import clonos

@clonos.udf("string")
def hang(word):
    time.sleep(600)
    return word

@clonos.job(name="overwritten")
def job(ctx):
    words = ctx.source(ctx.params["input"]).select(hang(F.col("value").cast("string")).alias("value"))
    ctx.sink(words, topic=ctx.params["output"], name="hangs")
"""


@pytest.mark.chaos(fault="endless user code", target="driver", topology="clonos run")
def test_an_unresponsive_driver_exits_with_its_processes(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, out = make_topic(1), make_topic(1)
    Feeder(kafka, source, 1).burst(3)
    (tmp_path / "job.py").write_text(HANGS)
    run = JobRun(kafka, name, tmp_path, tmp_path / "job.py", {"input": source, "output": out}, {"stallTimeout": "4s"})
    driver = run.start()
    try:
        assert driver.wait() == DriverUnresponsive.exit_code, driver.tail()
        (failed,) = run.events_of("failed")
        assert failed["error"] == "driver-unresponsive"
        assert "hangs" in failed["what"]
        driver.await_exit(30)  # its JVM and its Python workers too
    finally:
        run.end()
