"""Which standbys a job is to have, and where: a pure function of the job, its standbys and the hosts.

Each on a host of its own, away from the job's driver and its failure domain as far as there are others; then the least
loaded. What stands well stays: a standby is only moved off a host that its job's driver or another standby of it has as
well, or off the driver's failure domain, and only where a better one is open; it goes when the one there is ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.facts import Host, Waiting
from clonos_api.reconcile.placement import Fleet


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A job, as far as its standbys depend on it.

    Attributes:
        wanted: How many standbys its specification asks for.
        version: Of its specification, as its driver has it.
        agent: Who has its driver; None: it has none.
        bound: The only host that has its checkpoint.
        resting: Standbys that failed a moment ago: others are not placed at once.
        spare: An older version, whose standbys stay until it is certain that the job does not go back to it.
        relief: A standby that a planned move waits for: it stays, also beyond those that are wanted.
    """

    id: str
    state: JobState
    desired: DesiredState
    wanted: int
    version: int
    agent: str | None
    bound: str | None = None
    resting: int = 0
    spare: int | None = None
    relief: str | None = None


@dataclass(frozen=True)
class Add:
    """A new standby."""

    agent: str
    why: str


@dataclass(frozen=True)
class Drop:
    """A standby is not wanted any more, or not there."""

    run: str
    why: str


def tend(job: Guarded, waiting: Sequence[Waiting], fleet: Fleet) -> list[Add | Drop]:
    """What is to change about a job's standbys; nothing where all is well, or nothing better can be had.

    Args:
        job: The job.
        waiting: Its standbys that have not been told to take over.
        fleet: All hosts; slots that are added are taken.
    """
    drops: list[Add | Drop] = []
    keep: list[Waiting] = []
    runs = job.desired is DesiredState.RUNNING and job.state in (JobState.RUNNING, JobState.RECOVERING)
    taken: list[str] = []
    for one in waiting:
        if one.run == job.relief and runs and not one.over:
            taken.append(one.agent)
            continue
        why = _unwanted(job, one, fleet.hosts, runs=runs)
        if why:
            drops.append(Drop(one.run, why))
        else:
            keep.append(one)
    drops += _surplus(job, keep, fleet)
    if job.state is not JobState.RUNNING or not runs or len(keep) > job.wanted:
        return drops
    for one in [] if job.resting else keep:
        others = _others(keep, one)
        best = _best(job, others, fleet)
        if best is not None and _apart(job, best, others, fleet) < _apart(job, fleet.hosts[one.agent], others, fleet):
            # One at a time; the other one goes when this one is ready.
            return [*drops, Add(best.id, _why(job, best, others, fleet))]
    adds: list[Add | Drop] = []
    taken += [one.agent for one in keep]
    while len(taken) + job.resting < job.wanted:
        best = _best(job, taken, fleet)
        if best is None:
            break
        adds.append(Add(best.id, _why(job, best, taken, fleet)))
        fleet.take(best.id)
        taken.append(best.id)
    return [*drops, *adds]


def _surplus(job: Guarded, keep: list[Waiting], fleet: Fleet) -> list[Add | Drop]:
    """Those beyond what is wanted, the worst placed first; but as many as are wanted stay ready, if they are."""
    drops: list[Add | Drop] = []
    while len(keep) > job.wanted:
        worst = max(keep, key=lambda one: (_badness(job, fleet.hosts[one.agent], _others(keep, one), fleet), one.run))
        ready = sum(one.ready for one in keep if one is not worst)
        if worst.ready and ready < job.wanted and len(keep) == job.wanted + 1:
            break
        keep.remove(worst)
        drops.append(Drop(worst.run, "more than are wanted"))
    return drops


def _others(keep: Sequence[Waiting], one: Waiting) -> list[str]:
    return [other.agent for other in keep if other is not one]


def _apart(job: Guarded, host: Host, taken: Sequence[str], fleet: Fleet) -> tuple[bool, int, bool]:
    """What a standby is moved for: the domains of other standbys change with each of them, and are not worth it."""
    return _badness(job, host, taken, fleet)[:3]


def _unwanted(job: Guarded, one: Waiting, hosts: Mapping[str, Host], *, runs: bool) -> str:
    host = hosts.get(one.agent)
    if not runs:
        return "its job does not run"
    if one.over:
        return "it ended"
    if host is None or not host.alive:
        return "its host is lost"
    if host.state is HostState.DRAINING:
        return "its host is drained"
    if one.version not in (job.version, job.spare):
        return "the job's specification has changed"
    if job.bound is not None and one.agent != job.bound:
        return "the job's checkpoint is on another host"
    return ""


def _best(job: Guarded, taken: Sequence[str], fleet: Fleet) -> Host | None:
    hosts = [host for host in fleet.open.values() if job.bound in (None, host.id)]
    return min(
        hosts,
        key=lambda host: (
            _badness(job, host, taken, fleet),
            Fraction(host.used, host.slots),
            fleet.load(host.domain),
            host.name,
        ),
        default=None,
    )


def _badness(job: Guarded, host: Host, taken: Sequence[str], fleet: Fleet) -> tuple[bool, int, bool, int]:
    """How much would be lost at once: the driver with it, other standbys with it; by host, then by domain."""
    domains = [fleet.hosts[one].domain for one in taken if one in fleet.hosts]
    drivers = fleet.hosts.get(job.agent or "")
    return (
        host.id == job.agent,
        sum(one == host.id for one in taken),
        drivers is not None and host.domain == drivers.domain,
        domains.count(host.domain),
    )


def _why(job: Guarded, host: Host, taken: Sequence[str], fleet: Fleet) -> str:
    with_driver, with_others, near_driver, near_others = _badness(job, host, taken, fleet)
    load = f"{host.used} of {host.slots} slots taken"
    if job.bound is not None:
        return f"the job's checkpoint is a path of this host ({load})"
    if with_driver:
        return f"no other host is open; it falls with the job's host ({load})"
    where = "another failure domain than the driver's" if not near_driver else "another host than the driver's"
    shared = " and other standbys are here" if with_others else " that has other standbys" if near_others else ""
    return f"{where}{shared}, least loaded ({load})"
