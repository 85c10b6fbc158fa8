"""Notes about hosts without room for a new job, for the commands that submit one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from clonos.errors import ClonosError
from clonos.resources.host_capacity import HostCapacity, memory_shortage

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.hosts import Host
    from clonos.resources.jobs import Job

# Above this share of busy cores, epochs and takeovers take longer.
_BUSY: Final = 0.85


def capacity_notes(hosts: Sequence[Host], *, standbys: int) -> list[str]:
    """What a user should know before another job runs on these hosts.

    Args:
        hosts: All hosts.
        standbys: Number of standbys that the job requests.

    Returns:
        Sentences. None about hosts that are not measured: their agents have just started.

    Example:
        ["The cores of all hosts are busy: host-1 uses 1.9 of 2. Epochs and takeovers take longer."]
    """
    measured = {host.name: host.capacity for host in hosts if host.state == "READY" and host.capacity is not None}
    if not measured:
        return []
    notes = []
    if drivers := _all(measured, lambda capacity: memory_shortage(capacity, measured.values(), standby=False)):
        notes.append(f"No host has memory for another driver: {drivers}. It starts, and the machine may swap.")
    elif standbys and (warm := _all(measured, lambda each: memory_shortage(each, measured.values(), standby=True))):
        notes.append(
            f"No host has memory for the standby of the job: {warm}. The job runs without it until there is room."
        )
    if busy := _all(measured, _busy):
        notes.append(f"The cores of all hosts are busy: {busy}. Epochs and takeovers take longer.")
    return notes


def show_capacity(client: Client, job: Job) -> None:
    """Print the notes about a job that was stored. An error is ignored: the job exists."""
    with contextlib.suppress(ClonosError):
        for note in capacity_notes(client.hosts.list().data, standbys=job.spec.spec.standby.replicas):
            typer.echo(f"Note: {note}", err=True)


def _busy(capacity: HostCapacity) -> str:
    if capacity.busy_cores < _BUSY * capacity.cores:
        return ""
    return f"uses {capacity.busy_cores:.1f} of {capacity.cores}"


def _all(measured: dict[str, HostCapacity], problem: Callable[[HostCapacity], str]) -> str:
    """The problems of the hosts, if each host has one."""
    problems = [f"{name} {text}" for name, capacity in measured.items() if (text := problem(capacity))]
    return "; ".join(problems) if len(problems) == len(measured) else ""
