"""Spark's JVM as we start it: a session reads Kafka and keeps state, and the JVM never outlives Python."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings
from clonos.spark.internals import jvm_of, set_login_user
from clonos.spark.session import has_account
from clonos.testing.harness import Deadline

_SESSION = """
import os
import sys
import pandas as pd
from confluent_kafka import Producer
from pyspark.sql.functions import col, pandas_udf
from clonos.spark.session import build_session
from clonos.kafka import client_config, spark_options
from clonos.settings import Settings

topic, folder = sys.argv[1:]
kafka = Settings().kafka
producer = Producer(client_config(kafka))
for number in range(30):
    producer.produce(topic, str(number))
producer.flush(20)

with build_session("test", master="local[2]") as session:
    @pandas_udf("long")
    def third(values: pd.Series) -> pd.Series:
        return values.astype("int64") % 3

    spark, found = session.spark, {}
    source = spark.readStream.format("kafka").options(**spark_options(kafka)).option("subscribe", topic)
    rows = source.option("startingOffsets", "earliest").load()
    counted = rows.groupBy(third(col("value").cast("string")).alias("key")).count()
    def write(frame, epoch):
        found.update({row["key"]: row["count"] for row in frame.collect()})
    query = counted.writeStream.outputMode("update").option("checkpointLocation", folder).foreachBatch(write)
    query.trigger(availableNow=True).start().awaitTermination(300)
    assert found == {0: 10, 1: 10, 2: 10}, found
    kept = os.listdir(os.environ["TMPDIR"])
    for kind in ("blockmgr-", "librocksdbjni", "spark-"):
        assert any(name.startswith(kind) for name in kept), (kind, kept)
assert not session.gateway.running
"""

_HADOOP_UMASK = 0o022  # Hadoop's default; it ignores the umask of the process

_GATEWAY = """
import sys
from clonos.embedded.jars import ensure_jars
from clonos.spark.jvm import launch_gateway
from clonos.settings import Settings
from clonos.testing.harness import Deadline
gateway = launch_gateway(ensure_jars(Settings()))
print(gateway.pid, flush=True)
input()
"""


@pytest.mark.turn
def test_a_session_reads_kafka_calls_python_and_keeps_state(
    kafka: KafkaSettings, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    environment = {**os.environ, "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    # Checkpoint files must not start a process: Hadoop would run this failing chmod to set permissions.
    tools, called = tmp_path / "tools", tmp_path / "called"
    tools.mkdir()
    (tools / "chmod").write_text(f"#!/bin/sh\ntouch {called}\nexit 1\n")
    (tools / "chmod").chmod(0o755)
    # Spark's temporary files go to this directory; its path is too long for sockets.
    scratch = tmp_path / ("long" * 20)
    scratch.mkdir()
    environment["TMPDIR"] = str(scratch)
    environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-c", _SESSION, make_topic(2), str(tmp_path / "checkpoint")]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, umask=0o027)
    assert answer.returncode == 0, answer.stderr
    assert not called.exists()
    assert stat.S_IMODE((tmp_path / "checkpoint" / "offsets" / "0").stat().st_mode) == 0o644 & ~_HADOOP_UMASK


def test_the_jvm_ends_when_python_is_killed() -> None:
    ensure_jars(Settings())
    with subprocess.Popen(
        [sys.executable, "-c", _GATEWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as python:
        assert python.stdout is not None
        jvm = psutil.Process(int(python.stdout.readline()))
        python.send_signal(signal.SIGKILL)
    deadline = Deadline(20)
    while jvm.is_running() and jvm.status() != psutil.STATUS_ZOMBIE:
        if deadline.passed():
            jvm.kill()
            pytest.fail("the JVM outlived Python")
        time.sleep(0.02)


def test_a_user_without_an_account_can_use_file_systems(spark: SparkSession) -> None:
    """Such as the users of `clonos agent --uids`. Hadoop asks the operating system for the user's name otherwise."""
    users: Any = jvm_of(spark).org.apache.hadoop.security.UserGroupInformation
    before = users.getLoginUser()
    try:
        set_login_user("uid-20000")
        assert users.getLoginUser().getShortUserName() == "uid-20000"
        assert spark.range(3).count() == 3
    finally:
        users.setLoginUser(before)
    assert has_account(os.getuid())
    assert not has_account(2**31 - 7)
