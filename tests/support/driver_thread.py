"""A driver that runs in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.jobs.definition import Job, JobFunction
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.log.prepared import Prepared
from clonos.settings import KafkaSettings
from clonos.telemetry.events import Events
from clonos.testing.harness import eventually
from support.event_fields import into


class DriverThread:
    """Runs a job function without end.

    Attributes:
        driver: The driver.
        events: Its events so far.
        failure: The error that ended it.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        function: JobFunction,
        name: str,
        options: RunOptions,
        *,
        interval: str = "0s",
        trigger: Mapping[str, str] | None = None,
        before_run: Callable[[Driver], Prepared | None] = lambda _driver: None,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        spec = JobSpec(
            metadata=Metadata(name=name), spec=Spec.model_validate({"trigger": trigger or {"interval": interval}})
        )
        self.driver = Driver(Job(function, spec, "1"), spark, kafka, Events(name, None, [into(self.events)]), options)
        self._before_run = before_run
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.driver.run(self._before_run(self.driver))
        except Exception as failure:
            self.failure = failure

    def await_(self, check: Callable[[], bool], description: str) -> None:
        """Poll until `check` returns True; the driver's error ends the wait."""

        def checked() -> bool:
            if self.failure is not None:
                raise self.failure
            return check()

        eventually(checked, description, details=lambda: str(self.events[-5:]))

    def join(self, timeout_s: float = 400.0) -> None:
        """Wait until the driver has ended."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
