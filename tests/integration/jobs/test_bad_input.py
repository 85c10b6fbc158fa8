"""Each kind of bad input has a typed error with a hint and its own exit code; no record is lost or duplicated.

Each item causes a fault, checks the error, applies the fix that the hint names, and continues the job. The output then
equals the input, each record once.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pydantic import SecretStr
from pyspark.sql import Column
from pyspark.sql import functions as F

import clonos
from clonos.driver.restart_budget import UncomputableValue
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import (
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointOutdated,
    CheckpointUnwritable,
    ClonosError,
    EpochFailed,
    ForeignRecord,
    JobCodeError,
    JobFileInvalid,
    JobNotImportable,
    KafkaAccessDenied,
    ResultNotSerialisable,
    ServiceTimedOut,
    SinkTopicDeleted,
    SourceOffsetsExpired,
    TopicMissing,
)
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.jobs.loading import load_job
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import CONTROL
from clonos.log.records import EpochCommitted, Owner, encode
from clonos.log.topic import log_topic
from clonos.log.truncation import truncate
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.kafka import KafkaSink
from support.lanes import lanes_of_partitions

pytestmark = pytest.mark.turn

PER_EPOCH = 4
Item = Callable[["Bench"], None]
ITEMS: dict[str, Item] = {}


def item(name: str) -> Callable[[Item], Item]:
    def register(run: Item) -> Item:
        ITEMS[name] = run
        return run

    return register


class Bench:
    """A job from one topic to another, with the records sent and published."""

    def __init__(self, kafka: KafkaSettings, run_job: Any, name: str, home: Path, make_topic: Any) -> None:
        self.kafka = kafka
        self.name = name
        self.home = home
        self.make_topic = make_topic
        self.sent: Counter[str] = Counter()
        self.source = make_topic(3, "in")
        self.out = make_topic(2, "out")
        self.flag = home / "flag"
        self.run_job = run_job
        self.admin = AdminClient(client_config(kafka))

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint" / "out"

    def feed(self, count: int, partitions: int = 3) -> None:
        producer = Producer(client_config(self.kafka))
        for number in range(self.sent.total(), self.sent.total() + count):
            producer.produce(self.source, f"w{number}".encode(), f"k{number % 7}".encode(), number % partitions)
            self.sent[f"w{number}"] += 1
        assert producer.flush(30) == 0

    def job(self, change: Callable[[Column], Column] = lambda word: word, **options: Any) -> JobFunction:
        source, out = self.source, self.out

        def job(ctx: JobContext) -> None:
            records = ctx.source(source, **options)
            value = change(F.col("value").cast("string")).alias("value")
            ctx.sink(records.select("key", value), topic=out, name="out")

        return job

    def once(self, act: Callable[[], None], before: str = "w0") -> Callable[[Column], Column]:
        """A UDF that returns each word unchanged, and calls `act` once in a worker, before the word `before`."""
        flag = str(self.flag)

        @clonos.udf("string")
        def passed_on(word: str) -> str:
            if word == before and not os.path.exists(flag):  # noqa: PTH110 (the worker gets text)
                act()
                Path(flag).touch()
            return word

        return passed_on

    def run(self, job: JobFunction | None = None, **more: Any) -> None:
        self.run_job(job or self.job(), self.name, **more)

    def refused(
        self, error: type[ClonosError], code: int, says: str, job: JobFunction | None = None, **more: Any
    ) -> Any:
        """Check that the job fails with this error, in three parts; return the error."""
        failures_before = len(self.run_job.events_of("failed"))
        with pytest.raises(error, match=says) as caught:
            self.run(job, **more)
        refusal = caught.value
        assert type(refusal) is error
        assert refusal.exit_code == code
        assert re.fullmatch(r"(?s).+\nKept safe: .+\nWhat to do: .+", str(refusal))
        [event] = self.run_job.events_of("failed")[failures_before:]
        assert (event["error"], event["hint"]) == (error.slug, refusal.hint)
        return refusal

    def published(self) -> Counter[str]:
        return Counter((record.value() or b"").decode() for record in read_committed(self.kafka, self.out))

    def whole(self) -> None:
        """Check that the output equals the input, each record once, and that no replay diverged."""
        assert self.published() == self.sent
        assert not [epoch for epoch in self.run_job.events_of("epoch") if epoch["diverged_lanes"]]

    def at_most_once(self) -> None:
        """Check that each published record was sent and is published once."""
        assert self.published() <= self.sent

    def claimed(self) -> bool:
        return log_topic(self.name) in self.admin.list_topics(timeout=60).topics

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(60)
        eventually(lambda: topic not in self.admin.list_topics(timeout=60).topics, f"{topic} is deleted")

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)

    # In a separate process

    def write_job(self, text: str = "") -> Path:
        path = self.home / "job.py"
        path.write_text(
            text
            or f"import clonos\n@clonos.job(name={self.name!r})\ndef copy(ctx):\n"
            f"    ctx.sink(ctx.source({self.source!r}).select('key', 'value'), topic={self.out!r}, name='out')\n"
        )
        body = {"main": "job.py", "master": "local[2]", "driver": {"memory": "512m"}, "trigger": {"availableNow": True}}
        spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": body}
        (self.home / "job.yaml").write_text(yaml.safe_dump(spec))
        return path

    def clonos_run(self, path: Path, kafka: KafkaSettings | None = None) -> subprocess.CompletedProcess[str]:
        """Run `clonos run` on a job file."""
        kafka = kafka or self.kafka
        variables = {"CLONOS_HOME": str(self.home), "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        if kafka.sasl_password is not None:
            variables |= {
                "CLONOS_KAFKA__SECURITY_PROTOCOL": kafka.security_protocol,
                "CLONOS_KAFKA__SASL_MECHANISM": kafka.sasl_mechanism or "",
                "CLONOS_KAFKA__SASL_USERNAME": kafka.sasl_username or "",
                "CLONOS_KAFKA__SASL_PASSWORD": kafka.sasl_password.get_secret_value(),
            }
        return subprocess.run(
            [sys.executable, "-m", "clonos", "run", str(path), "--plain"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def process_refused(
        self, error: type[ClonosError], code: int, says: str, path: Path, kafka: KafkaSettings | None = None
    ) -> None:
        """Check the exit code of `clonos run`, and the three parts of its error on standard error."""
        ran = self.clonos_run(path, kafka)
        assert ran.returncode == code == error.exit_code, ran.stderr
        what, kept, hint = ran.stderr.splitlines()[-3:]
        assert re.match(f"{error.slug}: {says}", what), ran.stderr
        assert kept.startswith("Kept safe: ")
        assert hint.startswith("What to do: ")


# Topics, brokers and files that the job names


@item("unknown-topic")
def unknown_source_or_sink_topic(bench: Bench) -> None:
    for missing, error in (("in", "source topic 'in"), ("out", "sink topic 'out")):
        name = f"{missing}-{bench.name}"
        before = bench.source, bench.out
        bench.source, bench.out = (name, bench.out) if missing == "in" else (bench.source, name)
        bench.refused(TopicMissing, 38, error)
        assert not bench.claimed()
        assert name not in bench.admin.list_topics(timeout=60).topics, "the check did not create the topic"
        bench.source, bench.out = before
    bench.source = f"in-{bench.name}"
    bench.create(bench.source, 3)
    bench.feed(9)
    bench.run()
    bench.whole()


@item("unreachable-broker")
def a_broker_that_is_unreachable(bench: Bench) -> None:
    bench.feed(9)
    bench.write_job()
    with socket.socket() as taken:  # bound, but no process listens
        taken.bind(("127.0.0.1", 0))
        unused = KafkaSettings(bootstrap_servers=f"127.0.0.1:{taken.getsockname()[1]}")
        bench.process_refused(
            clonos.errors.BrokerUnavailable,
            35,
            f"Kafka at {unused.bootstrap_servers} did not answer",
            bench.home,
            unused,
        )
    assert not bench.claimed()
    ran = bench.clonos_run(bench.home)
    assert ran.returncode == 0, ran.stderr
    bench.whole()


@item("wrong-credentials")
def a_password_that_kafka_refuses(bench: Bench) -> None:
    right = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="ada",
        sasl_password=SecretStr("l0velace"),
    )
    jars = ensure_jars(Settings())
    with EmbeddedKafka(bench.home / "sasl", brokers=1, jars=jars, heap_mb=256, client=right) as cluster:
        here = Bench(cluster.kafka, bench.run_job, bench.name, bench.home, lambda *_: "")
        here.source, here.out = "in", "out"
        here.create("in", 3)
        here.create("out", 2)
        here.feed(9)
        here.write_job()
        wrong = cluster.kafka.model_copy(update={"sasl_password": SecretStr("guess")})
        where = (
            f"Kafka at {wrong.bootstrap_servers} refused the connection, access was refused: .*Authentication failed"
        )
        here.process_refused(KafkaAccessDenied, 36, where, here.home, wrong)
        assert not here.claimed()
        ran = here.clonos_run(here.home, cluster.kafka)
        assert ran.returncode == 0, ran.stderr
        here.whole()


@item("job-does-not-import")
def a_job_file_that_does_not_import(bench: Bench) -> None:
    bench.feed(9)
    good = bench.write_job().read_text()
    for line, says in (
        ("import no_such_module", r".*job\.py, line 1, does not import: ModuleNotFoundError: .*no_such_module"),
        ("def copy(:", r".*job\.py, line 1, does not import: SyntaxError"),
    ):
        path = bench.write_job(f"{line}\n{good}")
        bench.process_refused(JobNotImportable, 13, says, path)
    assert not bench.claimed()
    bench.run(load_job(bench.write_job(good)).function)
    bench.whole()


@item("no-job")
def a_file_without_a_job(bench: Bench) -> None:
    bench.feed(9)
    good = bench.write_job().read_text()
    path = bench.write_job("import clonos\n")
    bench.process_refused(JobFileInvalid, 12, r".*job\.py holds no job\.", path)
    bench.process_refused(JobFileInvalid, 12, r"There is no job file .*gone\.py", bench.home / "gone.py")
    (bench.home / "empty").mkdir()
    bench.process_refused(JobFileInvalid, 12, "The folder .*empty holds neither", bench.home / "empty")
    assert not bench.claimed()
    bench.run(load_job(bench.write_job(good)).function)
    bench.whole()


# The job's code


@item("udf-raises")
def a_udf_that_raises(bench: Bench) -> None:
    bench.feed(30)

    @clonos.udf("string")
    def broken(word: str) -> str:
        if word == "w19":
            raise ValueError(f"no way to handle {word}")
        return word

    refusal = bench.refused(JobCodeError, 14, "ValueError: no way to handle w19", bench.job(broken, max_per_epoch=12))
    assert "replayed" in refusal.kept
    assert bench.run_job.events_of("restart") == [], "the same code would raise again"
    before = bench.published()
    assert before.total() >= 12, "the previous epoch is published"
    assert before < bench.sent
    bench.run(bench.job(max_per_epoch=12), code="2", accept_new_code=True)
    bench.whole()


@item("service-times-out")
def a_service_that_gives_no_answer(bench: Bench) -> None:
    bench.feed(9, partitions=1)
    flag, calls = str(bench.flag), str(bench.home / "calls")

    @clonos.service(name="asked", timeout=0.5, retries=1, on_outage="fail")
    def asked(word: str) -> str:
        with open(calls, "a") as log:
            log.write(f"{word}\n")
        if word == "w5" and not Path(flag).exists():
            time.sleep(3)  # longer than the timeout of the call
        return word

    @clonos.udf("string")
    def through(word: str) -> str:
        return asked(word)

    refusal = bench.refused(ServiceTimedOut, 17, r"The service asked gave no answer in 0\.5 s", bench.job(through))
    assert "timeout=" in refusal.hint
    assert bench.published() == Counter()
    bench.flag.touch()
    bench.run(bench.job(through))
    bench.whole()
    asked_for = Counter(Path(calls).read_text().split())
    assert asked_for["w5"] == 3, "two calls timed out, the third succeeded"


@item("unserialisable-result")
def a_service_result_that_the_log_cannot_store(bench: Bench) -> None:
    bench.feed(9)

    @clonos.service(name="odd")
    def odd(word: str) -> Any:
        return object() if word == "w4" else word

    @clonos.service(name="odd")
    def fixed(word: str) -> Any:
        return word

    def through(service: Any) -> Any:
        @clonos.udf("string", name="through")
        def through(word: str) -> str:
            return str(service(word))

        return through

    bench.refused(ResultNotSerialisable, 18, "The service odd returned a object", bench.job(through(odd)))
    bench.at_most_once()
    bench.run(bench.job(through(fixed)), code="2", accept_new_code=True)
    bench.whole()


# The sink's topic


def grow(kafka: KafkaSettings, topic: str, partitions: int) -> None:
    admin = AdminClient(client_config(kafka))
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)


@item("sink-topic-disappears")
def a_sink_topic_that_is_deleted_while_the_job_runs(bench: Bench) -> None:
    bench.feed(12)
    bench.run()
    earlier = bench.published()
    assert earlier == bench.sent
    bench.feed(12, partitions=1)  # only one lane has input: no other lane can publish before the topic is deleted
    settings, out = bench.kafka, bench.out

    def delete() -> None:
        admin = AdminClient(client_config(settings))
        admin.delete_topics([out])[out].result(60)
        eventually(lambda: out not in admin.list_topics(timeout=60).topics, "the topic is deleted")

    bench.refused(
        SinkTopicDeleted,
        39,
        f"The sink topic '{out}' existed when the job started",
        bench.job(bench.once(delete, before="w12")),
    )
    assert out not in bench.admin.list_topics(timeout=60).topics, "no client created the topic again"
    bench.refused(TopicMissing, 38, f"The sink topic '{out}' does not exist")
    bench.create(out, 2)
    bench.run()
    assert earlier + bench.published() == bench.sent, "the records of the failed epoch, each once"


@item("sink-topic-grows")
def a_sink_topic_that_gets_more_partitions(bench: Bench) -> None:
    """The job continues; as always in Kafka, the records of a key keep their order within each partition."""
    bench.feed(30)
    settings, out, flag = bench.kafka, bench.out, str(bench.flag)

    @clonos.udf("string")
    def grown_in_between(word: str) -> str:
        if word == "w1" and not Path(flag).exists():
            # The other lanes are published; then the topic grows, and this lane's epoch is in doubt.
            eventually(lambda: len(read_committed(settings, out)) == 20, "two of three lanes are published")
            grow(settings, out, 5)
            Path(flag).touch()
            os._exit(1)  # the worker is lost
        return word

    job = bench.job(grown_in_between)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSink, "has_one_lane", lanes_of_partitions)  # lanes are published one by one
        bench.run(job)
        assert len(bench.run_job.events_of("restart")) == 1
        bench.whole()
        bench.feed(30)
        bench.run(job)
        bench.whole()
    records = read_committed(settings, out)
    assert {record.partition() for record in records} - {0, 1}, "the new partitions are used"
    order: dict[tuple[Any, Any, int], list[int]] = defaultdict(list)
    for record in records:
        number = int((record.value() or b"w")[1:])
        order[record.partition(), record.key(), number % 3].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())


# The checkpoint


@contextmanager
def disk(path: Path, kib: int) -> Iterator[None]:
    """Mount a small file system."""
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user cannot mount a file system: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        # Lazy, because Spark leaves open the file that it could not write.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@item("full-disk-under-checkpoint")
def a_full_disk(bench: Bench) -> None:
    home = bench.home / "checkpoint"
    ballast = str(home / "ballast")

    def fill() -> None:
        with open(ballast, "wb", buffering=0) as out:
            try:
                while True:
                    out.write(bytes(4096))
            except OSError:
                return

    with disk(home, 1024):
        bench.feed(24)
        job = bench.job(bench.once(fill, before="w13"), max_per_epoch=12)
        refusal = bench.refused(CheckpointUnwritable, 40, "No space left on device", job)
        assert "free space" in refusal.hint
        assert bench.flag.exists()
        bench.at_most_once()
        generation = claim(bench.kafka, bench.name).owner.generation
        bench.refused(CheckpointUnwritable, 40, "No space left on device", job)
        assert claim(bench.kafka, bench.name).owner.generation == generation + 1, "the refused start claimed nothing"
        Path(ballast).unlink()
        bench.run(job)
        bench.whole()
        assert not list(home.rglob("*probe*")), "the disk check leaves no file"


@item("read-only-checkpoint")
def a_disk_that_becomes_read_only(bench: Bench) -> None:
    home = bench.home / "checkpoint"

    def remount(how: str = "ro") -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(home)], check=True)

    with disk(home, 1024):
        bench.feed(24)
        job = bench.job(bench.once(remount, before="w13"), max_per_epoch=12)
        refusal = bench.refused(CheckpointUnwritable, 40, "Read-only file system", job)
        assert "writable" in refusal.hint
        bench.at_most_once()
        bench.refused(CheckpointUnwritable, 40, "Read-only file system", job)
        remount("rw")
        bench.run(job)
        bench.whole()


def cut(path: Path, size: int = 4) -> bytes:
    """Truncate a file as a power failure does; remove its Hadoop checksum, which would also show the damage."""
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return whole


@item("truncated-checkpoint-file")
def files_of_the_checkpoint_that_are_cut_short(bench: Bench) -> None:
    bench.feed(24)
    job = bench.job(max_per_epoch=8)
    bench.run(job)
    for name in ("metadata", "commits", "offsets"):
        newest = max(int(path.name) for path in (bench.checkpoint / "commits").glob("[0-9]*"))
        assert newest >= 2
        path = bench.checkpoint / name if name == "metadata" else bench.checkpoint / name / str(newest)
        kept = cut(path)
        refusal = bench.refused(CheckpointDamaged, 53, f"{re.escape(str(path))} is missing, truncated", job)
        bench.whole()
        if name == "metadata":
            fresh = re.search(r"\{.*\}", refusal.hint)
            assert fresh is not None
            path.unlink()
            again = bench.refused(CheckpointDamaged, 53, "metadata is missing", job)
            assert "write {" in again.hint
            path.write_text(fresh.group())
        elif name == "commits":
            assert f"remove commits/{newest}" in refusal.hint
            path.unlink()
        else:
            assert "restore it from a copy" in refusal.hint
            path.write_bytes(kept)
        bench.feed(6)
        bench.run(job)
        bench.whole()
    # Without a copy of the file, the plan in the log restores it.
    newest = max(int(path.name) for path in (bench.checkpoint / "commits").glob("[0-9]*"))
    cut(bench.checkpoint / f"offsets/{newest}")
    refusal = bench.refused(CheckpointDamaged, 53, f"offsets/{newest} is missing, truncated", job)
    assert f"remove commits/{newest}" in refusal.hint
    (bench.checkpoint / f"commits/{newest}").unlink()
    bench.feed(6)
    bench.run(job)
    bench.whole()
    assert "restored" in str(bench.run_job.events_of("reconciled")[-1]["done"])


@item("truncated-checkpoint-file-of-the-state")
def a_file_of_the_state_that_is_cut_short(bench: Bench) -> None:
    source, out = bench.source, bench.out

    def job(ctx: JobContext) -> None:
        counts = ctx.source(source).groupBy(F.col("value").cast("string").alias("word")).count()
        ctx.sink(counts.select(F.col("word").alias("value")), topic=out, name="out", mode="update")

    bench.feed(9)
    bench.run(job)
    bench.whole()
    bench.feed(9)
    changelogs = {path: path.read_bytes() for path in (bench.checkpoint / "state").glob("0/[0-9]*/[0-9]*.changelog")}
    assert changelogs
    assert not list((bench.checkpoint / "state").rglob("[0-9]*.changelog.crc"))  # Spark's; Hadoop's begin with a dot

    def empty(path: Path) -> None:
        path.write_bytes(b"")  # Hadoop's checksums do not show it

    def change(path: Path) -> None:
        path.write_bytes(changelogs[path][:-1] + bytes([changelogs[path][-1] ^ 1]))

    for damage in (empty, change, cut):
        for path in changelogs:
            damage(path)
        bench.refused(CheckpointDamaged, 53, "Spark cannot read a file of the state", job)
        bench.at_most_once()
        for path, whole in changelogs.items():
            path.write_bytes(whole)
    bench.run(job)
    bench.whole()


@item("truncated-checkpoint-file-of-an-epoch-never-planned")
def an_entry_that_a_crash_cut_short(bench: Bench) -> None:
    """No epoch was planned from the entry, so the job removes it."""
    bench.feed(8)
    bench.run()
    newest = max(int(path.name) for path in (bench.checkpoint / "offsets").glob("[0-9]*"))
    (bench.checkpoint / f"offsets/{newest + 1}").write_text("v1\n{")
    bench.feed(8)
    bench.run()
    bench.whole()
    assert bench.run_job.events_of("reconciled")[-1]["done"] == f"removed offsets/{newest + 1}: it was not planned"


@item("lost-state")
def state_that_is_missing_in_the_checkpoint(bench: Bench) -> None:
    def counting(ctx: JobContext) -> None:
        words = ctx.source(bench.source, max_per_epoch=PER_EPOCH).select(F.col("value").cast("string").alias("word"))
        counts = words.groupBy(F.lit("all").alias("key")).count()
        ctx.sink(counts.select("key", F.col("count").cast("string").alias("value")), topic=bench.out, mode="update")

    def counts() -> list[int]:
        return [int(record.value() or b"0") for record in read_committed(bench.kafka, bench.out)]

    checkpoint = bench.home / "checkpoint" / "output"
    bench.feed(12)
    bench.run(counting)
    before = counts()
    for lost in ("state", "state/0/1"):
        shutil.rmtree(checkpoint / lost)
        bench.feed(4)
        bench.run(counting)
        done = [event["done"] for event in bench.run_job.events_of("reconciled")]
        assert any("its state is missing, all epochs are replayed" in text for text in done)
    assert counts()[: len(before)] == before
    assert counts() == sorted(set(counts())), "each epoch is published once"
    assert counts()[-1] == 20
    assert bench.run_job.events_of("failed") == []


# Values and changes that each replay refuses again


@item("value-that-spark-cannot-cast")
def a_value_that_spark_cannot_cast(bench: Bench) -> None:
    bench.feed(9)
    cast = bench.job(lambda word: word.cast("int").cast("string"))
    refusal = bench.refused(UncomputableValue, 14, r"CAST_INVALID_INPUT.* reads \[\[?" + bench.source, cast)
    assert "try_cast" in refusal.hint
    assert bench.run_job.events_of("restart") == []
    bench.run(accept_new_code=True, code="2")
    bench.whole()


@item("arrow-column-of-another-type")
def an_arrow_column_of_another_type(bench: Bench) -> None:
    def job(ctx: JobContext) -> None:
        def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_arrays([pa.array([1] * batch.num_rows, pa.int64())], ["letters"])

        rows = ctx.source(bench.source).mapInArrow(clonos.operator(lengths, name="lengths"), "letters int")
        ctx.sink(rows.select(F.col("letters").cast("string").alias("value")), topic=bench.out, name="out")

    bench.feed(9)
    says = "lengths returned the column letters as int64; the job declares int, which is int32"
    refusal = bench.refused(JobCodeError, 14, says, job)
    assert "pyarrow.int32()" in refusal.hint
    assert bench.run_job.events_of("restart") == []
    bench.run(accept_new_code=True, code="2")
    bench.whole()


@item("changed-sources")
def sources_that_are_not_those_of_the_checkpoint(bench: Bench) -> None:
    other = bench.make_topic(1, "other")

    def both(ctx: JobContext) -> None:
        rows = ctx.source(bench.source).union(ctx.source(other))
        ctx.sink(rows.select("key", "value"), topic=bench.out, name="out")

    bench.feed(9)
    bench.run()
    bench.feed(9)
    refusal = bench.refused(CheckpointMismatch, 51, r"\[1\] sources in the checkpoint", both)
    assert "run the older code again" in refusal.hint
    assert bench.run_job.events_of("restart") == []
    bench.run()
    bench.whole()


@item("changed-state")
def state_that_is_not_that_of_the_checkpoint(bench: Bench) -> None:
    def counting(*more: Column) -> JobFunction:
        def job(ctx: JobContext) -> None:
            counts = ctx.source(bench.source).groupBy("value").agg(F.count("*").alias("n"), *more)
            used = F.concat_ws("", *(F.col(name).cast("string") for name in counts.columns[1:]))
            rows = counts.where(used != "").select("value")  # Spark drops an aggregate that is not used
            ctx.sink(rows, topic=bench.out, name="out", mode="update")

        return job

    bench.feed(9)
    bench.run(counting())
    bench.feed(9)
    changed = counting(F.max("offset"))
    refusal = bench.refused(CheckpointMismatch, 51, "VALUE_SCHEMA_NOT_COMPATIBLE", changed)
    assert "run the older code again" in refusal.hint
    assert bench.run_job.events_of("restart") == []
    bench.run(counting())
    bench.whole()


@item("checkpoint-older-than-published")
def an_older_checkpoint(bench: Bench) -> None:
    job = bench.job()
    older, newer = bench.home / "older", bench.home / "newer"
    for copy in (older, None, None, None):
        bench.feed(8)
        bench.run(job)
        if copy:
            shutil.copytree(bench.checkpoint, copy)
    bench.whole()
    shutil.copytree(bench.checkpoint, newer)

    def restore(copy: Path) -> None:
        shutil.rmtree(bench.checkpoint)
        shutil.copytree(copy, bench.checkpoint)

    # The log still holds the plans: the job replays them, and publishes nothing.
    restore(older)
    bench.run(job)
    bench.whole()
    assert any(epoch["skipped_lanes"] for epoch in bench.run_job.events_of("epoch"))
    # The log no longer holds the plans.
    truncate(claim(bench.kafka, bench.name), retained=1)
    restore(older)
    refusal = bench.refused(CheckpointOutdated, 52, "the log no longer holds the plan of", job)
    assert "restore the newer checkpoint" in refusal.hint
    bench.whole()
    restore(newer)
    bench.feed(8)
    bench.run(job)
    bench.whole()


# Kafka's side


@item("expired-source-offsets")
def records_that_retention_deleted_before_they_were_read(bench: Bench) -> None:
    bench.feed(9)
    bench.run()
    bench.feed(9)
    bench.admin.delete_records([TopicPartition(bench.source, 1, 5)])[TopicPartition(bench.source, 1)].result(60)
    refusal = bench.refused(SourceOffsetsExpired, 54, rf"{bench.source}\[1\] needs 3, has 5\.\.6")
    assert "--new-lineage with a new --checkpoint" in refusal.hint
    assert bench.published().total() == 9, "the job does not skip lost records silently"
    # The hint's fix: a new lineage from the remaining records. Records published before are read again unless deleted.
    for partition in (0, 2):
        tp = TopicPartition(bench.source, partition, 3)
        bench.admin.delete_records([tp])[tp].result(60)
    bench.run(new_lineage=True, checkpoint="new")
    assert bench.sent - bench.published() == Counter(["w10", "w13"]), "the records that Kafka deleted"
    bench.at_most_once()


def send(kafka: KafkaSettings, topic: str, value: bytes, *partitions: int) -> None:
    producer = Producer(client_config(kafka))
    for partition in partitions:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


UNKNOWN = Owner(1, 1, "5747a4637")
FOREIGN: dict[str, tuple[int, bytes, str]] = {
    "in-control": (CONTROL, b"hello", r"log\[0\]@\d+ holds a record that Clonos did not write"),
    "in-a-lane": (1, b"hello", r"log\[1\]@\d+ holds a record that Clonos did not write"),
    "well-formed": (CONTROL, encode(EpochCommitted(UNKNOWN, "out", 7, 1)), "which never claimed the log"),
}


def foreign(bench: Bench, partition: int, value: bytes, says: str) -> None:
    bench.feed(9)
    bench.run()
    send(bench.kafka, log_topic(bench.name), value, partition)
    bench.feed(9)
    before = bench.published()
    refusal = bench.refused(ForeignRecord, 56, says)
    assert "ACL" in refusal.hint
    assert bench.published() == before
    # No epoch was in doubt, so a new lineage cannot publish any record twice.
    bench.delete(log_topic(bench.name))
    bench.run(new_lineage=True)
    bench.whole()


for _kind, _case in FOREIGN.items():
    item(f"foreign-record-in-log-{_kind}")(lambda bench, case=_case: foreign(bench, *case))  # type: ignore[misc]


@item("foreign-record-in-log-while-it-runs")
def a_foreign_record_while_the_job_runs(bench: Bench) -> None:
    bench.feed(9)
    bench.run()
    bench.feed(9)
    settings, log = bench.kafka, log_topic(bench.name)

    def write() -> None:
        send(settings, log, b"hello", 1, 2, 3)

    bench.refused(ForeignRecord, 56, "holds a record that Clonos did not write", bench.job(bench.once(write, "w9")))
    bench.at_most_once()


# The tests


EMBEDDED = {"wrong-credentials"}


@pytest.fixture
def bench(kafka: KafkaSettings, run_job: Any, name: str, tmp_path: Path, make_topic: Any) -> Bench:
    return Bench(kafka, run_job, name, tmp_path, make_topic)


@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=[pytest.mark.embedded] if name in EMBEDDED else []) for name in ITEMS]
)
def test_bad_input(bench: Bench, what: str) -> None:
    ITEMS[what](bench)


def test_exit_codes_of_the_items_are_their_own() -> None:
    """Each kind of error has a different exit code."""
    kinds = [kind for kind in vars(clonos.errors).values() if isinstance(kind, type) and issubclass(kind, ClonosError)]
    assert len({kind.exit_code for kind in kinds}) == len(kinds)
    assert EpochFailed.retry
