"""How a driver learns that its queries ended; real queries are left to the integration tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import EpochFailed
from clonos.job import Job
from clonos.runner.driver import Driver
from clonos.runner.events import Events
from clonos.runner.states import DriverState
from clonos.settings import KafkaSettings
from clonos.spec import JobSpec, Metadata


class Query:
    """A query that ends with `failure` just after the driver looked whether it has failed."""

    def __init__(self, failure: EpochFailed | None) -> None:
        self.query = SimpleNamespace(name="out")
        self.runner = SimpleNamespace(finished=0)
        self.done = False
        self._failure = failure

    def raise_failure(self) -> None:
        if self.done and self._failure is not None:
            raise self._failure
        self.done = True


def watch(query: Query) -> DriverState:
    spark: Any = None
    driver = Driver(
        Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j"))), spark, KafkaSettings(), "", Events("j", None)
    )
    for state in (DriverState.CLAIMING, DriverState.RECONCILING, DriverState.RUNNING):
        driver._to(state)
    running: Any = [query]
    driver._watch(running)
    return driver.state


def test_a_query_that_ends_is_finished() -> None:
    assert watch(Query(None)) is DriverState.FINISHED


def test_a_query_that_fails_between_two_looks_is_not_finished() -> None:
    with pytest.raises(EpochFailed, match="log update"):
        watch(Query(EpochFailed("Concurrent update to the log update")))
