"""Selects the host of a run: a pure function of the job and the hosts.

Only a job without a run is placed; a running job never moves just because another host is less loaded. The rules, in
order:

1. Only hosts that reach the job's Spark cluster, if it uses one.
2. A local checkpoint binds the job to the host that has it.
3. The label ``clonos.dev/host`` names the host.
4. Otherwise all hosts that are READY and have a free slot, preferring: enough memory for a driver, as measured; another
   failure domain than the one of the last lost host; a host with a pool driver, if the job can use one; the least
   loaded host; the least loaded failure domain; the first name.

Short memory only changes the preference: the memory of a driver that has just failed may not be free yet. A standby can
wait, so it is placed only where it fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from clonos.resources.host_capacity import expected_bytes, memory_shortage
from clonos.resources.hosts import HostState
from clonos_api.reconcile.facts import ClusterFacts, HostFacts, JobFacts

HOST_LABEL: Final = "clonos.dev/host"
_MAX_NAMES: Final = 3


@dataclass(frozen=True)
class Placement:
    """The selected host, and the reason for the selection."""

    host: str
    why: str


@dataclass(frozen=True)
class NoPlacement:
    """No host can run the job now; `why` is the reason, `hint` the remedy."""

    why: str
    hint: str
    permanent: bool = False  # whether a user must change something; otherwise waiting may help


class Fleet:
    """All hosts, with the slots that decisions of the reconciler's current round have taken so far.

    `reserved` is the number of free slots that jobs without a driver, or jobs that leave a host, still need.
    """

    def __init__(self, hosts: Iterable[HostFacts], reserved: int = 0) -> None:
        self.reserved = reserved
        self.hosts = {host.id: host for host in hosts if host.state is not HostState.REMOVED}
        self._names = {host.name: host.id for host in self.hosts.values()}
        self.open = {host.id: host for host in self.hosts.values() if host.open}  # those that accept another driver
        measured = [host.capacity for host in self.hosts.values() if host.alive and host.capacity is not None]
        # The hosts that decide what a driver and a standby are expected to take where none has run.
        self._costliest = [
            max(measured, key=lambda capacity: capacity.cost_bytes(standby=standby) or 0)
            for standby in (False, True)
            if measured
        ]
        self._load: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for host in self.hosts.values():
            self._load[host.domain][0] += host.used
            self._load[host.domain][1] += host.slots

    @property
    def free(self) -> int:
        """Number of free slots on open hosts."""
        return sum(host.slots - host.used for host in self.open.values())

    def open_for(self, cluster: ClusterFacts | None) -> list[HostFacts]:
        """Return the hosts that accept another driver, and reach the cluster; None: any host."""
        return [host for host in self.open.values() if cluster is None or cluster.reached_from(host.name)]

    def named(self, name: str) -> HostFacts | None:
        """Return the host with this name; None if there is none."""
        return self.hosts.get(self._names.get(name, ""))

    def alive(self, host_id: str) -> bool:
        """Whether the lease of the host with this id is valid."""
        host = self.hosts.get(host_id)
        return host is not None and host.alive

    def unresponsive(self, host_id: str) -> bool:
        """Whether several heartbeats of the host with this id are missing."""
        host = self.hosts.get(host_id)
        return host is not None and host.unresponsive

    def load(self, domain: str) -> Fraction:
        """Return the used share of a failure domain's slots."""
        used, slots = self._load[domain]
        return Fraction(used, max(slots, 1))

    def memory_shortage(self, host: HostFacts, *, standby: bool = False) -> str:
        """Why a host has too little memory for another driver or standby; empty: it fits, or nothing is measured."""
        if host.capacity is None:
            return ""
        return memory_shortage(host.capacity, self._costliest, standby=standby)

    def take(self, host_id: str, *, pool_driver: bool = False, standby: bool = False) -> None:
        """Take a slot and memory of a host for a new run; with `pool_driver` a pool driver, if it has one."""
        before = self.hosts[host_id]
        capacity = before.capacity
        pool_driver = pool_driver and before.pool_available > 0
        if capacity is not None and not pool_driver:  # a pool driver has its memory already
            capacity = capacity.less(expected_bytes(capacity, self._costliest, standby=standby) or 0)
        host = replace(
            before,
            used=before.used + 1,
            pool_available=before.pool_available - pool_driver,
            capacity=capacity,
        )
        self.hosts[host_id] = host
        self._load[host.domain][0] += 1
        if host.open:
            self.open[host_id] = host
        else:
            self.open.pop(host_id, None)


