"""Jobs of `clonos run` on a Spark cluster that authenticates: their code, what is refused, and repeated tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from clonos.errors import CheckpointUnwritable, RecordRejected, SessionIncompatible
from clonos.jobs.cluster import SECRET_VARIABLE, ClusterReport
from clonos.kafka import client_config
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import end_offsets, eventually, read_committed
from support.standalone import StandaloneCluster

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("program_on_cluster.py")
PARTITIONS = 3

LABELS = """
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
import clonos
import labels

@clonos.udf(StringType())
def labelled(value: bytes) -> str:
    return labels.label(value.decode())

@clonos.job(name="{name}", trigger={{"available_now": True}}, executor={{"memory": "600m"}})
def job(ctx):
    lines = ctx.source("{source}")
    ctx.sink(lines.select("key", labelled("value").alias("value")), topic="{out}")
"""
MODULE = """
import time
from pathlib import Path
FOLDER = Path(__file__).parent
WORD = (FOLDER / "word.txt").read_text()

def label(text: str) -> str:
    return f"{WORD} {text} {time.tzname[0]} {FOLDER}"
"""
# The interpreter, and where its packages and its standard library are.
WHERE = """
import os, sys
import clonos, pandas, pyarrow

def label(text: str) -> str:
    return " ".join([sys.executable, sys.prefix, clonos.__file__, pandas.__file__, pyarrow.__file__, os.__file__])
"""
# A count by key. Once, the map task of one partition waits; the last one's task writes its process id.
COUNTS = """
import os, signal
from pathlib import Path
from pyspark.sql import functions as F
import clonos

@clonos.job(name="{name}", trigger={{"available_now": True}}, executor={{"memory": "600m"}})
def job(ctx):
    waits = Path(ctx.params["waits"])

    @F.udf("string")
    def wait_once(key: bytes) -> str:
        if key == b"0" and not waits.exists():
            waits.write_text(str(os.getpid()))
            signal.pause()
        elif key == b"2" and not waits.with_name("last").exists():
            waits.with_name("last").write_text(str(os.getpid()))
        return key.decode()

    lines = ctx.source("{source}").select(wait_once("key").alias("key"))
    counts = lines.groupBy("key").count()
    ctx.sink(counts.select("key", F.col("count").cast("string").alias("value")), topic="{out}", mode="update")
"""
# Each row is the input's row, made longer, several times.
ATOMIC = """
from pyspark.sql import functions as F
import clonos

@clonos.job(
    name="{name}",
    trigger={{"available_now": True}},
    driver={{"memory": "512m"}},
    executor={{"memory": "600m"}},
    delivery="atomic-epoch",
)
def job(ctx):
    length, copies = int(ctx.params["length"]), int(ctx.params["copies"])
    lines = ctx.source("{source}").withColumn("copy", F.explode(F.sequence(F.lit(1), F.lit(copies))))
    ctx.sink(lines.select("key", F.rpad(F.col("value").cast("string"), length, ".").alias("value")), topic="{out}")
"""
# In every partition but the first: a worker is lost once another lane is published.
LOSES = """
import clonos
import lost

@clonos.udf("string")
def losing(value: bytes, partition: int, flag: str, out: str) -> str:
    lost.lose_worker_once(flag, out, partition)
    return value.decode()

@clonos.job(name="{name}", trigger={{"available_now": True}}, executor={{"memory": "600m"}})
def job(ctx):
    from pyspark.sql import functions as F
    lines = ctx.source("{source}")
    value = losing("value", "partition", F.lit(ctx.params["flag"]), F.lit("{out}"))
    ctx.sink(lines.select("key", value.alias("value")), topic="{out}")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")  # of the workers; drivers have another one
        patch.setenv("LC_ALL", "C")
        with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
            yield cluster


