"""A driver that hangs (it lives, input waits, and no epoch ends) ends itself, with all that it has started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drivers import Feeder, JobRun

from clonos.errors import DriverHung
from clonos.settings import KafkaSettings
from observe import eventually

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


def test_a_driver_that_hangs_ends_with_all_it_has(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, out = make_topic(1), make_topic(1)
    Feeder(kafka, source, 1).burst(3)
    (tmp_path / "job.py").write_text(HANGS)
    run = JobRun(kafka, name, tmp_path, tmp_path / "job.py", {"input": source, "output": out}, {"stallTimeoutS": 4})
    driver = run.start()
    try:
        assert driver.wait() == DriverHung.exit_code, driver.tail()
        (failed,) = run.told("failed")
        assert failed["error"] == "driver-hung"
        assert "hangs" in failed["what"]
        eventually(lambda: not list(driver._session()), "its JVM and its Python workers end too", timeout_s=30)
    finally:
        run.end()
