"""Notes about hosts without room for a job, and when there are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clonos.cli.capacity_notes import capacity_notes, standby_shortage
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import Host, HostState

GIB = 1 << 30
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def host(name: str, capacity: HostCapacity | None, state: HostState = HostState.READY) -> Host:
    return Host(
        id=name,
        name=name,
        state=state,
        failure_domain=name,
        slots=2,
        free=1,
        runs=1,
        registered_at=NOW,
        heartbeat_at=NOW,
        capacity=capacity,
    )


def capacity(
    available: float, driver: float | None = 1.0, standby: float | None = 1.0, busy: float = 0
) -> HostCapacity:
    def size(gib: float | None) -> int | None:
        return int(gib * GIB) if gib is not None else None

    return HostCapacity(
        cores=2,
        busy_cores=busy,
        memory_bytes=8 * GIB,
        available_bytes=int(available * GIB),
        driver_bytes=size(driver),
        standby_bytes=size(standby),
    )


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [host("a", None)],
        [host("a", capacity(4.0))],
        [host("a", capacity(0.5)), host("b", capacity(4.0))],
        [host("a", capacity(0.5, driver=None, standby=None))],
        [host("a", capacity(4.0, busy=1.9)), host("b", capacity(4.0))],
        [host("a", capacity(0.1, busy=2.0), HostState.LOST)],
        [host("a", capacity(0.1, busy=2.0)), host("b", None)],
    ],
)
def test_no_notes_where_a_job_fits_or_nothing_is_known(hosts: list[Host]) -> None:
    assert capacity_notes(hosts, standbys=1) == []


def test_hosts_without_memory_are_named() -> None:
    hosts = [host("a", capacity(0.5)), host("b", capacity(0.25, driver=None))]
    assert capacity_notes(hosts, standbys=0) == [
        "No host has memory for another driver: a has 512.0 MiB of free memory, and a driver takes 1.0 GiB; b has "
        "256.0 MiB of free memory, and a driver takes 1.0 GiB. It starts, and the machine may swap."
    ]


def test_a_standby_that_does_not_fit_is_named_if_the_job_requests_one() -> None:
    hosts = [host("a", capacity(1.2, standby=1.5))]
    assert capacity_notes(hosts, standbys=0) == []
    assert capacity_notes(hosts, standbys=1) == [
        "No host has memory for a standby: a has 1.2 GiB of free memory, and a standby takes 1.5 GiB. The job runs "
        "without it until there is room."
    ]


def test_busy_cores_are_named() -> None:
    full = host("b", capacity(4.0)).model_copy(update={"free": 0})
    assert capacity_notes([host("a", capacity(4.0, busy=1.84)), full], standbys=1) == [
        "The cores of all hosts are busy: a uses 1.8 of 2. Epochs and takeovers take longer."
    ]


def test_a_driver_and_a_standby_that_do_not_fit_have_a_note_each() -> None:
    notes = capacity_notes([host("a", capacity(0.5))], standbys=1)
    assert [note.partition(":")[0] for note in notes] == [
        "No host has memory for another driver",
        "No host has memory for a standby",
    ]
    assert standby_shortage([host("a", capacity(0.5))]) == (
        "No host has memory for a standby: a has 512.0 MiB of free memory, and a standby takes 1.0 GiB."
    )
