"""The Spark plugin that fails repeated tasks of an epoch, on a session that repeats them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.java import java_home

pytestmark = pytest.mark.full

PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import clonos
from clonos.causal.epoch_scope import PROPERTY
from clonos.carried_errors import uncarry_failure

spark = SparkSession.builder.master("local[1,2]").config(map={**clonos.spark_conf(), "spark.ui.enabled": "false"})
context = spark.getOrCreate().sparkContext

def fail_once(file):
    if not Path(file).exists():
        Path(file).touch()
        raise ValueError("the first attempt")
    return file

for number, epoch in enumerate((None, "{}")):
    context.setLocalProperty(PROPERTY, epoch)
    try:
        context.parallelize([sys.argv[1] + str(number)], 1).map(fail_once).collect()
        print("finished")
    except Exception as failure:
        print(type(uncarry_failure(failure)).__name__, "Spark repeated a task of the epoch." in str(failure))
"""


def test_a_repeated_task_of_an_epoch_fails(tmp_path: Path) -> None:
    """The task neither reads a source, nor calls a service, nor publishes; outside of an epoch Spark may repeat it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "tried")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**environment, "JAVA_HOME": java_home(tmp_path / "java"), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.stdout.splitlines() == ["finished", "EpochFailed True"], done.stderr[-3000:]
