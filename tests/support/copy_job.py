"""A job that copies a topic, and the check of its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import functions as F

from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import SEQUENTIAL, client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed

MakeTopic = Callable[..., str]


class Copy:
    """A job that copies a topic of three partitions, without the records that start with ``x``."""

    def __init__(self, kafka: KafkaSettings, make_topic: MakeTopic) -> None:
        self.source, self.out = make_topic(3, "in"), make_topic(2, "out")
        self._kafka = kafka
        self.connect()
        self.sent: list[str] = []
        self.partitions = 3
        source, out = self.source, self.out

        def function(ctx: JobContext) -> None:
            rows = ctx.source(source).select("key", F.col("value").cast("string").alias("value"))
            ctx.sink(rows.where(~F.col("value").startswith("x")), topic=out, name="out")

        self.function: JobFunction = function

    def connect(self) -> None:
        """Use a new producer, which knows no topic yet."""
        self._producer = Producer(client_config(self._kafka, linger_ms=0, **SEQUENTIAL))

    def send(self, *values: str) -> None:
        for value in values:
            # By key, so that the order of a partition can be read from the output.
            partition = len(self.sent) % self.partitions
            self._producer.produce(self.source, value, key=str(partition), partition=partition)
            self.sent.append(value)
        assert self._producer.flush(30) == 0

    def add_partitions(self) -> None:
        self.partitions += 2
        admin = AdminClient(client_config(self._kafka))
        admin.create_partitions([NewPartitions(self.source, self.partitions)])[self.source].result(60)
        self.connect()  # it asks for the topic's partitions

    def send_numbers(self, count: int) -> None:
        self.send(*(f"r{len(self.sent) + number}" for number in range(count)))

    def published(self) -> list[tuple[str, str]]:
        records = read_committed(self._kafka, self.out)
        return [((record.key() or b"").decode(), (record.value() or b"").decode()) for record in records]

    def faults(self) -> dict[str, object]:
        """What is lost, repeated or out of order, by the first words of the values; empty: nothing is."""
        expected = Counter(value for value in self.sent if not value.startswith("x"))
        published = [(key, value.split(" ")[0]) for key, value in self.published()]
        found = Counter(value for _, value in published)
        disordered = [
            key
            for key in {key for key, _ in published}
            if (numbers := [int(value[1:]) for name, value in published if name == key]) != sorted(numbers)
        ]
        problems = {"lost": expected - found, "repeated": found - expected, "out of order": disordered}
        return {name: problem for name, problem in problems.items() if problem}

    def is_published(self) -> bool:
        return len(self.published()) >= sum(not value.startswith("x") for value in self.sent)
