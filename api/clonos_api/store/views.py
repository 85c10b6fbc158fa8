"""Rows of the store as resources of the API. Most fields of a resource are the columns with their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from clonos.resources import base
from clonos.resources.clusters import Cluster
from clonos.resources.hosts import Host, Standby
from clonos.resources.jobs import Generation, Job, JobSummary, Recovery, Run
from clonos_api.store.db.paging import Page
from clonos_api.store.tables import Base, ClusterRow, GenerationRow, HostRow, JobRow, RecoveryRow, RunRow, StandbyRow

R = TypeVar("R", bound=base.Resource)

Names = Mapping[str, str]
"""Host id → name."""


def resource(model: type[R], row: Base, **others: Any) -> R:
    """Return a row as a resource of the type `model`; `others` are the fields that are not columns."""
    columns = {name: getattr(row, name) for name in model.model_fields if name not in others}
    return model.model_validate({**columns, **others})


def page(model: type[R], rows: Page[Any]) -> base.Page[R]:
    """Return a page of resources whose fields are all columns."""
    return listed((resource(model, row) for row in rows.rows), rows.next)


def listed(items: Iterable[R], next_cursor: str | None = None) -> base.Page[R]:
    """Return a page of resources as the API returns it; `next_cursor` is None on the last page."""
    return base.Page(data=list(items), has_more=next_cursor is not None, next=next_cursor)


def job(row: JobRow, host: str | None) -> Job:
    """Convert the row of a job; `host` is the name of the host of its newest run."""
    return resource(Job, row, host=host)


def job_summary(row: JobRow, host: str | None) -> JobSummary:
    """Convert the row of a job without its specification, which need not be loaded."""
    return resource(JobSummary, row, host=host)


def run(row: RunRow, hosts: Names) -> Run:
    """Convert the row of a run; `hosts` has the names of hosts by their ids."""
    spec, state = row.spec, row.ingest_state
    others = {
        "host": hosts.get(row.host, row.host),
        "version": spec.version,
        "standby": spec.standby,
        "cluster": spec.cluster.name if spec.cluster is not None else None,
        "application_id": state.application_id,
        "spark_ui": state.spark_ui,
        "executors": msgspec.to_builtins(state.executors),
        "awaited": [query for query in state.queries if query not in state.returned] if state.queries else None,
    }
    return resource(Run, row, **others)


def cluster(row: ClusterRow, jobs: Sequence[str]) -> Cluster:
    """Convert the row of a Spark cluster; `jobs` has the names of the jobs that use it."""
    return resource(Cluster, row, jobs=jobs)


def generation(row: GenerationRow, host: str) -> Generation:
    """Convert the row of a generation; `host` is the name of its driver's host."""
    return resource(Generation, row, host=host)


def recovery(row: RecoveryRow) -> Recovery:
    """Convert the row of a recovery."""
    body = msgspec.structs.asdict(row.body)
    del body["silent_since"]
    return resource(Recovery, row, **body)


def host(row: HostRow, runs: int) -> Host:
    """Convert the row of a host; `runs` is its number of open runs."""
    return resource(Host, row, runs=runs, free=max(0, row.slots - runs))


def standby(row: StandbyRow, hosts: Names, lag_epochs: int | None) -> Standby:
    """Convert the row of a standby; `lag_epochs` is the number of committed epochs that it has not read yet."""
    why = row.body.placement_reason
    return resource(Standby, row, host=hosts.get(row.host, row.host), placement_reason=why, lag_epochs=lag_epochs)
