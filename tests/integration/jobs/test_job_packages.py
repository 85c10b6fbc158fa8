"""`clonos run` with packages of the job's own: driver and workers use them, and two jobs use different versions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from clonos.errors import PackagesInvalid, SpecError
from clonos.jobs.packages import LOCK
from clonos.kafka import client_config, produce
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed
from support.wheels import only_from, wheel

JOB = """
import greeting
from pyspark.sql import functions as F
import clonos

in_driver = greeting.VERSION

@clonos.udf("string")
def used(value):
    import greeting as in_worker
    return in_worker.VERSION

@clonos.job(name="{name}", trigger={{"availableNow": True}})
def go(ctx):
    value = F.concat(used("value"), F.lit(f" {{in_driver}}"))
    ctx.sink(ctx.source("{source}").select(value.alias("value")), topic="{out}")
"""


def run(folder: Path, kafka: KafkaSettings, home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "CLONOS_HOME": str(home),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        **only_from(home / "wheels"),
    }
    command = [sys.executable, "-m", "clonos", "run", str(folder), "--plain", *more]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240)


def write(folder: Path, name: str, source: str, out: str, lock: str) -> Path:
    folder.mkdir()
    (folder / "job.py").write_text(JOB.format(name=name, source=source, out=out))
    (folder / LOCK).write_text(lock)
    return folder


@pytest.mark.turn
def test_two_jobs_with_two_versions_of_a_package(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source = make_topic(1, "in")
    producer = Producer(client_config(kafka))
    produce(producer, source, b"x")
    assert producer.flush(30) == 0
    for version in ("1.0", "2.0"):
        out = make_topic(1, "out")
        lock = wheel(tmp_path / "wheels", "greeting", version)
        folder = write(tmp_path / version, f"{name}-{version[0]}", source, out, lock)
        ran = run(folder, kafka, tmp_path)
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert [message.value() for message in read_committed(kafka, out)] == [f"{version} {version}".encode()]


@pytest.mark.turn
def test_packages_that_cannot_be_used_are_refused(kafka: KafkaSettings, name: str, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    bad = write(tmp_path / "bad", name, "in", "out", f"greeting==1.0 --hash=sha256:{'0' * 64}")
    refused = run(bad, kafka, tmp_path)
    assert refused.returncode == PackagesInvalid.exit_code, refused.stderr
    assert "uv: " in refused.stderr
    empty = write(tmp_path / "empty", name, "in", "out", "# nothing")
    text = (empty / "job.py").read_text().replace("import greeting\n", "").replace("greeting.VERSION", "''")
    (empty / "job.py").write_text(text)
    on_cluster = run(empty, kafka, tmp_path, "--conf", "spark.master=spark://127.0.0.1:9")
    assert on_cluster.returncode == SpecError.exit_code, on_cluster.stderr
    assert "clonos cluster environment" in on_cluster.stderr
