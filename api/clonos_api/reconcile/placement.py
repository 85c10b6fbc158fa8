"""Which host gets a run, and why: a pure function of the job and the hosts.

Only a job without a run is placed; one that runs is never moved because another host became better. In this order: the
host that has the checkpoint (a path of that host binds the job), the host that a label names, hosts that are READY and
have a free slot; of these one outside of the failure domain that the job was just lost with, then one that has a spare
(if the job is to have one), then the least loaded one, then one in the least loaded domain, then the first by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from clonos.resources.hosts import HostState
from clonos_api.reconcile.facts import Host, Job

HOST_LABEL: Final = "clonos.dev/host"
_NAMES_TOLD: Final = 3


@dataclass(frozen=True)
class Placed:
    """A host."""

    agent: str
    why: str


@dataclass(frozen=True)
class Nowhere:
    """No host, for now.

    Attributes:
        lasting: Waiting does not help: somebody must change something.
    """

    why: str
    hint: str
    lasting: bool = False


class Fleet:
    """All hosts, with what was placed on them since they were read.

    Args:
        hosts: The hosts.
        owed: Jobs that will want a slot: they have no driver, or are leaving a host.

    Attributes:
        owed: The same, as it is now.
    """

    def __init__(self, hosts: Iterable[Host], owed: int = 0) -> None:
        self.owed = owed
        self._hosts = {host.id: host for host in hosts if host.state is not HostState.REMOVED}
        self._names = {host.name: host.id for host in self._hosts.values()}
        self._open = {host.id: host for host in self._hosts.values() if host.open}
        self._load: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for host in self._hosts.values():
            self._load[host.domain][0] += host.used
            self._load[host.domain][1] += host.slots

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Id → host, as it is now."""
        return self._hosts

    @property
    def open(self) -> Mapping[str, Host]:
        """Those that take another driver."""
        return self._open

    @property
    def free(self) -> int:
        """Slots that are free on hosts that take drivers."""
        return sum(host.slots - host.used for host in self._open.values())

    def named(self, name: str) -> Host | None:
        """The host of this name."""
        return self._hosts.get(self._names.get(name, ""))

    def alive(self, agent: str) -> bool:
        """Whether a host is heard of."""
        host = self._hosts.get(agent)
        return host is not None and host.alive

    def silent(self, agent: str) -> bool:
        """Whether heartbeats of a host are missing."""
        host = self._hosts.get(agent)
        return host is not None and host.silent

    def load(self, domain: str) -> Fraction:
        """Share of a failure domain's slots that is taken."""
        used, slots = self._load[domain]
        return Fraction(used, max(slots, 1))

    def take(self, agent: str, *, pooled: bool = False) -> None:
        """A slot of a host is taken, and a spare if it is a job's that is to have one."""
        before = self._hosts[agent]
        host = replace(before, used=before.used + 1, spares=max(0, before.spares - pooled))
        self._hosts[agent] = host
        self._load[host.domain][0] += 1
        if host.open:
            self._open[agent] = host
        else:
            self._open.pop(agent, None)


def place(job: Job, fleet: Fleet) -> Placed | Nowhere:
    """The host for a job's next run."""
    wanted = job.labels.get(HOST_LABEL)
    bound = job.home if job.local and not job.start_from else None
    if bound is not None:
        host = fleet.hosts.get(bound)
        if host is None:
            return Nowhere(
                f"The checkpoint of job {job.name} is a path of a host that was removed.",
                "start it from a savepoint, or bring the host back under its name.",
                lasting=True,
            )
        if wanted is not None and wanted != host.name:
            return Nowhere(
                f"Job {job.name} is to run on host {wanted}, but its checkpoint is a path of host {host.name}.",
                "put the checkpoint where both see it, or start it from a savepoint.",
                lasting=True,
            )
        return _only(host, "its checkpoint is a path of this host")
    if wanted is not None:
        host = fleet.named(wanted)
        if host is None:
            return Nowhere(
                f"There is no host {wanted}.", f"start an agent of that name, or change the label {HOST_LABEL}."
            )
        return _only(host, f"its label {HOST_LABEL} names this host")
    if not fleet.open:
        return Nowhere(_full(fleet), "start another agent, or stop a job; it is tried again each second.")
    best = min(
        fleet.open.values(),
        key=lambda host: (
            host.domain == job.failed_domain,
            job.pooled and not host.spares,
            Fraction(host.used, host.slots),
            fleet.load(host.domain),
            host.name,
        ),
    )
    load = f"{best.used} of {best.slots} slots taken"
    if job.pooled and best.spares:
        return Placed(best.id, f"it has {best.spares} spares ({load})")
    return Placed(best.id, f"least loaded of {len(fleet.open)} free hosts ({load})")


def _only(host: Host, why: str) -> Placed | Nowhere:
    if host.open:
        return Placed(host.id, why)
    return Nowhere(
        f"Only host {host.name} may run it ({why}), and that {_closed(host)}.", "it starts as soon as that changes."
    )


def _closed(host: Host) -> str:
    match host.state:
        case HostState.LOST:
            return "is lost"
        case HostState.DRAINING:
            return "is drained"
        case _:
            return "has no free slot"


def _full(fleet: Fleet) -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for host in sorted(fleet.hosts.values(), key=lambda one: one.name):
        reasons[_closed(host)].append(host.name)
    if not reasons:
        return "No host is registered."
    return (
        "No host is free: " + "; ".join(f"{_told(names)} {reason}" for reason, names in sorted(reasons.items())) + "."
    )


def _told(names: list[str]) -> str:
    more = len(names) - _NAMES_TOLD
    return ", ".join(names[:_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
