"""Jobs and artifacts: compare-and-set under concurrent writers."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from sqlalchemy import select

from clonos.errors import ConcurrentUpdate, NameTaken, NotFound, RequestTooLarge, SpecError, StateConflict, VersionStale
from clonos.jobs.spec import JobSpec
from clonos.resources.jobs import Failure, JobState, StartFrom
from clonos_api.store import artifacts, audit, events, jobs, owners, recoveries, runs
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Actor, Database
from clonos_api.store.db.paging import Window
from clonos_api.store.tables import ArtifactPartRow, GenerationRow, JobRow
from support.stored import host_row, job_row, run_row, run_spec, spec, store_artifact, unique

pytestmark = pytest.mark.anyio
ADA = Actor("ada", "t1")


def anything(_source: JobState, _to: JobState) -> bool:
    return True


async def made(database: Database, **labels: str) -> JobRow:
    async with database.transaction() as session:
        return await job_row(session, **labels)


async def test_a_new_job(database: Database) -> None:
    name = unique("job-")
    async with database.transaction(by=ADA) as session:
        sha = await store_artifact(session)
        start = StartFrom(epoch=3)
        job = await jobs.create(session, spec(name, team="a"), sha, created_by="ada", start=False, start_from=start)
    async with database.reading() as session:
        for which in (job.id, name):
            actual = await jobs.get(session, which)
            assert (actual.id, actual.state, actual.desired_state, actual.version) == (job.id, "CREATED", "STOPPED", 1)
            assert actual.start_from == start
            assert actual.labels == {"team": "a"}
            assert actual.stop is None
        versions = (await jobs.versions(session, job.id)).rows
        assert [(item.version, item.artifact, item.created_by) for item in versions] == [(1, sha, "ada")]
        actual_rows = await events.after(session, 0, job=job.id)
        assert [(item.type, item.data["name"]) for item in actual_rows] == [("job.created", name)]
        entry = (await audit.page(session, Window(1))).rows[0]
        assert (entry.subject, entry.token, entry.action, entry.target) == ("ada", "t1", "job.create", job.id)
        # A missing value is NULL. A query for NULL would not match JSON's null.
        assert (await session.scalars(select(JobRow.id).where(JobRow.failure.is_(None), JobRow.id == job.id))).one()


async def test_the_version_to_go_back_to_finished_an_epoch_and_did_not_fail(database: Database) -> None:
    """Version 2 finished the last epoch, and its newest run failed as well; version 3 never finished one."""
    raised = {"error": "job-code-failed", "what": "It raised.", "domain": "user"}
    killed = {"error": "driver-crashed", "what": "It was killed.", "domain": "run"}
    job = await made(database)
    async with database.transaction() as session:
        for version in (1, 2, 3):
            job = await jobs.patch(session, job, version=version, spec=spec(job.name, v=str(version)), by="ada")
        history = [(1, 5, raised), (1, 2, killed), (2, 7, None), (2, 0, raised), (3, 0, None), (4, 1, raised)]
        for generation, (version, epochs, failure) in enumerate(history):
            run = await run_row(session, job)
            run.spec, run.failure = run.spec.model_copy(update={"version": version}), failure
            session.add(
                GenerationRow(
                    job=job.id,
                    lineage=0,
                    generation=generation,
                    claim_id=str(generation),
                    run=run.id,
                    attempt=1,
                    cause="start",
                    claimed_at=await now(session),
                    epochs=epochs,
                )
            )
            await session.flush()
        assert await jobs.worked(session, job, but=4) == 1
        assert await jobs.worked(session, job, but=1) is None, "the others failed, or finished no epoch"


async def test_unset_fields_of_a_specification_remain_unset(database: Database) -> None:
    """There the decorator in the job's code counts."""
    written = JobSpec.model_validate({"metadata": {"name": unique("job-")}, "spec": {"sharingDepth": 1}})
    async with database.transaction() as session:
        sha = await store_artifact(session)
        job = await jobs.create(session, written, sha, created_by="ada")
        host = await host_row(session)
        await runs.create(session, job, host, run_spec(job))
        (remaining,) = (await runs.work(session, host.id)).runs
    assert JobSpec.model_validate(job.spec).spec.model_fields_set == {"sharing_depth"}
    assert remaining.spec.spec.model_fields_set == {"sharing_depth"}


