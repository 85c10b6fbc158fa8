"""Sinks with many writers and one commit: the example, whose target keeps a marker, and one whose target has none."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clonos import faults
from clonos.errors import EpochFailed, EpochTooLarge
from clonos.extend.sink import Digest, SinkEpoch
from clonos.jobs.context import JobContext, Query
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.sink_contract import Seen, SinkContract, rows

POINTS = ("lane-begun", "state-committed", "lane-decided", "lane-marked", "lane-committed")


def example() -> ModuleType:
    """The example's module, which workers do not find."""
    spec = importlib.util.spec_from_file_location("sqlite_sink", Path(__file__).parents[3] / "examples/sqlite_sink.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def sqlite_sink() -> Iterator[ModuleType]:
    module = example()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sqlite_sink", module)
        cloudpickle.register_pickle_by_value(module)
        yield module
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.turn
@pytest.mark.timeout(3000)
class TestExample(SinkContract):
    points = POINTS

    def make_sink(self, name: str) -> Any:
        import sqlite_sink

        return sqlite_sink.SqliteSink(name, path=self.folder / f"{self.place}.db")

    def read_back(self) -> list[Seen]:
        with closing(sqlite3.connect(self.folder / f"{self.place}.db")) as database:
            return [Seen(*row) for row in database.execute("SELECT key, value FROM output ORDER BY rowid")]


class Renamed:
    """A target without a marker: a part is a file whose name starts with a dot until its epoch is committed."""

    output_mode, delivery, keeps_marker = "append", "atomic-epoch", False

    def __init__(self, name: str, folder: Path, size: int = 0) -> None:
        self.name = name
        self.folder = folder
        self.size = size

    def check(self, kafka: KafkaSettings) -> None:
        self.folder.mkdir(exist_ok=True)

    def check_frame(self, frame: DataFrame) -> None:
        """All columns are known."""

    def write_part(self, epoch: SinkEpoch, part: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        name = f"{epoch.identity.epoch:03d}-{part:03d}-{epoch.identity.owner.claim_id}"
        lines = [json.dumps(row) + "\n" for batch in batches for row in batch.to_pylist()]
        (self.folder / f".{name}").write_text("".join(lines))
        return name.encode().ljust(self.size)

    def commit(self, epoch: SinkEpoch, payloads: Sequence[bytes], digest: Digest) -> None:
        for name in (payload.decode().strip() for payload in payloads):
            if (self.folder / f".{name}").exists():
                (self.folder / f".{name}").rename(self.folder / name)
            assert (self.folder / name).exists()

    def committed(self, epoch: SinkEpoch) -> None:
        """It does not know."""

    def lines(self) -> list[dict[str, Any]]:
        """The rows that a reader sees."""
        files = sorted(self.folder.glob("[!.]*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.full
@pytest.mark.timeout(3000)
class TestWithoutMarker(SinkContract):
    points = POINTS

    def make_sink(self, name: str) -> Any:
        return Renamed(name, self.folder / self.place)

    def read_back(self) -> list[Seen]:
        return [Seen(**row) for row in Renamed("", self.folder / self.place).lines()]

    def test_payloads_that_the_log_cannot_hold_are_refused(self) -> None:
        owner = self.owner()
        owner.writes.writer._sink.size = 60_000  # type: ignore[attr-defined]
        with pytest.raises(EpochTooLarge, match="more than 900 KiB"):
            owner.write(0, rows(16, 1))
        self.published_exactly()


MakeTopic = Callable[..., str]


@pytest.mark.parametrize("point", ["lane-marked", "lane-committed"])
def test_a_job_commits_the_parts_that_the_log_has(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path, point: str
) -> None:
    """The epoch fails before and after the target's commit; the parts of the replay would have other names."""
    source, sink = make_topic(3, "in"), Renamed("out", tmp_path / "out")
    producer = Producer(client_config(kafka))
    for number in range(30):
        producer.produce(source, f"{number}".encode(), partition=number % 3)
    assert producer.flush(30) == 0
    failed: list[str] = []

    def fail_once() -> None:
        if not failed:
            failed.append(point)
            raise EpochFailed(f"injected at {point}")

    def job(ctx: JobContext) -> None:
        frame = ctx.source(source).select(F.col("value").cast("string").alias("number"))
        ctx.queries.append(Query(sink, frame))  # type: ignore[arg-type]
        sink.check(kafka)

    with faults.acting(point, fail_once, epoch=0):
        run_job(job, name)
    assert failed == [point]
    assert sorted(int(row["number"]) for row in sink.lines()) == list(range(30))
    (replay,) = run_job.events_of("epoch")
    assert (replay["replay"], replay["records_out"], replay["diverged_lanes"]) == (True, 30, 0)
    assert len(list(sink.folder.iterdir())) == 3, "the replay wrote no parts"
