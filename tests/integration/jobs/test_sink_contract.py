"""The contract of `clonos.testing.sink_contract` on the sinks of Clonos, and on broken sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from clonos.extend.sink import DeliveryMode, LaneReport, SinkEpoch, SinkLane
from clonos.faults import LANE_POINTS
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed
from clonos.testing.sink_contract import Seen, SinkContract
from clonos_sinks.files import FilesSink
from clonos_sinks.kafka import KafkaSink
from support.lanes import INPUT

pytestmark = [pytest.mark.timeout(3000), pytest.mark.full]


class KafkaContract(SinkContract):
    delivery: DeliveryMode = "exactly-once"
    in_doubt = (INPUT,)  # lanes as on a cluster: the tasks publish them
    points = LANE_POINTS

    def prepare(self) -> None:
        # One partition: its order is the order in which lanes were published.
        admin = AdminClient(client_config(self.kafka))
        admin.create_topics([NewTopic(self.place, 1)])[self.place].result(60)

    def make_sink(self, name: str) -> KafkaSink:
        return KafkaSink(name, topic=self.place, delivery=self.delivery)

    def read_back(self) -> list[Seen]:
        return [Seen(_text(record.key()), _text(record.value())) for record in read_committed(self.kafka, self.place)]


class FilesContract(SinkContract):
    delivery: DeliveryMode = "exactly-once"
    points = LANE_POINTS[LANE_POINTS.index("lane-decided") :]

    def make_sink(self, name: str) -> FilesSink:
        return FilesSink(name, path=self.folder / self.place, delivery=self.delivery)

    def read_back(self) -> list[Seen]:
        files = sorted((self.folder / self.place).rglob("[!.]*.jsonl"))
        return [Seen(**json.loads(line)) for file in files for line in file.read_text().splitlines()]


@pytest.mark.turn
class TestKafkaSink(KafkaContract):
    pass


class TestKafkaSinkWithAtomicEpochs(KafkaContract):
    delivery = "atomic-epoch"
    in_doubt = ()


class TestFilesSink(FilesContract):
    pass


class TestFilesSinkWithAtomicEpochs(FilesContract):
    delivery = "atomic-epoch"
    points = ("lane-marked",)  # its lanes are written as above


class Forgetful(FilesSink):
    """A mutant that ignores the lanes already published."""

    def file_of(self, epoch: SinkEpoch, lane: SinkLane) -> Path:
        return super().file_of(epoch, lane).with_suffix(f".{epoch.identity.owner.claim_id}.jsonl")


class Blind(FilesSink):
    """A mutant that never reports a divergence."""

    def write_lane(self, epoch: SinkEpoch, lane: SinkLane, batches: Iterator[pa.RecordBatch]) -> LaneReport:
        report = super().write_lane(epoch, lane, batches)
        return LaneReport(report.lane, report.outcome, report.records, report.digest)


MUTANTS: list[tuple[type[FilesSink], str]] = [
    (Forgetful, "test_a_replay_of_what_is_published_publishes_nothing_and_agrees"),
    (Blind, "test_divergence_of_a_published_epoch_is_found"),
]


@pytest.mark.parametrize(("mutant", "test"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_contract_can_fail(
    spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, mutant: type[FilesSink], test: str
) -> None:
    class Contract(FilesContract):
        def make_sink(self, name: str) -> FilesSink:
            return mutant(name, path=self.folder / self.place)

    contract = Contract()
    contract.stage(spark, kafka, tmp_path)
    with pytest.raises(Exception, match=r"lost|diverged|published"):
        getattr(contract, test)()


def _text(value: Any) -> str | None:
    return None if value is None else value.decode()