async def test_many_create_one_name(database: Database) -> None:
    name = unique("job-")

    async def create() -> str:
        async with database.transaction() as session:
            return (await job_row(session, name)).id

    results = await asyncio.gather(*(create() for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, NameTaken) for result in results) == 11


async def test_each_owner_has_one_number(database: Database) -> None:
    """Also if several of its jobs are created at once."""
    subjects = [unique("owner-") for _ in range(3)]

    async def number(subject: str) -> tuple[str, int]:
        async with database.transaction() as session:
            return subject, await owners.number(session, subject)

    numbers = set(await asyncio.gather(*(number(subject) for subject in subjects * 4)))
    assert {subject for subject, _ in numbers} == set(subjects)
    assert len({value for _, value in numbers}) == len(numbers) == 3
    assert min(value for _, value in numbers) > 0

    async def refused() -> None:
        async with database.transaction() as session:
            await owners.number(session, unique("refused-"))
            raise NameTaken("x")

    with pytest.raises(NameTaken):
        await refused()
    following = (await number(unique("owner-")))[1]
    assert following == max(value for _, value in numbers) + 1, "a refused job takes no number"


async def test_an_unknown_artifact(database: Database) -> None:
    with pytest.raises(NotFound):
        async with database.transaction() as session:
            await jobs.create(session, spec(unique()), "0" * 64, created_by="ada")


async def test_of_many_patches_of_one_version_one_wins(database: Database) -> None:
    job = await made(database)

    async def patch(number: int) -> int:
        async with database.transaction() as session:
            fresh = await jobs.get(session, job.id)
            await asyncio.sleep(0)
            await jobs.patch(session, fresh, version=1, spec=spec(job.name, by=str(number)), by="bob")
            return number

    results = await asyncio.gather(*(patch(number) for number in range(10)), return_exceptions=True)
    winners = [result for result in results if isinstance(result, int)]
    assert len(winners) == 1
    assert all(isinstance(result, VersionStale | ConcurrentUpdate) for result in results if result not in winners)
    async with database.reading() as session:
        assert (await jobs.get(session, job.id)).labels == {"by": str(winners[0])}


async def test_no_update_is_lost(url: str) -> None:
    """Many writers in two replicas, each adding one to a value that it read in an earlier transaction."""
    replicas = [Database(url, pool_size=8, wait_s=60) for _ in range(2)]
    job = await made(replicas[0])

    async def add(database: Database) -> int:
        fenced = 0
        while True:
            async with database.reading() as session:
                seen = await jobs.get(session, job.id)
            try:
                async with database.transaction() as session:
                    await jobs.change(session, seen, restart_nonce=seen.restart_nonce + 1)
                return fenced
            except ConcurrentUpdate:
                fenced += 1

    lost = await asyncio.gather(*(add(replicas[number % 2]) for number in range(24)))
    async with replicas[0].reading() as session:
        actual = await jobs.get(session, job.id)
    assert (actual.restart_nonce, actual.row_version) == (24, 25)
    assert sum(lost) > 0, "they did not meet"
    for replica in replicas:
        await replica.close()


async def test_state_changes_follow_the_transition_table_and_have_deadlines(database: Database) -> None:
    job = await made(database)
    with pytest.raises(StateConflict):
        async with database.transaction() as session:
            await jobs.move(session, job, JobState.RUNNING, allowed=lambda _source, _to: False)
    async with database.transaction() as session:
        before = await now(session)
        moved = await jobs.move(session, job, JobState.STARTING, allowed=anything, deadline_s=120, restarts=0)
        assert moved.state_deadline is not None
        assert 119 < (moved.state_deadline - before).total_seconds() < 130
        failure = Failure(error="host-full", what="No host is free.")
        moved = await jobs.move(session, moved, JobState.FAILED, allowed=anything, failure=failure)
        assert moved.state_deadline is None
        assert moved.failure is not None
        remaining = await jobs.move(session, moved, JobState.STOPPED, allowed=anything, failure=failure)
        assert remaining.failure == moved.failure
        cleared = await jobs.move(session, remaining, JobState.STARTING, allowed=anything, failure=None)
        assert cleared.failure is None
    stale = job
    stale.row_version, stale.state = 1, "CREATED"
    with pytest.raises(ConcurrentUpdate):
        async with database.transaction() as session:
            await jobs.move(session, stale, JobState.STARTING, allowed=anything)
    async with database.reading() as session:
        actual = [
            (event.data["from"], event.data["to"])
            for event in await events.after(session, 0, job=job.id)
            if event.type == "job.state"
        ]
    assert actual == [("CREATED", "STARTING"), ("STARTING", "FAILED"), ("FAILED", "STOPPED"), ("STOPPED", "STARTING")]


