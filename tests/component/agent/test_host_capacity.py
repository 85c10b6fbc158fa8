"""The capacity of a host, in the heartbeats of a real agent with a real driver process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clonos.agent import agent, capacity
from clonos.resources.host_capacity import HostCapacity
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec

Host = Callable[..., ThreadAgent]


def test_heartbeats_report_what_a_driver_and_a_standby_take(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "GROWS_FOR_S", 0.0)
    monkeypatch.setattr(agent, "FIRST_MEASURED_S", 0.1)
    monkeypatch.setattr(agent, "MEASURED_EVERY_S", 0.2)
    host()
    empty = eventually(lambda: api.capacities, "the host is measured")[0]
    assert (empty.driver_bytes, empty.standby_bytes) == (None, None)
    code = api.upload(b"until_stopped()")
    api.assign(run_spec(run, code), run_spec(f"{run}s", code, standby=True))
    busy = eventually(
        lambda: next((each for each in api.capacities if each.driver_bytes and each.standby_bytes), None),
        "a driver and a standby are measured",
    )
    assert busy.cores >= 1
    assert 0 < busy.available_bytes < busy.memory_bytes


def test_a_measurement_that_fails_or_is_refused_does_not_end_the_agent(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError("too many open files")]

    def measure(_meter: capacity.CapacityMeter, _processes: object) -> HostCapacity:
        if failures:
            raise failures.pop()
        return HostCapacity(cores=2, busy_cores=0.0, memory_bytes=2, available_bytes=1)

    monkeypatch.setattr(agent, "FIRST_MEASURED_S", 0.1)
    monkeypatch.setattr(agent, "MEASURED_EVERY_S", 3.0)
    monkeypatch.setattr(capacity.CapacityMeter, "measure", measure)
    api.refuses_capacity = True
    host()
    eventually(lambda: api.capacities, "a measurement is sent, and refused")
    before = api.heartbeats
    eventually(lambda: api.heartbeats > before + 2, "heartbeats without one are accepted")
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    eventually(lambda: run in api.reports and api.reports[run].state == "RUNNING", "the driver runs")
