"""A session that is older than the job: used only if it equals one that would be built for the job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.causal.epoch_scope import worker_environment
from clonos.driver.options import RunOptions
from clonos.driver.process import _usable
from clonos.jobs.spec import SESSION_SETTINGS, Spec
from clonos.settings import KafkaSettings
from clonos.spark.session import PROMISED

KAFKA = KafkaSettings(bootstrap_servers="one:9092")
OTHER = KafkaSettings(bootstrap_servers="two:9092")


class FakeSession:
    """Stands for a session."""

    def __init__(self, *, running: bool = True, environment: dict[str, str] | None = None) -> None:
        context = SimpleNamespace(environment=worker_environment(KAFKA) if environment is None else environment)
        self.conf: dict[str, str] = {}
        conf = SimpleNamespace(set=self.conf.__setitem__)
        self.spark = SimpleNamespace(sparkContext=context, conf=conf)
        self.gateway = SimpleNamespace(running=running)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        if not self.gateway.running:
            raise RuntimeError("Py4J's own")


def test_a_pool_drivers_session_takes_over_no_setting_that_breaks_exactly_once() -> None:
    """`build_session` refuses those; the session of a pool driver is not built again."""
    assert SESSION_SETTINGS.isdisjoint(PROMISED)


@pytest.mark.parametrize(
    ("session", "spec", "conf", "used"),
    [
        (FakeSession(), {}, {}, True),
        (FakeSession(environment={}), {}, {}, True),
        (FakeSession(), {"params": {"a": "b"}}, {}, True),
        (FakeSession(), {"checkpoint": "hdfs://host/x"}, {}, True),
        (FakeSession(), {"checkpoint": "s3a://bucket/x"}, {}, False),
        (FakeSession(), {"driver": {"memory": "4096m"}}, {}, False),
        (FakeSession(), {"sparkConf": {"spark.sql.shuffle.partitions": "7"}}, {}, True),
        (FakeSession(), {"sparkConf": {"spark.sql.streaming.stateStore.maintenanceInterval": "9s"}}, {}, False),
        (FakeSession(), {"sparkConf": {"spark.sql.shuffle.partitions": "7", "spark.kryo.unsafe": "true"}}, {}, False),
        (FakeSession(), {}, {"spark.sql.shuffle.partitions": "7"}, False),
        (FakeSession(running=False), {}, {}, False),
        (FakeSession(environment=worker_environment(OTHER)), {}, {}, False),
    ],
)
def test_session_is_used_or_stopped(session: Any, spec: dict[str, Any], conf: dict[str, str], used: bool) -> None:
    checkpoint = spec.get("checkpoint", "file:///x")
    used_session = _usable(session, Spec.model_validate(spec), RunOptions(conf=conf), KAFKA, checkpoint)
    assert (used_session is session) == used
    assert session.stopped != used
    assert session.conf == (spec.get("sparkConf", {}) if used else {})