async def test_a_settled_job_has_no_open_recovery(database: Database) -> None:
    job = await made(database)
    async with database.transaction() as session:
        job = await jobs.move(session, job, JobState.RECOVERING, allowed=anything)
        moment = await now(session)
        first = await recoveries.begin(
            session, job.id, cause="host-lost", failed_generation=1, from_host="h", at=moment
        )
        same = await recoveries.begin(session, job.id, cause="crash", failed_generation=1, from_host="h", at=moment)
        assert same.id == first.id
    async with database.transaction() as session:
        await jobs.move(session, job, JobState.STOPPED, allowed=anything)
    async with database.reading() as session:
        assert await recoveries.open_of_job(session, job.id) is None
        assert (await recoveries.get(session, job.id, first.id)).ended_at is not None


async def test_a_running_job_cannot_be_deleted(database: Database) -> None:
    job = await made(database)
    async with database.transaction() as session:
        job = await jobs.move(session, job, JobState.RUNNING, allowed=anything)
    with pytest.raises(StateConflict):
        async with database.transaction() as session:
            await jobs.delete(session, job)


async def test_filters(database: Database) -> None:
    job = await made(database, a="1")
    async with database.reading() as session:

        async def ids_of(**filters: Any) -> list[str]:
            return [row.id for row in (await jobs.page(session, **filters)).rows]

        assert await ids_of(name=job.name[2:]) == [job.id]
        assert await ids_of(name=job.name, states=["CREATED", "RUNNING"], created_by="ada", labels={"a": "1"}) == [
            job.id
        ]
        assert await ids_of(name=job.name, states=["RUNNING"]) == []
        assert await ids_of(name=job.name, created_by="bob") == []
        assert await ids_of(name=job.name, labels={"a": "2"}) == []
        assert await ids_of(name=job.name, labels={"b.c": "2"}) == []
        assert await ids_of(name="%") == []
        for wrong in ("x", "", "MSAy", "0"):
            with pytest.raises(SpecError):
                await ids_of(window=Window(starting_after=wrong))


async def test_hostile_texts_are_refused(database: Database) -> None:
    for text in ("a\0b", "\ud800"):
        with pytest.raises((SpecError, NotFound)):
            async with database.reading() as session:
                await jobs.get(session, text)


async def test_a_subject_has_a_limit_of_bytes(database: Database) -> None:
    subject = unique("s")

    async def put(size: int, number: int) -> bool:
        content = f"{subject} {number}".encode().ljust(size)
        sha = hashlib.sha256(content).hexdigest()
        async with database.transaction() as session:
            _, new = await artifacts.put(
                session, sha=sha, kind="py", name="x.py", content=content, by=subject, limit_bytes=1000
            )
        return new

    assert [await put(600, 0), await put(600, 0)] == [True, False], "equal bytes count once"
    with pytest.raises(RequestTooLarge):
        await put(401, 1)
    # At the same time: each counts the bytes of the others.
    at_once = await asyncio.gather(*(put(150, number) for number in range(2, 7)), return_exceptions=True)
    assert sorted(map(str, map(type, at_once))) == sorted(map(str, [bool] * 2 + [RequestTooLarge] * 3))


async def test_the_bytes_of_an_artifact_may_be_in_parts(database: Database) -> None:
    upload, sha = unique("u")[:32], hashlib.sha256(unique().encode()).hexdigest()
    for number in range(3):
        async with database.transaction() as session:
            await artifacts.put_part(session, upload, number, bytes([number]) * 10)
    async with database.transaction() as session:
        await artifacts.put(
            session, sha=sha, kind="py", name="x.py", content=b"", upload=upload, size_bytes=30, by="ada"
        )
    async with database.transaction() as session:
        await artifacts.drop_parts(session, upload)
        assert await artifacts.content(session, sha) == b"\0" * 10 + b"\1" * 10 + b"\2" * 10, "they are in use"
        await artifacts.delete(session, sha)
    async with database.reading() as session:
        assert await session.get(ArtifactPartRow, (upload, 0)) is None
