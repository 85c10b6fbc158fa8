"""Bodies for Spark clusters: their descriptions, states and checks."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from clonos.jobs.cluster import ClusterReport, ClusterSettings
from clonos.resources.base import Moment, Resource
from clonos.resources.jobs import Failure


class ClusterState(StrEnum):
    """State of a cluster in the control plane; `clonos_api.store.clusters` has the table of transitions."""

    UNCHECKED = "UNCHECKED"  # no check has ended since the newest change of its description
    CHECKING = "CHECKING"  # a host executes a check
    READY = "READY"  # the last check saw no problem
    INCOMPATIBLE = "INCOMPATIBLE"  # the last check saw problems: no job can be submitted to it
    UNREACHABLE = "UNREACHABLE"  # the last check failed, or did not end in time


class Cluster(Resource):
    """A Spark cluster that jobs can use.

    Attributes:
        version: Version of the description, from 1; the value of the ETag.
        spec: Description, without secrets: it refers to them by name.
        report: What the last check saw, if it ended since the newest change of the description.
        checked_at: Time at which that check ended.
        failure: Why the last check failed, or why no check has begun.
        jobs: Names of the jobs that run on the cluster, or will as soon as they have a host. It cannot be removed
            before they are stopped.
        created_by: Subject that added the cluster.
    """

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    version: int
    spec: ClusterSettings
    state: ClusterState
    state_since: Moment
    report: ClusterReport | None = None
    checked_at: Moment | None = None
    failure: Failure | None = None
    jobs: list[str] = Field(default_factory=list)
    created_by: str
    created_at: Moment
    updated_at: Moment
