"""A session that was there before the job: used only where the job could not tell it from one of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.causal.scope import worker_environment
from clonos.runner.process import _usable
from clonos.settings import KafkaSettings
from clonos.spec import Spec

KAFKA = KafkaSettings(bootstrap_servers="one:9092")
OTHER = KafkaSettings(bootstrap_servers="two:9092")


class Held:
    """Stands for a session."""

    def __init__(self, *, running: bool = True, told: dict[str, str] | None = None) -> None:
        context = SimpleNamespace(environment=worker_environment(KAFKA) if told is None else told)
        self.spark = SimpleNamespace(sparkContext=context)
        self.gateway = SimpleNamespace(running=running)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        if not self.gateway.running:
            raise RuntimeError("Py4J's own")


@pytest.mark.parametrize(
    ("held", "spec", "conf", "used"),
    [
        (Held(), {}, {}, True),
        (Held(told={}), {}, {}, True),
        (Held(), {"params": {"a": "b"}}, {}, True),
        (Held(), {"driverMemoryMb": 4096}, {}, False),
        (Held(), {"sparkConf": {"spark.sql.shuffle.partitions": "7"}}, {}, False),
        (Held(), {}, {"spark.sql.shuffle.partitions": "7"}, False),
        (Held(running=False), {}, {}, False),
        (Held(told=worker_environment(OTHER)), {}, {}, False),
    ],
)
def test_it_is_used_or_stopped(held: Any, spec: dict[str, Any], conf: dict[str, str], used: bool) -> None:
    found = _usable(held, Spec.model_validate(spec), conf, KAFKA)
    assert (found is held) == used
    assert held.stopped != used