class OneJob:
    """A job in a folder of its own, with its topics, on the cluster.

    Attributes:
        name: The job's name.
        folder: The folder of the job file.
        environment: Environment variables of the driver.
        described: Whether the run has a cluster file.
        params: The job's parameters.
        settings: Fields of the cluster file, besides the master.
    """

    def __init__(self, cluster: StandaloneCluster, kafka: KafkaSettings, name: str, source: str, out: str, tmp: Path):
        self._cluster = cluster
        self._kafka = kafka
        self._names = {"name": name, "source": source, "out": out}
        self._tmp = tmp
        self.name = name
        self.out = out
        self.folder = tmp / "job"
        self.folder.mkdir()
        self.environment: dict[str, str] = {SECRET_VARIABLE: cluster.spark.secret}
        self.described = True
        self.params = {"waits": str(tmp / "waits")}
        self.settings: dict[str, Any] = {"authSecret": "spark", "sharedLocations": [f"file://{tmp}"]}

    def write(self, job: str, **files: str) -> None:
        """Write the job file and other files."""
        for file, text in {"job.py": job, **files}.items():
            filled = text.format(**self._names) if file == "job.py" else text
            (self.folder / file.replace("__", ".")).write_text(filled)

    def start(self) -> subprocess.Popen[str]:
        """Start the driver."""
        description = {"metadata": {"name": "east"}, "spec": {"master": self._cluster.master, **self.settings}}
        arguments = {
            "job": str(self.folder / "job.py"),
            "params": self.params,
            "checkpoint": f"file://{self._tmp}/checkpoint",
            "events": str(self._tmp / "events"),
            "conf": {} if self.described else {"spark.master": self._cluster.master},
            "cluster": description if self.described else None,
        }
        environment = {
            # Not the gateway of this process's session.
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))},
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": self._kafka.bootstrap_servers,
            "TZ": "Europe/Berlin",
            **self.environment,
        }
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self) -> tuple[int, str]:
        """Run the job to its end; returns exit code and error output."""
        with self.start() as driver:
            _, errors = driver.communicate(timeout=300)
        return driver.returncode, errors

    def events(self) -> list[dict[str, Any]]:
        """The events so far."""
        return [json.loads(line) for line in (self._tmp / "events").read_text().splitlines()]

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event for event in self.events() if event["event"] == kind]

    def values(self) -> list[str]:
        """The published values."""
        return [(record.value() or b"").decode() for record in read_committed(self._kafka, self.out)]


@pytest.fixture
def one_job(
    cluster: StandaloneCluster, kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> OneJob:
    source, out = make_topic(PARTITIONS, "in"), make_topic(2, "out")
    producer = Producer(client_config(kafka))
    for number in range(30):
        partition = number % PARTITIONS
        producer.produce(source, f"{number}".encode(), key=f"{partition}".encode(), partition=partition)
    assert producer.flush(30) == 0
    return OneJob(cluster, kafka, name, source, out, tmp_path)


def test_modules_and_data_files_beside_the_job_reach_the_executors(one_job: OneJob) -> None:
    one_job.write(LABELS, labels__py=MODULE, word__txt="hello")
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    words = [value.split(" ") for value in one_job.values()]
    assert Counter(tuple(word[:2]) for word in words) == Counter(("hello", f"{n}") for n in range(30))
    assert {zone for _, _, zone, _ in words} == {"UTC"}, "neither the workers' nor the driver's zone"
    folders = {folder for _, _, _, folder in words}
    assert not any(Path(folder).is_relative_to(one_job.folder) for folder in folders), "the driver's folder was used"
    (session,) = [event for event in one_job.events() if event["event"] == "session"]
    assert session["cluster"] == "east"
    assert session["application_id"].startswith("app-")
    assert one_job.environment[SECRET_VARIABLE] not in json.dumps(one_job.events())


def test_a_master_on_this_machine_needs_no_cluster_file(one_job: OneJob, tmp_path: Path) -> None:
    """A probe decides whether the executors see the checkpoint."""
    one_job.described = False
    (tmp_path / "waits").touch()
    one_job.write(COUNTS)
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    assert Counter(one_job.values()) == {f"{30 // PARTITIONS}": PARTITIONS}


def test_a_package_that_executors_lack_is_named(one_job: OneJob, tmp_path: Path) -> None:
    only_here = tmp_path / "only-here"
    info = only_here / "rarity-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rarity\nVersion: 1.0\n")
    (only_here / "rarity.py").write_text("")
    one_job.environment["PYTHONPATH"] = str(only_here)
    one_job.write("import rarity\n" + LABELS, labels__py=MODULE, word__txt="hello")
    code, errors = one_job.run()
    assert code == SessionIncompatible.exit_code, errors[-3000:]
    assert "cannot import rarity" in errors
    assert "Executor 0 on 127.0.0.1" in errors
    assert not one_job.values()


