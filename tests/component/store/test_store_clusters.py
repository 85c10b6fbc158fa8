"""Clusters: the table of their states, changes under a version, and their checks."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from clonos.errors import ConcurrentUpdate, NameTaken, StateConflict, VersionStale
from clonos.jobs.cluster import ClusterSpec
from clonos.resources.clusters import ClusterState
from clonos.resources.failures import SpecRefused
from clonos.resources.hosts import TaskResult
from clonos.resources.jobs import Failure
from clonos_api.store import audit, clusters, events, operations, outcomes, runs, tasks
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.database import Actor, Database
from clonos_api.store.db.paging import Window
from clonos_api.store.tables import ClusterRow, OperationRow, TaskRow
from support.stored import host_row, job_row, run_spec, unique

pytestmark = pytest.mark.anyio
S = ClusterState
ADA = Actor("ada", "t1")
FAILED = Failure(error="environment", what="No route to the master.")

# A second, independent copy of the table. Other pairs are never allowed.
EXPECTED = {
    S.UNCHECKED: {S.CHECKING},
    S.CHECKING: {S.READY, S.INCOMPATIBLE, S.UNREACHABLE, S.UNCHECKED},
    S.READY: {S.CHECKING, S.UNCHECKED},
    S.INCOMPATIBLE: {S.CHECKING, S.UNCHECKED},
    S.UNREACHABLE: {S.CHECKING, S.UNCHECKED},
}


def cluster(name: str, **settings: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"metadata": {"name": name}, "spec": {"master": "spark://m:7077", **settings}})


async def made(database: Database, **settings: Any) -> ClusterRow:
    async with database.transaction(by=ADA) as session:
        return await clusters.create(session, cluster(unique("c"), **settings), by="ada")


async def current(database: Database, row: ClusterRow) -> ClusterRow:
    async with database.reading() as session:
        return await clusters.get(session, row.name)


async def the_check(database: Database, row: ClusterRow) -> OperationRow:
    async with database.reading() as session:
        (operation,) = await clusters.checks(session, row)
        return operation


async def begun(database: Database, row: ClusterRow) -> TaskRow:
    """The host task of a check, as the reconciler creates it."""
    operation = await the_check(database, row)
    async with database.transaction() as session:
        row = await clusters.begin_check(session, await clusters.get(session, row.name))
        host = await host_row(session)
        arguments = {"cluster": row.id, "version": row.version}
        return await tasks.create(session, host.id, clusters.CHECK, arguments, operation=operation.id)


async def operation_of(database: Database, task: TaskRow) -> OperationRow:
    async with database.reading() as session:
        return await operations.get(session, task.operation or "")


async def reported(database: Database, task: TaskRow, **result: Any) -> None:
    async with database.transaction() as session:
        assert await tasks.end(session, await tasks.get(session, task.id))
        await outcomes.settle(session, task, TaskResult(instance="", **result))


@pytest.mark.parametrize(("source", "target"), list(product(S, S)), ids=str)
async def test_pair_of_states_is_allowed_only_as_in_the_table(
    database: Database, source: ClusterState, target: ClusterState
) -> None:
    row = await made(database)
    async with database.transaction() as session:
        row.state = source
        row = await session.merge(row)
        await session.flush()
        if target in EXPECTED[source]:
            assert (await clusters.move(session, row, target)).state == target
        else:
            with pytest.raises(StateConflict, match=f"from {source} to {target}"):
                await clusters.move(session, row, target)


async def test_a_new_cluster_is_unchecked_and_its_check_is_requested(database: Database) -> None:
    row = await made(database, sparkConf={"spark.driver.host": "a"})
    assert (row.state, row.version, row.created_by) == ("UNCHECKED", 1, "ada")
    assert clusters.description(row) == cluster(row.name, sparkConf={"spark.driver.host": "a"})
    assert (await the_check(database, row)).arguments == OperationArguments(cluster=row.id, version=1)
    async with database.reading() as session:
        begun_operation, created = (await audit.page(session, Window(2))).rows
        assert (created.subject, created.action, created.target) == ("ada", "cluster.create", row.id)
        assert begun_operation.action == "operation.check-cluster"
        rows = await events.after(session, 0, types=["cluster.created"])
        assert row.name in [event.data["cluster"] for event in rows]
    with pytest.raises(NameTaken, match=row.name):
        async with database.transaction() as session:
            await clusters.create(session, cluster(row.name), by="bob")


async def test_a_change_needs_the_version_and_requests_a_new_check(database: Database) -> None:
    row = await made(database)
    first = await begun(database, row)
    async with database.transaction() as session:
        before = await clusters.get(session, row.name)
        changed = await clusters.change(session, before, cluster(row.name, hosts=["a"]), version=1, by="ada")
        assert (changed.state, changed.version, changed.spec.hosts) == ("UNCHECKED", 2, ("a",))
    ended = await operation_of(database, first)
    assert (ended.state, ended.failure.error) == ("FAILED", "overtaken")
    assert (await the_check(database, row)).arguments.version == 2
    for version, name, error in ((1, row.name, VersionStale), (2, "other", SpecRefused)):
        newest = await current(database, row)
        with pytest.raises(error):
            async with database.transaction() as session:
                await clusters.change(session, newest, cluster(name), version=version, by="ada")
    with pytest.raises(ConcurrentUpdate):
        async with database.transaction() as session:
            await clusters.change(session, row, cluster(row.name), version=1, by="ada")


async def test_problems_make_it_incompatible_and_a_failure_unreachable(database: Database) -> None:
    row = await made(database)
    task = await begun(database, row)
    await reported(database, task, ok=True, result={"problems": ["Python is 3.9."]})
    assert (await current(database, row)).state == "INCOMPATIBLE"
    assert (await operation_of(database, task)).result["state"] == "INCOMPATIBLE"
    async with database.transaction() as session:
        await clusters.request_check(session, await clusters.get(session, row.name), by="ada")
    task = await begun(database, row)
    await reported(database, task, ok=False, failure=FAILED)
    row = await current(database, row)
    assert (row.state, row.failure.what) == ("UNREACHABLE", FAILED.what)
    assert row.report.problems == ("Python is 3.9.",), "the last report stays"
    assert (await operation_of(database, task)).state == "FAILED"


async def test_a_result_of_an_older_version_changes_nothing(database: Database) -> None:
    row = await made(database)
    old = await begun(database, row)
    async with database.transaction() as session:
        newest = await clusters.get(session, row.name)
        await clusters.change(session, newest, cluster(row.name, python="python3"), version=1, by="ada")
    new = await begun(database, row)
    async with database.transaction() as session:
        await outcomes.settle(session, old, TaskResult(instance="", ok=True, result={}))
    assert (await current(database, row)).state == "CHECKING"
    await reported(database, new, ok=True)
    assert (await current(database, row)).state == "READY"


async def test_one_check_at_a_time(database: Database) -> None:
    row = await made(database)
    async with database.transaction() as session:
        assert (await clusters.request_check(session, row, by="bob")).created_by == "ada"
    assert (await the_check(database, row)).created_by == "ada"


async def test_a_driver_keeps_its_cluster_although_a_newer_version_has_another(database: Database) -> None:
    row = await made(database)
    async with database.transaction() as session:
        job = await job_row(session)
        host = await host_row(session)
        described = clusters.description(row).model_dump(mode="json")
        run = await runs.create(session, job, host, run_spec(job, cluster=described))
        assert await clusters.jobs_using(session, row.name) == [job.name]
        assert (await clusters.users(session)) == {row.name: [job.name]}
        await runs.end(session, run)
        assert await clusters.jobs_using(session, row.name) == []
