"""One Spark session for all tests that need no crash of the driver."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from clonos import faults
from clonos.causal.epoch_scope import worker_environment
from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.driver.resolutions import RequestedResolution
from clonos.jobs.context import JobContext
from clonos.jobs.definition import Job, JobFunction
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark.session import build_session
from clonos.telemetry.events import Events
from clonos.testing.harness import eventually
from clonos_sinks.kafka import KafkaSink
from support.copy_job import Copy, MakeTopic
from support.driver_thread import DriverThread
from support.event_fields import into
from support.fetch_order import permuted_shuffle
from support.lanes import lanes_of_partitions
from support.registry import StubRegistry


@pytest.fixture(scope="session")
def registry_of_session() -> Iterator[StubRegistry]:
    with StubRegistry("ada", "l0velace").serving() as registry:
        yield registry


@pytest.fixture
def registry(registry_of_session: StubRegistry) -> Iterator[StubRegistry]:
    yield registry_of_session
    registry_of_session.down = 0


@pytest.fixture(scope="session")
def spark(
    kafka: KafkaSettings, registry_of_session: StubRegistry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session in which each task reads the map outputs of a shuffle in random order, as on a cluster."""
    os.environ.update(worker_environment(kafka))
    os.environ["CLONOS_REGISTRY__URL"] = registry_of_session.url
    os.environ["CLONOS_REGISTRY__USERNAME"] = "ada"
    os.environ["CLONOS_REGISTRY__PASSWORD"] = "l0velace"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = Path(__file__).parent
    # Workers import the test modules that define the UDFs.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parents[1])])
    # As many slots as a test's topic has partitions: some of its tasks wait for others.
    conf = {"spark.sql.shuffle.partitions": "2", **permuted_shuffle(tmp_path_factory.mktemp("jars"))}
    with build_session("tests", master="local[8]", conf=conf) as session:
        yield session.spark


class InProcess:
    """Runs job functions on the shared session until they have processed all of their input."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, home: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._home = home
        self.events: list[dict[str, Any]] = []

    def __call__(
        self, function: JobFunction, name: str, *, code: str = "1", checkpoint: str = "checkpoint", **spec: Any
    ) -> None:
        options = RunOptions(
            checkpoint=str(self._home / checkpoint),
            new_lineage=spec.pop("new_lineage", False),
            stop_timeout_s=spec.pop("stop_timeout_s", None),
            request_key=spec.pop("request_key", ""),
            accept_new_code=spec.pop("accept_new_code", False),
            accept_unpublished=spec.pop("accept_unpublished", False),
            finish_in_doubt=spec.pop("finish_in_doubt", False),
            resolutions=tuple(map(RequestedResolution.parse, spec.pop("resolve", ()))),
        )
        body = Spec.model_validate({"trigger": {"availableNow": True}, "restart_policy": {"attempts": 3}, **spec})
        job = Job(function, JobSpec(metadata=Metadata(name=name), spec=body), code)
        events = Events(name, None, [into(self.events)])
        Driver(job, self._spark, self._kafka, events, options).run()

    def events_of(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [record for record in self.events if record["event"] == event]


@pytest.fixture
def run_job(spark: SparkSession, kafka: KafkaSettings, tmp_path: Path) -> Callable[..., Any]:
    return InProcess(spark, kafka, tmp_path)


@pytest.fixture
def run_on(spark: SparkSession, tmp_path: Path) -> Callable[[KafkaSettings], InProcess]:
    """Runs jobs on another cluster than the session's."""
    return lambda kafka: InProcess(spark, kafka, tmp_path)


__all__ = ["InProcess", "JobContext"]


@pytest.fixture
def partition_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes as on a cluster: one for each sink partition, which its task publishes."""
    monkeypatch.setattr(KafkaSink, "has_one_lane", lanes_of_partitions)


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Make the driver fail at a named point, once."""

    def arm(fault: str) -> None:
        log = tmp_path / f"fault-{random.getrandbits(32):08x}"
        monkeypatch.setenv("CLONOS_FAULT_LOG", str(log))
        monkeypatch.setattr(faults, "_FAULTS", faults.parse(f"{fault}:raise"))

    return arm


@pytest.fixture
def copy(kafka: KafkaSettings, make_topic: MakeTopic) -> Copy:
    return Copy(kafka, make_topic)


@pytest.fixture
def live(spark: SparkSession, kafka: KafkaSettings, name: str, tmp_path: Path) -> Iterator[Callable[..., DriverThread]]:
    """Starts a job in a driver, by default a live one."""
    started: list[DriverThread] = []

    def start(function: JobFunction, *, mode: str = "live", new_lineage: bool = False, **trigger: str) -> DriverThread:
        options = RunOptions(checkpoint=str(tmp_path / "checkpoint"), new_lineage=new_lineage)
        thread = DriverThread(spark, kafka, function, name, options, trigger={"mode": mode, **trigger})
        started.append(thread)
        return thread

    yield start
    for thread in started:
        thread.driver.stop()
        thread.join(60)


@pytest.fixture
def swap(kafka: KafkaSettings) -> Callable[[str, int], None]:
    """Delete a topic, and create it again before its readers notice that it is missing."""

    def again(topic: str, partitions: int) -> None:
        admin = AdminClient(client_config(kafka))
        admin.delete_topics([topic])[topic].result(60)

        def created() -> bool:
            try:
                admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        eventually(created, f"{topic} is created again", poll_s=0)

    return again
