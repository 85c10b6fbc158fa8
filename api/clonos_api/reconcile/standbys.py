"""Decides about the standbys of a job: a pure function of the job, its standbys and the hosts.

A new standby gets an open host that the driver could run on: it reaches the job's Spark cluster and its checkpoint, and
the label ``clonos.dev/host`` allows it. Preferably: not the driver's host; with the fewest standbys; in another failure
domain than the driver's; then the least loaded. A well-placed standby stays. It moves only off the host of the driver
or of another standby, or out of the driver's failure domain, and only to a better open host. It is dropped when its
replacement is ready. No standby gets a slot that a job without a driver needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import structlog

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.decisions import AddStandby, Decision, DropStandby, RunChange, StandbyChange
from clonos_api.reconcile.facts import HostFacts, StandbyDemand, StandbyFacts
from clonos_api.reconcile.placement import HOST_LABEL, Fleet

_log = structlog.get_logger("clonos.reconcile")

# With a ready standby, the agent of a failed driver waits this long before it restarts the driver itself.
TAKEOVER_WAIT_S: Final = 3.0


def decide(job: StandbyDemand, standbys: Sequence[StandbyFacts], fleet: Fleet) -> Decision:
    """Return the decision about a job's standbys; it is false if they are well placed, or no better host is open.

    The slots of added standbys are taken in `fleet`.
    """
    runs = job.desired is DesiredState.RUNNING and job.state in (JobState.RUNNING, JobState.RECOVERING)
    successors = [s for s in standbys if s.run == job.successor and runs and not s.ended]
    drops: list[DropStandby] = []
    staying: list[StandbyFacts] = []
    for standby in standbys:
        if standby in successors:
            continue
        if why := _drop_reason(job, standby, fleet.hosts, runs=runs):
            drops.append(DropStandby(standby.run, why))
        else:
            staying.append(standby)
    surplus = _surplus(job, staying, fleet)
    drops += [DropStandby(standby.run, "more than requested") for standby in surplus]
    staying = [standby for standby in staying if standby not in surplus]
    adds: list[AddStandby] = []
    # The start of a standby would take the CPU time that the first epochs after a failure need.
    if job.state is JobState.RUNNING and runs and not job.recovery_open and len(staying) <= job.replicas:
        adds = _better(job, staying, fleet) or _missing(job, [s.host for s in (*successors, *staying)], fleet)
    responsive = [standby for standby in standbys if not fleet.unresponsive(standby.host)]
    wait_s = _takeover_wait_s(job, responsive, drops)
    return Decision(run=RunChange(takeover_wait_s=wait_s), standbys=StandbyChange(drop=tuple(drops), add=tuple(adds)))


def log(job: str, change: StandbyChange) -> None:
    """Log the committed changes of the standbys of the job with this name."""
    for dropped in change.drop:
        _log.info("standby-dropped", job=job, run=dropped.run, why=dropped.why)
    for added in change.add:
        _log.info("standby-added", job=job, host=added.host, why=added.why)


def _takeover_wait_s(
    job: StandbyDemand, standbys: Sequence[StandbyFacts], drops: Sequence[DropStandby]
) -> float | None:
    """Return the new wait of the driver's agent for a standby; None: it stays.

    It waits only if one is ready, has the driver's version and is not dropped. `standbys` are those on hosts that send
    heartbeats.
    """
    if job.run is None or job.state is not JobState.RUNNING:
        return None
    dropped = {drop.run for drop in drops}
    ready = any(s.ready and s.run not in dropped and s.version == job.version for s in standbys)
    seconds = TAKEOVER_WAIT_S if ready else 0.0
    return None if job.takeover_wait_s == seconds else seconds


def _drop_reason(job: StandbyDemand, standby: StandbyFacts, hosts: Mapping[str, HostFacts], *, runs: bool) -> str:
    host = hosts.get(standby.host)
    if not runs:
        return "its job does not run"
    if standby.ended:
        return "it ended"
    if host is None or not host.alive:
        return "its host is lost"
    if host.state is HostState.DRAINING:
        return "its host is draining"
    if standby.version not in (job.version, job.previous_version):
        return "the job's specification has changed"
    if job.bound is not None and standby.host != job.bound:
        return "the job's checkpoint is on another host"
    if standby.version == job.version and job.named_host not in (None, host.name):
        return f"the job's label {HOST_LABEL} names another host"
    if job.cluster is not None and not job.cluster.reached_from(host.name):
        return "its host does not reach the job's cluster"
    return ""


def _surplus(job: StandbyDemand, standbys: Sequence[StandbyFacts], fleet: Fleet) -> list[StandbyFacts]:
    """Return the worst placed standbys beyond `replicas`; the last ready one stays until its replacement is ready."""
    staying = list(standbys)
    surplus: list[StandbyFacts] = []
    while len(staying) > job.replicas:
        worst = max(staying, key=lambda s: (_penalty(job, fleet.hosts[s.host], _others(staying, s), fleet), s.run))
        ready = sum(standby.ready for standby in staying if standby is not worst)
        if worst.ready and ready < job.replicas and len(staying) == job.replicas + 1:
            break
        staying.remove(worst)
        surplus.append(worst)
    return surplus


def _better(job: StandbyDemand, standbys: Sequence[StandbyFacts], fleet: Fleet) -> list[AddStandby]:
    """Add a replacement for a badly placed standby, one at a time."""
    for standby in [] if job.failed_recently or not _has_room(fleet) else standbys:
        others = _others(standbys, standby)
        best = _best(job, others, fleet)
        # The failure domains of other standbys change with each of them and do not justify a move.
        current = _penalty(job, fleet.hosts[standby.host], others, fleet)[:3]
        if best is not None and _penalty(job, best, others, fleet)[:3] < current:
            why = _why(job, best, others, fleet)
            fleet.take(best.id, standby=True)
            return [AddStandby(best.id, why)]
    return []


def _missing(job: StandbyDemand, hosts: list[str], fleet: Fleet) -> list[AddStandby]:
    """Add the standbys that are missing, as far as there are slots."""
    adds: list[AddStandby] = []
    while len(hosts) + job.failed_recently < job.replicas and _has_room(fleet):
        best = _best(job, hosts, fleet)
        if best is None:
            break
        adds.append(AddStandby(best.id, _why(job, best, hosts, fleet)))
        fleet.take(best.id, standby=True)
        hosts = [*hosts, best.id]
    return adds


def _has_room(fleet: Fleet) -> bool:
    """Whether a slot is free that no driver needs."""
    return fleet.free > fleet.reserved


def _others(standbys: Sequence[StandbyFacts], standby: StandbyFacts) -> list[str]:
    return [other.host for other in standbys if other is not standby]


def _best(job: StandbyDemand, hosts: Sequence[str], fleet: Fleet) -> HostFacts | None:
    candidates = [
        host
        for host in fleet.open_for(job.cluster)
        if job.bound in (None, host.id)
        and job.named_host in (None, host.name)
        and not fleet.memory_shortage(host, standby=True)
    ]
    return min(
        candidates,
        key=lambda host: (
            host.unresponsive,
            _penalty(job, host, hosts, fleet),
            Fraction(host.used, host.slots),
            fleet.load(host.domain),
            host.name,
        ),
        default=None,
    )


def _penalty(job: StandbyDemand, host: HostFacts, hosts: Sequence[str], fleet: Fleet) -> tuple[bool, int, bool, int]:
    """Return what a host shares with the driver, and with the standbys on `hosts`: the host, then the domain."""
    domains = [fleet.hosts[other].domain for other in hosts if other in fleet.hosts]
    driver = fleet.hosts.get(job.host or "")
    return (
        host.id == job.host,
        sum(other == host.id for other in hosts),
        driver is not None and host.domain == driver.domain,
        domains.count(host.domain),
    )


def _why(job: StandbyDemand, host: HostFacts, hosts: Sequence[str], fleet: Fleet) -> str:
    with_driver, with_standbys, near_driver, near_standbys = _penalty(job, host, hosts, fleet)
    load = f"{host.used} of {host.slots} slots taken"
    if job.bound is not None:
        return f"the job's checkpoint is a path of this host ({load})"
    if job.named_host is not None:
        return f"the job's label {HOST_LABEL} names this host ({load})"
    if with_driver:
        return f"no other host is open; it fails together with the driver's host ({load})"
    where = "another failure domain than the driver's" if not near_driver else "another host than the driver's"
    shared = " and other standbys are here" if with_standbys else " that has other standbys" if near_standbys else ""
    return f"{where}{shared}, least loaded ({load})"
