"""Jobs on Spark clusters: their hosts, standbys and run specifications; and checks of clusters by the leader."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import select

from clonos.errors import ConcurrentUpdate
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import HostState, RunSpec
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile import ending, standbys
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.decisions import NOTHING
from clonos_api.reconcile.facts import ClusterFacts, HostFacts, JobFacts, RunFacts, StandbyDemand, StandbyFacts
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.placement import HOST_LABEL, Fleet, NoPlacement, Placement, place
from clonos_api.reconcile.standby_demands import standby_demand
from clonos_api.reconcile.states import moving
from clonos_api.reconcile.tidying import tidy
from clonos_api.store import clusters, hosts, jobs, operations
from clonos_api.store.columns import Moving
from clonos_api.store.db.database import Database
from clonos_api.store.tables import ClusterRow, HostRow, JobRow, OperationRow, RunRow, TaskRow
from component.reconcile.acting import Placing, Users, eventually, reconciling, running_hosts
from support.stored import host_row, store_artifact, typed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = JobFacts(id="j", name="j", state=JobState.STARTING, desired=DesiredState.RUNNING, since=NOW)
DEMAND = StandbyDemand(id="j", state=JobState.RUNNING, desired=DesiredState.RUNNING, replicas=1, version=1, host="a")


def host(name: str, *, used: int = 0, state: HostState = HostState.READY) -> HostFacts:
    return HostFacts(id=name, name=name, state=state, domain=name, slots=2, used=used)


def on(*names: str, name: str = "c") -> ClusterFacts:
    return ClusterFacts(name=name, hosts=frozenset(names))


def placed(job: JobFacts, *open_hosts: HostFacts) -> str:
    result = place(job, Fleet(open_hosts))
    return result.host if isinstance(result, Placement) else result.why


def test_a_job_is_placed_only_on_hosts_that_reach_its_cluster() -> None:
    every = (host("a"), host("b", used=1), host("c"))
    assert placed(replace(JOB, cluster=on()), *every) == "a"
    assert placed(replace(JOB, cluster=on("b")), *every) == "b"
    assert placed(replace(JOB, cluster=on("b", "c")), *every) == "c"


def test_the_reason_without_a_host_names_those_of_the_cluster() -> None:
    full, lost = host("b", used=2), host("c", state=HostState.LOST)
    waiting = replace(JOB, cluster=on("b", "c", "d", name="spark"))
    assert placed(waiting, host("a"), full, lost) == (
        "No host that reaches cluster spark is free: b has no free slot; c is lost; d is not registered."
    )
    assert not isinstance(place(waiting, Fleet([full])), Placement)
    assert placed(replace(JOB, cluster=on()), full) == "No host is free: b has no free slot."


@pytest.mark.parametrize(
    "bound", [{"labels": {HOST_LABEL: "a"}}, {"local": True, "home": "a"}], ids=["label", "checkpoint"]
)
def test_a_job_that_is_bound_to_a_host_off_the_cluster_waits_with_a_reason(bound: dict[str, Any]) -> None:
    result = place(replace(JOB, cluster=on("b"), **bound), Fleet([host("a"), host("b")]))
    assert isinstance(result, NoPlacement)
    assert "does not reach cluster c" in result.why
    assert "`hosts`, which are b" in result.hint
    assert placed(replace(JOB, cluster=on("a"), **bound), host("a"), host("b")) == "a"


def test_a_removed_cluster_is_a_permanent_reason() -> None:
    result = place(replace(JOB, cluster=ClusterFacts(name="c", exists=False)), Fleet([host("a")]))
    assert isinstance(result, NoPlacement)
    assert result.permanent
    assert "no cluster c" in result.why


def test_standbys_are_on_hosts_that_reach_the_cluster() -> None:
    fleet = Fleet([host("a"), host("b"), host("c", used=1)])
    added = standbys.decide(replace(DEMAND, cluster=on("a", "c")), [], fleet)
    assert [addition.host for addition in added.standbys.add] == ["c"]
    removed = replace(DEMAND, cluster=ClusterFacts(name="c", exists=False))
    assert standbys.decide(removed, [], Fleet([host("b")])) == NOTHING
    off = StandbyFacts(run="s", host="b", state="READY")
    dropped = standbys.decide(replace(DEMAND, cluster=on("a", "c")), [off], Fleet([host("a"), host("b")]))
    assert [drop.why for drop in dropped.standbys.drop] == ["its host does not reach the job's cluster"]


@pytest.mark.parametrize(("cause", "host_of_standby"), [("move", "b"), ("upgrade", "c")])
def test_a_planned_move_prepares_a_standby_on_the_cluster_of_its_version(
    cause: Literal["move", "upgrade"], host_of_standby: str
) -> None:
    newest = 2 if cause == "upgrade" else 1
    until = NOW + timedelta(hours=1)
    move = Moving(cause=cause, operation="o", leaves="a", version=newest, previous=1, until=until)
    job = replace(JOB, state=JobState.RUNNING, version=newest, relocatable=True, planned_move=move)
    job = replace(job, cluster=on("a", "b", name="old"), newest_cluster=on("c", name="new"))
    run = RunFacts(id="r", host="a", state="RUNNING", driver_state="RUNNING", claimed=True, created_at=NOW)
    made = moving.decide(job, run, Fleet([host("a", used=1), host("b"), host("c"), host("d")]), NOW)
    assert made is not None
    assert [addition.host for addition in made.standbys.add] == [host_of_standby]


def row(name: str, **settings: Any) -> ClusterRow:
    described = ClusterSpec.model_validate(
        {"metadata": {"name": name}, "spec": {"master": "spark://m:7077", **settings}}
    )
    return ClusterRow(name=name, labels={}, spec=described.spec)


def job_row(checkpoint: str | None = None, cluster: str = "c") -> JobRow:
    spec = {"metadata": {"name": "j"}, "spec": {"cluster": cluster, "checkpoint": checkpoint}}
    fields = {"id": "j", "name": "j", "labels": {}, "version": 1, "state": "RUNNING", "desired_state": "RUNNING"}
    return typed(JobRow, **fields, state_since=NOW, restart_nonce=0, observed_nonce=0, spec=spec)


@pytest.mark.parametrize(
    ("checkpoint", "local"),
    [
        ("file:///mnt/shared/j", False),
        ("/mnt/shared/j", False),
        ("file:///mnt/shared2/j", True),
        ("file:///data/j", True),
        ("hdfs://h/j", False),
        (None, True),
    ],
)
def test_a_checkpoint_in_a_shared_location_of_the_cluster_binds_to_no_host(checkpoint: str, local: bool) -> None:
    locations = CheckpointLocations(Path("/home"), None, "/save")
    known = {"c": row("c", sharedLocations=["file:///mnt/shared"], hosts=["a"])}
    case = JobCase(job_row(checkpoint), None, clusters=known)
    facts, _ = case.facts(locations)
    assert facts.local is local
    assert facts.cluster == on("a")
    bound = standby_demand(JobCase(job_row(checkpoint), None, clusters={}), locations)
    assert bound.cluster == ClusterFacts(name="c", exists=False)


def test_the_cluster_of_a_recovery_is_that_of_its_driver() -> None:
    old = JobSpec.model_validate({"metadata": {"name": "j"}, "spec": {"cluster": "old"}})
    spec = RunSpec(run="r", job="j", name="j", version=1, spec=old, artifact="a" * 64, desired="RUNNING")
    run = RunRow(id="r", spec=spec, state="RUNNING", consecutive_failures=0, created_at=NOW,
                 host="a", attempts=1)  # fmt: skip
    facts, _ = JobCase(job_row(cluster="new"), run, clusters={"old": row("old"), "new": row("new")}).facts(
        CheckpointLocations(Path("/home"), "s3a://x", "/save")
    )
    assert (facts.cluster, facts.newest_cluster) == (on(name="old"), on(name="new"))


@pytest.mark.anyio
async def test_a_run_gets_the_newest_description_of_its_cluster(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with database.transaction() as session:
        first = ClusterSpec.model_validate(
            {"metadata": {"name": "spark"}, "spec": {"master": "spark://m:7077", "hosts": ["b"]}}
        )
        await clusters.create(session, first, by="ada")
        spec = JobSpec.model_validate({"metadata": {"name": "words"}, "spec": {"main": "job.py", "cluster": "spark"}})
        await jobs.create(session, spec, await store_artifact(session), created_by="ada")
    async with reconciling(database, placing), running_hosts(database, "a", "b") as actors:
        await users.until("RUNNING")
        (run,) = await users.runs()
        assert run.host == actors["b"].id
        assert run.spec.cluster == first
        changed = first.model_copy(update={"spec": first.spec.model_copy(update={"master": "spark://n:7077"})})

        async def is_changed() -> bool:
            with contextlib.suppress(ConcurrentUpdate):  # by the leader, which checks the cluster
                async with database.transaction() as session:
                    newest = await clusters.get(session, "spark")
                    await clusters.change(session, newest, changed, version=1, by="ada")
                return True
            return False

        await eventually(is_changed, "the description is changed")
        assert (await users.ended(await users.ask("restart"))).state == "COMPLETED"
        assert (await users.runs())[-1].spec.cluster == changed

        async def checked() -> bool:
            return (await current(database)).state == "READY"

        await eventually(checked, "the leader has the changed cluster checked")


async def a_cluster(database: Database, **settings: Any) -> tuple[ClusterRow, OperationRow]:
    described = {"metadata": {"name": "spark"}, "spec": {"master": "spark://m:7077", **settings}}
    async with database.transaction() as session:
        made = await clusters.create(session, ClusterSpec.model_validate(described), by="ada")
        (operation,) = await clusters.checks(session, made)
        return made, operation


async def round_of_ending(database: Database) -> None:
    """What the leader does with operations in each round."""
    locations = CheckpointLocations(Path("/home"), None, "/save")
    async with database.reading() as session:
        pending, every = await ending.read(session), await hosts.every(session)
    for operation in pending:
        if ending.is_due(operation, every, locations):
            async with database.transaction() as session:
                await ending.end(session, operation, every, locations)


async def open_tasks(database: Database) -> list[TaskRow]:
    async with database.reading() as session:
        return list(await session.scalars(select(TaskRow).where(TaskRow.ended_at.is_(None))))


async def current(database: Database) -> ClusterRow:
    async with database.reading() as session:
        return await clusters.get(session, "spark")


@pytest.mark.anyio
async def test_a_check_waits_for_a_host_of_the_cluster_and_begins_there(database: Database) -> None:
    made, operation = await a_cluster(database, hosts=["b"])
    async with database.transaction() as session:
        await host_row(session, "a")
    await round_of_ending(database)
    waiting = await current(database)
    assert waiting.state == "UNCHECKED"
    assert "None of its hosts (b) is READY" in waiting.failure.what
    await round_of_ending(database)
    assert (await current(database)).row_version == waiting.row_version, "the reason is written once"
    async with database.transaction() as session:
        agent = await host_row(session, "b")
    await round_of_ending(database)
    (task,) = await open_tasks(database)
    assert (task.host, task.kind, task.operation) == (agent.id, "check-cluster", operation.id)
    assert task.owner_number == 1, "the process has the user of the subject that added the cluster"
    assert ClusterSpec.model_validate(task.arguments["spec"]) == clusters.description(made)
    assert task.arguments["timeout_s"] == clusters.CHECK_S
    checking = await current(database)
    assert (checking.state, checking.failure) == ("CHECKING", None)
    await round_of_ending(database)
    assert [task.id for task in await open_tasks(database)] == [task.id]
    async with database.transaction() as session:
        assert await tidy(session) == 0


@pytest.mark.anyio
async def test_a_check_on_a_lost_host_begins_on_another(database: Database) -> None:
    await a_cluster(database)
    async with database.transaction() as session:
        first = await host_row(session, "a")
    await round_of_ending(database)
    async with database.transaction() as session:
        await host_row(session, "b")
        (await session.get_one(HostRow, first.id)).state = HostState.LOST
    await round_of_ending(database)
    (task,) = await open_tasks(database)
    assert task.host != first.id
    assert (await current(database)).state == "CHECKING"


@pytest.mark.anyio
@pytest.mark.parametrize(("begun", "state"), [(True, "UNREACHABLE"), (False, "UNCHECKED")])
async def test_a_check_ends_at_its_deadline(database: Database, begun: bool, state: str) -> None:
    made, operation = await a_cluster(database)
    if begun:
        async with database.transaction() as session:
            await host_row(session, "a")
    await round_of_ending(database)
    async with database.transaction() as session:
        late = await session.get_one(OperationRow, operation.id)
        late.deadline = NOW
    async with database.transaction() as session:
        assert await ending.expire(session) == 1
    ended = await current(database)
    assert ended.state == state
    assert ended.failure is not None
    assert await open_tasks(database) == []
    async with database.reading() as session:
        assert (await operations.get(session, operation.id)).state == "FAILED"
        assert made.id == ended.id


@pytest.mark.anyio
async def test_a_removed_cluster_has_no_check(database: Database) -> None:
    made, operation = await a_cluster(database)
    async with database.transaction() as session:
        await clusters.remove(session, await clusters.get(session, made.name))
    await round_of_ending(database)
    async with database.reading() as session:
        assert (await operations.get(session, operation.id)).state == "FAILED"
    assert await open_tasks(database) == []
