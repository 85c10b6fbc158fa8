"""Checks descriptions of Spark clusters, and the jobs that name a cluster.

A driver sends its job's code and secrets to its cluster, and has results from there. Jobs therefore name a cluster that
an admin has added, and cannot change what its description sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.clusters import ClusterState
from clonos.resources.service import FieldProblem
from clonos_api.admission import spec_checks
from clonos_api.store import clusters
from clonos_api.store.tables import ClusterRow

_SHOWN: Final = 10
# Fields of the description and of jobs set these.
_SET_BY_FIELDS: Final = {
    "spark.master": "spec.master",
    "spark.app.name": "the job's name",
    "spark.authenticate.secret": "spec.authSecret",
    "spark.executor.instances": "the job's executor.instances",
    "spark.executor.cores": "the job's executor.cores",
    "spark.executor.memory": "the job's executor.memory",
}


def check_description(cluster: ClusterSpec) -> list[FieldProblem]:
    """Return the problems of a submitted description: limits, secrets that are not references, fixed settings."""
    problems = [
        *spec_checks.check_labels(cluster.metadata.labels),
        *spec_checks.check_size(cluster, "the description"),
    ]
    if "@" in urlsplit(cluster.spec.ui).netloc:
        what = "the address holds a user or password, and every viewer reads it"
        problems.append(FieldProblem(field="spec.ui", what=what, hint="leave it out of the address."))
    conf = cluster.spec.spark_conf
    if len(conf) > spec_checks.MAX_ENTRIES:
        what = f"{spec_checks.MAX_ENTRIES} settings are the most"
        return [*problems, FieldProblem(field="spec.sparkConf", what=what)]
    for name, value in conf.items():
        path = f"spec.sparkConf.{spec_checks.shown(name)}"
        if name in _SET_BY_FIELDS:
            hint = f"set {_SET_BY_FIELDS[name]}."
            problems.append(FieldProblem(field=path, what="a field sets this", hint=hint))
        else:
            problems += spec_checks.check_setting(name, value, path)
    return problems


async def check_job(session: AsyncSession, spec: JobSpec) -> list[FieldProblem]:
    """Return the problems of a job with its cluster: unknown, INCOMPATIBLE, or settings that the cluster sets."""
    name = spec.spec.cluster
    if not name:
        return []
    known = await clusters.every(session)
    cluster = known.get(name)
    if cluster is None:
        others = ", ".join(list(known)[:_SHOWN]) + (" and more" if len(known) > _SHOWN else "")
        hint = f"use one of {others}." if known else "there is none; an admin adds one with: clonos cluster add"
        return [FieldProblem(field="spec.cluster", what=f"there is no cluster {name!r}", hint=hint)]
    return [*_incompatible(cluster), *_overridden(cluster, spec)]


def _incompatible(cluster: ClusterRow) -> Iterator[FieldProblem]:
    if cluster.state == ClusterState.INCOMPATIBLE:
        seen = " ".join(cluster.report.problems if cluster.report is not None else ())
        hint = f"let an admin fix it, then: clonos cluster check {cluster.name}"
        yield FieldProblem(field="spec.cluster", what=f"cluster {cluster.name} is INCOMPATIBLE: {seen}", hint=hint)


def _overridden(cluster: ClusterRow, spec: JobSpec) -> Iterator[FieldProblem]:
    for name in sorted(clusters.description(cluster).spec.spark_conf.keys() & spec.spec.spark_conf.keys()):
        what = f"cluster {cluster.name} sets this for all of its jobs"
        yield FieldProblem(field=f"spec.sparkConf.{spec_checks.shown(name)}", what=what, hint="leave it out.")
