"""A job on the local platform as its users see it: submitted, fed, killed, and its output checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.client import Client
from clonos.kafka import SEQUENTIAL, client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import PlatformJob, read_committed

JOB = """
import clonos
from pyspark.sql import functions as F

@clonos.udf("string")
def stamp(value: str) -> str:
    return f"{value} {clonos.uuid4(value)}"

@clonos.job(name="stamped")
def stamped(ctx):
    lines = ctx.source(ctx.params["in"]).select("key", F.col("value").cast("string").alias("value"))
    ctx.sink(lines.select("key", stamp("value").alias("value")), topic=ctx.params["out"], name="out")
"""
TIMEOUT_S: Final = 240.0


class StampedJob(PlatformJob):
    """The job `JOB` on a platform, with its input and output.

    Args:
        client: A client of the control plane.
        kafka: The Kafka cluster; the topics are created on it.
    """

    def __init__(self, client: Client, kafka: KafkaSettings) -> None:
        super().__init__(client, "stamped")
        self.kafka = kafka
        admin = AdminClient(client_config(kafka))
        for created in admin.create_topics([NewTopic(name, 2) for name in ("in", "out")]).values():
            created.result(60)
        self._producer = Producer(client_config(kafka, **SEQUENTIAL))
        self.sent = 0

    def feed(self, count: int = 20) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce("in", str(number), f"k{number % 4}", partition=number % 2)
        assert self._producer.flush(30) == 0
        self.sent += count

    def rows(self) -> list[Message]:
        """The output that readers see."""
        return read_committed(self.kafka, "out")

    def published(self) -> list[tuple[str, int]]:
        return [((row.key() or b"").decode(), int((row.value() or b"").split()[0])) for row in self.rows()]

    def await_all(self, description: str) -> None:
        self.until(lambda: len(self.published()) >= self.sent, description, TIMEOUT_S)

    def check(self) -> None:
        """Each input once, and the records of each key in order."""
        rows = self.published()
        assert Counter(number for _, number in rows) == Counter(range(self.sent))
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, number in rows:
            by_key[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
