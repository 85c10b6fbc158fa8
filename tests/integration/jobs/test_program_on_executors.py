"""Lanes in the executors of a Spark cluster: processes of their own, which are killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from support.standalone import StandaloneCluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(3000)]

PROGRAM = Path(__file__).with_name("program_on_executors.py")
RECORDS = 4_000
PARTITIONS = 5
FINISHED = 800  # records of the epochs before the one that waits


def test_an_executor_is_killed_and_every_record_is_published_once(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Spark repeats the tasks of a lost executor by itself. Then the epoch fails, and a new owner replays it."""
    source, out = make_topic(PARTITIONS, "in"), make_topic(2, "out")
    producer = Producer(client_config(kafka))
    for number in range(RECORDS):
        producer.produce(source, f"{number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    (tmp_path / "cluster").mkdir()
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        output, waits = tmp_path / "output", tmp_path / "waits"
        arguments = (cluster.master, name, source, out, str(tmp_path / "checkpoint"), str(waits))
        environment = {
            # Not the gateway of this process's session.
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))},
            **cluster.environment,
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "PYSPARK_PYTHON": sys.executable,
        }
        with output.open("w") as file:
            program = subprocess.Popen(
                [sys.executable, str(PROGRAM), *arguments], stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        try:
            eventually(
                lambda: program.poll() is not None or (waits.exists() and len(read_committed(kafka, out)) > FINISHED),
                "a task waits, and another lane of its epoch is published",
                timeout_s=180,
                details=lambda: output.read_text()[-3_000:],
            )
            assert program.poll() is None, output.read_text()[-3_000:]
            cluster.kill_executor(int(waits.read_text()))
            assert program.wait(240) == 0, output.read_text()[-3_000:]
        finally:
            program.kill()
            program.wait(30)
    records = read_committed(kafka, out)
    assert Counter(record.value() for record in records) == Counter(f"{number}".encode() for number in range(RECORDS))
    for key in range(PARTITIONS):
        numbers = [int(record.value() or b"") for record in records if record.key() == f"{key}".encode()]
        assert numbers == sorted(numbers)
    replays = re.findall(r"^epoch [0-9]+ True ([0-9]+)$", output.read_text(), re.MULTILINE)
    assert max(map(int, replays), default=0) > 0, "an epoch was replayed after some of its lanes were published"
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")