def test_an_environment_is_unpacked_on_each_executor(one_job: OneJob, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport WORD_OF_ARCHIVE=packed\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    one_job.settings["environment"] = f"file://{tmp_path}/environment.tar.gz"
    one_job.write(LABELS, labels__py='import os\ndef label(text):\n    return os.environ["WORD_OF_ARCHIVE"]\n')
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    assert Counter(one_job.values()) == {"packed": 30}


def test_a_built_environment_runs_the_job(one_job: OneJob, tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    one_job.write(LABELS, labels__py=WHERE)
    command = [sys.executable, "-m", "clonos", "cluster", "environment", str(archive), "--job", str(one_job.folder)]
    built = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr
    print(built.stdout)  # its size and duration
    one_job.settings["environment"] = archive.as_uri()
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    values = one_job.values()
    assert len(values) == 30
    for place in map(Path, {place for value in values for place in value.split(" ")}):
        assert "environment" in place.parts
        assert not place.is_relative_to(sys.prefix)
        assert not place.is_relative_to(sys.base_prefix)


def test_a_missing_interpreter_is_named(one_job: OneJob) -> None:
    one_job.settings["python"] = "/no/such/python"
    one_job.write(COUNTS)
    code, errors = one_job.run()
    assert code == SessionIncompatible.exit_code, errors[-3000:]
    assert "on 127.0.0.1 could not run Python" in errors
    assert "/no/such/python" in errors


def test_a_checkpoint_on_the_drivers_disk_is_refused(one_job: OneJob) -> None:
    one_job.settings["sharedLocations"] = ["file:///mnt/elsewhere"]
    one_job.write(COUNTS)
    code, errors = one_job.run()
    assert code == CheckpointUnwritable.exit_code, errors[-3000:]
    assert "choose a checkpoint below file:///mnt/elsewhere" in errors


def test_passwords_are_refused_without_encryption(one_job: OneJob) -> None:
    del one_job.settings["authSecret"]
    one_job.environment = {"CLONOS_REGISTRY__PASSWORD": "p"}
    one_job.write(COUNTS)
    code, errors = one_job.run()
    assert code == SessionIncompatible.exit_code, errors[-3000:]
    assert "CLONOS_REGISTRY__PASSWORD would travel" in errors


@pytest.mark.turn(4)
def test_a_repeated_map_task_fails_its_epoch_whole(one_job: OneJob, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Spark repeats map tasks of a lost executor, also finished ones. They neither publish nor call a service."""
    one_job.write(COUNTS)
    waits, last = tmp_path / "waits", tmp_path / "last"
    with one_job.start() as driver:
        try:
            # The other executor has one core: when it runs the last map task, it has finished the one before.
            eventually(lambda: waits.exists() and last.exists(), "a map task waits, one ran, one runs", timeout_s=300)
            reported = eventually(lambda: one_job.events_of("executors"), "the executors are reported")[0]
            assert (reported["wanted"], reported["registered"]) == (2, 2)
            log = httpx.get(reported["executors"][0]["stderr"], timeout=30)
            assert (log.status_code, "executorId" in str(log.url)) == (200, True), "their worker serves their logs"
            cluster.kill_executor(int(last.read_text()))
            _, errors = driver.communicate(timeout=300)
        finally:
            driver.kill()
    assert driver.returncode == 0, errors[-3000:]
    restarts = [event for event in one_job.events() if event["event"] == "restart"]
    assert "Spark repeated a task of the epoch." in restarts[0]["what"]
    epochs = [event for event in one_job.events() if event["event"] == "epoch"]
    assert [event["replay"] for event in epochs[:1]] == [True]
    assert Counter(one_job.values()) == Counter([f"{30 // PARTITIONS}"] * PARTITIONS)


@pytest.mark.turn(4)
def test_the_driver_publishes_an_atomic_epoch(one_job: OneJob, kafka: KafkaSettings, tmp_path: Path) -> None:
    """It fails after the commit of the transaction: the replay only compares its rows."""
    one_job.write(ATOMIC)
    one_job.params = {"length": "6", "copies": "1"}
    # Lanes that executors publish do not reach this point.
    one_job.environment |= {"CLONOS_FAULT": "lane-committed:raise", "CLONOS_FAULT_LOG": str(tmp_path / "faults")}
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    assert Counter(one_job.values()) == Counter(f"{number}".ljust(6, ".") for number in range(30))
    assert len(one_job.events_of("restart")) == 1
    (epoch,) = one_job.events_of("epoch")
    assert (epoch["replay"], epoch["records_out"], epoch["skipped_lanes"]) == (True, 30, 1)
    assert len(end_offsets(kafka, log_topic(one_job.name))) == 2, "the epoch has one lane"


@pytest.mark.turn(4)
def test_the_driver_publishes_the_rest_of_an_epoch(one_job: OneJob, tmp_path: Path) -> None:
    """A worker is lost after other tasks have published their lanes."""
    one_job.write(LOSES, lost__py=(Path(__file__).parents[2] / "support" / "lost_worker.py").read_text())
    one_job.params = {"flag": str(tmp_path / "flag")}
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    assert Counter(one_job.values()) == Counter(str(number) for number in range(30))
    assert len(one_job.events_of("restart")) == 1
    (epoch,) = one_job.events_of("epoch")
    assert (epoch["replay"], epoch["published_lanes"], epoch["diverged_lanes"]) == (True, PARTITIONS, 0)
    assert 0 < epoch["skipped_lanes"] < PARTITIONS, "the other rows went to the driver"


def test_an_atomic_epoch_is_larger_than_the_memory_for_rows(one_job: OneJob) -> None:
    """A task has more rows than a sixteenth of its executor's heap, and all tasks more than one of the driver's."""
    one_job.write(ATOMIC)
    one_job.params = {"length": "900000", "copies": "6"}
    code, errors = one_job.run()
    assert code == 0, errors[-3000:]
    assert Counter(value.rstrip(".") for value in one_job.values()) == {str(number): 6 for number in range(30)}
    assert {len(value) for value in one_job.values()} == {900_000}
    assert one_job.events_of("restart") == []


def test_the_driver_refuses_a_row_of_an_executor(one_job: OneJob) -> None:
    """It is longer than the topic's ``max.message.bytes``."""
    one_job.write(ATOMIC)
    one_job.params = {"length": "1200000", "copies": "1"}
    code, errors = one_job.run()
    assert code == RecordRejected.exit_code, errors[-3000:]
    assert "the topic's max.message.bytes allows" in errors
    assert not one_job.values()


def test_the_check_reports_the_cluster(cluster: StandaloneCluster, tmp_path: Path) -> None:
    shared = [f"file://{tmp_path}", "file:///dev/null/missing"]
    spec = {"master": cluster.master, "authSecret": "spark", "sharedLocations": shared}
    done = subprocess.run(
        [sys.executable, "-m", "clonos.driver.cluster_check"],
        input=json.dumps({"metadata": {"name": "east"}, "spec": spec}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))},
            SECRET_VARIABLE: cluster.spark.secret,
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = ClusterReport.model_validate_json(done.stdout)
    assert (report.executors, report.hosts) == (2, ("127.0.0.1",))
    assert report.java
    (problem,) = report.problems
    assert "file:///dev/null/missing" in problem