def place(job: JobFacts, fleet: Fleet) -> Placement | NoPlacement:
    """Select the host of a job's next run, or return why there is none."""
    cluster = job.cluster
    if cluster is not None and not cluster.exists:
        return NoPlacement(
            f"There is no cluster {cluster.name}, which job {job.name} names.",
            "add the cluster again, or change the job's `cluster`.",
            permanent=True,
        )
    label = job.labels.get(HOST_LABEL)
    bound = job.home if job.local and not job.start_from else None
    if bound is not None:
        host = fleet.hosts.get(bound)
        if host is None:
            return NoPlacement(
                f"The checkpoint of job {job.name} is a path of a host that was removed.",
                "start it from a savepoint, or register the host again under its name.",
                permanent=True,
            )
        if label is not None and label != host.name:
            return NoPlacement(
                f"The label of job {job.name} names host {label}, but its checkpoint is a path of host {host.name}.",
                "move the checkpoint to shared storage, or start the job from a savepoint.",
                permanent=True,
            )
        return _only(host, "its checkpoint is a path of this host", cluster)
    if label is not None:
        host = fleet.named(label)
        if host is None:
            return NoPlacement(
                f"There is no host {label}.", f"start an agent with that name, or change the label {HOST_LABEL}."
            )
        return _only(host, f"its label {HOST_LABEL} names this host", cluster)
    candidates = fleet.open_for(cluster)
    if not candidates:
        hint = "start another agent (`clonos agent`), or stop a job; placement is retried every second."
        if not fleet.hosts:
            hint = "start an agent (`clonos agent`, or `clonos up` on one machine); placement is retried every second."
        return NoPlacement(_full(fleet, cluster), hint)

    def short(host: HostFacts) -> str:
        """Return why the host lacks memory; a pool driver has its memory already."""
        return "" if job.prefers_pool and host.pool_available else fleet.memory_shortage(host)

    best = min(
        candidates,
        key=lambda host: (
            host.unresponsive,
            bool(short(host)),
            host.domain == job.failed_domain,
            job.prefers_pool and not host.pool_available,
            Fraction(host.used, host.slots),
            fleet.load(host.domain),
            host.name,
        ),
    )
    load = f"{best.used} of {best.slots} slots taken"
    if why := short(best):
        load = f"{load}; it {why}"
    if job.prefers_pool and best.pool_available:
        return Placement(best.id, f"it has {best.pool_available} pool drivers ({load})")
    return Placement(best.id, f"least loaded of {len(candidates)} free hosts ({load})")


def has_room(job: JobFacts, fleet: Fleet) -> bool:
    """Whether another host can take over a job from a draining host without the use of a reserved slot."""
    return fleet.free > fleet.reserved and isinstance(place(job, fleet), Placement)


def _only(host: HostFacts, why: str, cluster: ClusterFacts | None) -> Placement | NoPlacement:
    if cluster is not None and not cluster.reached_from(host.name):
        return NoPlacement(
            f"Only host {host.name} can run it ({why}), and that host does not reach cluster {cluster.name}.",
            f"an admin can add the host to the cluster's `hosts`, which are {_joined(sorted(cluster.hosts))}.",
        )
    if host.open:
        return Placement(host.id, why)
    return NoPlacement(
        f"Only host {host.name} can run it ({why}), and that host {_closed(host)}.",
        "it starts when that changes.",
    )


def _closed(host: HostFacts) -> str:
    match host.state:
        case HostState.LOST:
            return "is lost"
        case HostState.DRAINING:
            return "is draining"
        case _:
            return "has no free slot"


def _full(fleet: Fleet, cluster: ClusterFacts | None) -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for host in sorted(fleet.hosts.values(), key=lambda host: host.name):
        if cluster is None or cluster.reached_from(host.name):
            reasons[_closed(host)].append(host.name)
    for name in sorted(cluster.hosts) if cluster is not None else ():
        if fleet.named(name) is None:
            reasons["is not registered"].append(name)
    if not reasons:
        return "No host is registered."
    which = "No host" if cluster is None or not cluster.hosts else f"No host that reaches cluster {cluster.name}"
    return f"{which} is free: {'; '.join(f'{_joined(names)} {reason}' for reason, names in sorted(reasons.items()))}."


def _joined(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
