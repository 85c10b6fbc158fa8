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
    """A Spark cluster that jobs can use."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    version: int
    """Version of the description, from 1; the value of the ETag."""
    spec: ClusterSettings
    """Description, without secrets: it refers to them by name."""
    state: ClusterState
    state_since: Moment
    report: ClusterReport | None = None
    """What the last check saw, if it ended since the newest change of the description."""
    checked_at: Moment | None = None
    """Time at which that check ended."""
    failure: Failure | None = None
    """Why the last check failed, or why no check has begun."""
    jobs: list[str] = Field(default_factory=list)
    """Names of the jobs that run on the cluster, or will as soon as they have a host. It cannot be removed before they
    are stopped.
    """
    created_by: str
    """Subject that added the cluster."""
    created_at: Moment
    updated_at: Moment
