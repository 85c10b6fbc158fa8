"""Notes about hosts without room for a new job, for the commands that submit one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from clonos.cli.options import echo
from clonos.errors import ClonosError
from clonos.resources.host_capacity import HostCapacity, memory_shortage

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.hosts import Host
    from clonos.resources.jobs import Job

# Above this share of busy cores, epochs and takeovers take longer.
_BUSY: Final = 0.85


def capacity_notes(hosts: Sequence[Host], *, standbys: int) -> list[str]:
    """List what a user should know before another job, with `standbys`, runs on these hosts: sentences.

    There are none if a host that accepts drivers is not measured: its agent has just started.
    """
    notes = []
    if drivers := _shortage(hosts, standby=False):
        notes.append(f"No host has memory for another driver: {drivers}. It starts, and the machine may swap.")
    if standbys and (shortage := standby_shortage(hosts)):
        notes.append(f"{shortage} The job runs without it until there is room.")
    if busy := _all(_open(hosts), _busy):
        notes.append(f"The cores of all hosts are busy: {busy}. Epochs and takeovers take longer.")
    return notes


def standby_shortage(hosts: Sequence[Host]) -> str:
    """Why no host with a free slot has memory for a standby; empty: memory is not the reason."""
    shortage = _shortage(hosts, standby=True)
    return f"No host has memory for a standby: {shortage}." if shortage else ""


def show_capacity(client: Client, job: Job) -> None:
    """Print the notes about a job that was stored. An error is ignored: the job exists."""
    with contextlib.suppress(ClonosError):
        for note in capacity_notes(client.hosts.list().data, standbys=job.spec.spec.standby.dedicated_replicas):
            echo(f"Note: {note}", err=True)


def _shortage(hosts: Sequence[Host], *, standby: bool) -> str:
    measured = [host.capacity for host in hosts if host.state == "READY" and host.capacity is not None]
    return _all(_open(hosts), lambda capacity: memory_shortage(capacity, measured, standby=standby))


def _open(hosts: Sequence[Host]) -> dict[str, HostCapacity | None]:
    return {host.name: host.capacity for host in hosts if host.state == "READY" and host.free}


def _busy(capacity: HostCapacity) -> str:
    if capacity.busy_cores < _BUSY * capacity.cores:
        return ""
    return f"uses {capacity.busy_cores:.1f} of {capacity.cores}"


def _all(capacities: dict[str, HostCapacity | None], problem: Callable[[HostCapacity], str]) -> str:
    """Return the problems of the hosts, if each host has one."""
    problems = [
        f"{name} {text}"
        for name, capacity in capacities.items()
        if capacity is not None and (text := problem(capacity))
    ]
    return "; ".join(problems) if len(problems) == len(capacities) else ""
