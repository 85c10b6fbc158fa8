"""The reconciler on the real store, with agents that follow their run specifications."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, update

from clonos.errors import ConcurrentUpdate, StateConflict
from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, ResolveRequest, StartFrom, StopMode, StopRequest
from clonos_api.reconcile import deadlines, loop
from clonos_api.reconcile.applying import apply
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.load import load
from clonos_api.reconcile.run_specs import driver_spec
from clonos_api.reconcile.states import active
from clonos_api.store import hosts, jobs, lease, operations, recoveries, savepoints, standbys
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, OperationRow, RecoveryRow, RunRow, StandbyRow, TaskRow
from component.reconcile.acting import Placing, Users, eventually, reconciling, running_hosts
from support.agents import FakeAgent
from support.stored import ingest, respec

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader trusts missing heartbeats soon after its start."""
    monkeypatch.setattr(loop, "_REJOIN_S", 0.5)


async def taken(database: Database, holder: str) -> int:
    """Returns the fencing token, once the lease is free: its holder needs a moment to release it."""

    async def free() -> int | None:
        return await lease.acquire(database, holder, ttl_s=60)

    token: int = await eventually(free, "the lease is free")
    return token


async def test_a_job_starts_stops_starts_again_restarts_and_is_cancelled(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b"):
        await users.submit()
        job = await users.until("RUNNING")
        assert job.home is None  # all hosts can read the checkpoint
        first = job.run
        stopped = await users.ended(await users.ask("stop", stop=StopRequest()))
        assert stopped.state == "COMPLETED"
        assert (await users.job()).state == "STOPPED"
        started = await users.ended(await users.ask("start"))
        job = await users.job()
        assert (started.state, job.state) == ("COMPLETED", "RUNNING")
        assert started.result["run"] == job.run != first
        again = await users.ended(await users.ask("restart"))
        assert again.state == "COMPLETED"
        assert (await users.job()).run != job.run
        cancelled = await users.ended(await users.ask("cancel"))
        assert (cancelled.state, (await users.job()).state) == ("COMPLETED", "CANCELED")
    every = await users.runs()
    assert len(every) == 3
    assert all(row.ended_at is not None for row in every)
    moves = [(event.data["from"], event.data["to"]) for event in await users.happened("job.state")]
    assert moves == [
        ("CREATED", "STARTING"), ("STARTING", "RUNNING"), ("RUNNING", "STOPPING"), ("STOPPING", "STOPPED"),
        ("STOPPED", "STARTING"), ("STARTING", "RUNNING"), ("RUNNING", "STOPPING"), ("STOPPING", "STARTING"),
        ("STARTING", "RUNNING"), ("RUNNING", "CANCELLING"), ("CANCELLING", "CANCELED"),
    ]  # fmt: skip


async def test_a_lost_host_loses_its_jobs_to_another_and_kills_its_driver_when_it_is_back(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b") as on:
        await users.submit()
        first = await users.until("RUNNING")
        old = (await users.runs())[0]
        holder = next(actor for actor in on.values() if actor.id == old.host)
        other = next(actor for actor in on.values() if actor is not holder)
        holder.hidden = True

        async def moved() -> JobRow | None:
            row = await users.job()
            return row if row.state == "RUNNING" and row.run != first.run else None

        job = await eventually(moved, "the job runs elsewhere")
        rows = await users.runs()
        assert [row.host for row in rows] == [holder.id, other.id]
        assert (rows[0].state, rows[0].spec.desired, rows[0].ended_at) == ("LOST", "ABSENT", None)
        assert rows[1].spec.earlier_attempts == 1
        assert job.failure is None
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
            assert recovery.body.cause == "host-lost"
            assert recovery.body.from_host == holder.name
        holder.hidden = False

        async def killed() -> bool:
            return (await users.runs())[0].ended_at is not None

        await eventually(killed, "the host that is back kills its driver")
        assert (await users.job()).run == job.run


async def test_a_job_leaves_the_failure_domain_of_the_host_that_was_lost(database: Database, placing: Placing) -> None:
    """Also in the round that finds the loss, and although the other domain has more load."""
    users = Users(database)
    domains = {"a": "rack-1", "b": "rack-1", "c": "rack-2"}
    async with reconciling(database, placing), running_hosts(database, "a", "b", "c", domains=domains) as on:
        await users.submit()
        first = await users.until("RUNNING")
        other = await users.submit("other")
        await users.until("RUNNING", name=other.name)
        names = {actor.id: actor.name for actor in on.values()}
        assert [names[row.host] for row in [*await users.runs(), *await users.runs(other.name)]] == ["a", "c"]
        on["a"].hidden = True

        async def moved() -> JobRow | None:
            row = await users.job()
            return row if row.state == "RUNNING" and row.run != first.run else None

        await eventually(moved, "the job runs elsewhere")
        assert [names[row.host] for row in await users.runs()] == ["a", "c"]


async def test_an_agent_that_is_slower_than_its_driver_begins_no_second_recovery(
    database: Database, placing: Placing
) -> None:
    """Events and reports arrive in separate requests; a second recovery would wait for an epoch without end."""
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        (host,) = on.values()
        (driver,) = host.drivers.values()

        async def all_pushed() -> bool:
            return driver.pushed_lines == len(driver.file.lines)

        await eventually(all_pushed, "all events are pushed")
        host.hidden, host.starts = True, False
        driver.file.start(2)  # it was killed, and has restarted
        driver.file.epoch(2)
        async with database.transaction() as session:
            lines = driver.file.lines[driver.pushed_lines :]
            await ingest(session, driver.spec.run, driver.file.offset(driver.pushed_lines), lines)
        driver.pushed_lines = len(driver.file.lines)
        died = Failure(error="driver-crashed", what="The driver was ended by SIGKILL.", domain="run", retry=True)
        driver.report |= {"state": "STARTING", "driver_state": "CLAIMING", "attempts": 2, "failure": died}
        host.hidden = False
        await users.until("RECOVERING")
        driver.report |= {"state": "RUNNING", "driver_state": "RUNNING", "generation": 2}
        await users.until("RUNNING")
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.body.outcome, recovery.body.generation) == ("COMPLETED", 2)
        assert recovery.body.failure.error == "driver-crashed"


STOPPED = Failure(error="stopped-with-agent", what="Its agent stopped.", domain="environment", retry=True)


@pytest.mark.parametrize("claimed_first", [True, False])
async def test_a_stop_of_the_agent_is_a_recovery(database: Database, placing: Placing, claimed_first: bool) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        (host,) = on.values()
        (driver,) = host.drivers.values()
        host.starts = False
        if claimed_first:  # the agent is back, and its driver's events arrive before any report
            host.hidden = True
            driver.file.write_event("stopped")
            driver.file.start(2)
            async with database.transaction() as session:
                lines = driver.file.lines[driver.pushed_lines :]
                await ingest(session, driver.spec.run, driver.file.offset(driver.pushed_lines), lines)
            driver.pushed_lines = len(driver.file.lines)
            driver.report |= {"state": "STARTING", "driver_state": "CLAIMING", "attempts": 2, "failure": STOPPED}
            host.hidden = False
        else:
            driver.report |= {"state": "EXITED", "driver_state": "STOPPED", "exit_code": 0, "failure": STOPPED}
        await users.until("RECOVERING")
        if not claimed_first:
            driver.file.start(2)
        driver.report |= {"state": "RUNNING", "driver_state": "RUNNING", "attempts": 2, "generation": 2}
        driver.file.epoch(2)
        await users.until("RUNNING")

        async def ended() -> RecoveryRow | None:
            async with database.reading() as session:
                (row,) = (await recoveries.page(session, job.id)).rows
            return row if row.ended_at is not None else None

        recovery = await eventually(ended, "the recovery has ended")
        assert (recovery.body.cause, recovery.body.outcome) == ("shutdown", "COMPLETED")


async def test_a_host_that_is_lost_during_its_stop_is_a_recovery(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        (host,) = on.values()
        (driver,) = host.drivers.values()
        driver.report |= {"state": "STOPPING", "failure": STOPPED}

        async def reported() -> bool:
            return (await users.runs())[-1].state == "STOPPING"

        await eventually(reported, "the stop is reported")
        host.hidden = True
        await users.until("RECOVERING")
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.body.cause, recovery.ended_at) == ("shutdown", None)


async def test_a_crash_is_a_recovery_before_the_next_attempt_reports(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        (host,) = on.values()
        (driver,) = host.drivers.values()
        host.starts = False
        died = Failure(error="driver-crashed", what="The driver was ended by SIGKILL.", domain="run", retry=True)
        driver.report |= {"state": "EXITED", "exit_code": -9, "failure": died}
        await users.until("RECOVERING")
        driver.report |= {"state": "STARTING", "driver_state": None, "attempts": 2}
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.ended_at, recovery.body.failure.error) == (None, "driver-crashed")
        driver.file.start(2)
        driver.file.epoch(2)
        driver.report |= {"state": "RUNNING", "driver_state": "RUNNING", "generation": 2}

        async def ended() -> str | None:
            async with database.reading() as session:
                (row,) = (await recoveries.page(session, job.id)).rows
                outcome: str | None = row.body.outcome
                return outcome

        assert await eventually(ended, "the recovery ends") == "COMPLETED"


async def test_a_job_with_a_local_checkpoint_waits_for_its_host(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b") as on:
        await users.submit(checkpoint="/var/lib/words")
        job = await users.until("RUNNING")
        holder = next(actor for actor in on.values() if actor.id == job.home)
        holder.hidden = True

        async def waits() -> bool:
            row = await users.job()
            return row.state == "RECOVERING" and row.failure is not None and row.failure.error == "no-host"

        await eventually(waits, "it waits")
        row = await users.job()
        assert row.failure is not None
        assert f"Only host {holder.name} can run it (its checkpoint is a path of this host)" in row.failure.what
        assert row.state_deadline is None
        holder.hidden = False
        back = await users.until("RUNNING")
        assert back.run != job.run
        assert [run.host for run in await users.runs()] == [holder.id] * 2


async def test_a_restart_without_a_driver_starts_the_newest_version(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        await users.until("RUNNING")
        on["a"].hidden = True
        await users.until("RECOVERING")
        async with database.transaction() as session:
            newer = {"version": JobRow.version + 1, "row_version": JobRow.row_version + 1}
            await session.execute(update(JobRow).values(**newer))
        restart = await users.ask("restart")
        on["a"].hidden = False
        assert (await users.ended(restart)).state == "COMPLETED"
        await users.until("RUNNING")
        assert [run.spec.version for run in await users.runs()] == [1, 2]


async def test_a_start_from_a_point_before_the_stop_has_begun_starts_there(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        await users.submit()
        before = await users.until("RUNNING")
        async with database.transaction() as session:
            row = await jobs.desire(session, await jobs.get(session, "words"), DesiredState.STOPPED, stop=StopRequest())
            await jobs.desire(session, row, DesiredState.RUNNING, start_from=StartFrom(epoch=0, publish_again=True))

        async def replaced() -> bool:
            row = await users.job()
            return row.state == "RUNNING" and row.run != before.run and row.start_from is None

        await eventually(replaced, "it starts from the point")
        assert [run.spec.start_from is not None for run in await users.runs()] == [False, True]


async def test_a_start_after_one_from_a_missing_point_continues_from_the_own_checkpoint(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        await users.submit(start=False)
        await users.ended(await users.ask("start", start_from=StartFrom(savepoint="gone")))
        assert (await users.until("FAILED")).failure.error == "start-point-missing"
        assert (await users.ended(await users.ask("start"))).state == "COMPLETED"


async def test_a_final_failure_fails_the_job_and_a_start_tries_again(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        failure = Failure(error="job-code-failed", what="It raised.", domain="user")
        on["a"].drivers[job.run or ""].fail(14, failure)
        job = await users.until("FAILED")
        assert job.failure.error == "job-code-failed"
        assert "no version to go back to" not in job.failure.hint, "it is the first one"
        async with database.transaction() as session:
            job = await jobs.get(session, job.id)
            await jobs.patch(session, job, version=1, spec=JobSpec.model_validate(job.spec), by="ada")
        await users.ask("start")
        job = await users.until("RUNNING")
        on["a"].drivers[job.run or ""].fail(14, failure)
        job = await users.until("FAILED")
        assert "There is no version to go back to" in job.failure.hint
        started = await users.ended(await users.ask("start"))
        assert (started.state, (await users.job()).state) == ("COMPLETED", "RUNNING")
        assert (await users.job()).failure is None


async def test_a_driver_that_never_claims_is_given_up_in_time(
    database: Database, placing: Placing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "CLAIM_S", 0.7)
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        on["a"].starts = False
        await users.submit(start=False)
        started = await users.ended(await users.ask("start"))
        assert started.state == "FAILED"
        assert started.failure.error == "deadline-passed"
        job = await users.until("FAILED")
        assert job.state_deadline is None

        async def stopped() -> bool:
            return (await users.runs())[0].ended_at is not None

        await eventually(stopped, "the driver is stopped")


async def test_a_missing_host_is_reported_and_the_job_starts_on_the_first_host(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing):
        await users.submit()

        async def reported() -> bool:
            failure = (await users.job()).failure
            return failure is not None and failure.what == "No host is registered."

        await eventually(reported, "the job reports its reason to wait")
        token = (await users.job()).row_version
        async with running_hosts(database, "a"):
            job = await users.until("RUNNING")
            assert job.failure is None
            assert job.row_version <= token + 4  # waiting wrote nothing


async def test_a_stop_with_a_savepoint_and_a_start_from_it(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        await users.submit()
        await users.until("RUNNING")
        stopped = await users.ended(await users.ask("stop", stop=StopRequest(mode=StopMode.CHECKPOINT)))
        assert stopped.state == "COMPLETED", stopped.failure
        assert (await users.job()).state == "STOPPED"
        async with database.reading() as session:
            saved = await savepoints.get(session, stopped.result["savepoint"])
            task = (await session.scalars(select(TaskRow))).one()
        assert saved.state == "COMPLETED"
        assert saved.location == f"{placing.savepoint_location}/words/{saved.id}"
        shared = Path(str(placing.shared_checkpoints))
        assert task.arguments["location"] == f"file://{shared}/jobs/words/checkpoint"
        point = StartFrom(savepoint=saved.id, publish_again=True)
        started = await users.ended(await users.ask("start", start_from=point))
        assert started.state == "COMPLETED"
        spec = (await users.runs())[-1].spec
        assert spec.restore_location == saved.location
        assert spec.start_from.savepoint == saved.id
        assert spec.request_key == spec.run
        assert (await users.job()).start_from is None
        missing = StartFrom(savepoint="00000000-0000-7000-8000-000000000000")
        await users.ended(await users.ask("stop"))
        failed = await users.ended(await users.ask("start", start_from=missing))
        assert failed.failure.error == "start-point-missing"


async def test_a_savepoint_copies_the_checkpoint_of_the_run(database: Database, placing: Placing) -> None:
    """The newest specification may name another one, for the next run."""
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        await users.submit()
        job = await users.until("RUNNING")
        async with database.transaction() as session:
            row = await jobs.get(session, job.id)
            respec(row, checkpoint="/elsewhere")
        stopped = await users.ended(await users.ask("stop", stop=StopRequest(mode=StopMode.CHECKPOINT)))
        assert stopped.state == "COMPLETED", stopped.failure
        async with database.reading() as session:
            task = (await session.scalars(select(TaskRow))).one()
    assert task.arguments["location"] == f"file://{placing.shared_checkpoints}/jobs/words/checkpoint"
    assert task.arguments["job"] == "words"


async def test_a_savepoint_on_hdfs_or_s3_brings_the_jobs_settings_with_references_to_secrets(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        await users.submit()
        job = await users.until("RUNNING")
        conf = {"spark.hadoop.fs.s3a.secret.key": "${secret:s3}"}
        async with database.transaction() as session:
            row = await jobs.get(session, job.id)
            respec(row, sparkConf=conf)
            saved = await savepoints.create(session, row, name="nightly", location="s3a://bucket/save")
            made = await operations.begin(
                session, "savepoint", job=row.id, arguments={"savepoint": saved.id}, timeout_s=60, by="ada"
            )
        assert (await users.ended(made.id)).state == "COMPLETED"
        async with database.reading() as session:
            task = (await session.scalars(select(TaskRow))).one()
    storage = task.arguments["storage"]
    assert storage["spec"]["spec"]["sparkConf"] == conf
    assert (storage["owner"], storage["cluster"]) == (job.created_by, None)


async def test_a_resolution_reaches_the_next_driver_once(database: Database, placing: Placing) -> None:
    users = Users(database)
    keep = ResolveRequest(query="output", epoch=12, decision="keep")
    republish = ResolveRequest(query="output", epoch=12, decision="republish")
    new_code = ResolveRequest(decision="new-code")

    async def resolve(request: ResolveRequest) -> None:
        async with database.transaction() as session:
            await jobs.resolve(session, await jobs.get(session, "words"), request)

    await users.submit(start=False)
    await resolve(keep)
    await resolve(republish)  # replaces the decision about the same epoch
    await resolve(new_code)  # for all epochs
    async with database.reading() as session:
        next_start = driver_spec(
            await jobs.get(session, "words"), None, CheckpointLocations(Path("/home"), None, "/save"), {}, None
        )
    assert (next_start.accept_new_code, next_start.resolutions) == (True, [republish])
    async with reconciling(database, placing), running_hosts(database, "a"):
        job = await users.until("RUNNING")
        decided = (await users.runs())[-1].spec.resolutions
        assert decided == [republish]
        assert (await users.runs())[-1].spec.accept_new_code is False, "later attempts do not have it"
        assert job.resolutions is None
        with pytest.raises(StateConflict, match="RUNNING"):
            await resolve(keep)
        await users.ended(await users.ask("restart"))
        assert (await users.runs())[-1].spec.resolutions == []
        assert (await users.runs())[-1].spec.accept_new_code is False


async def test_an_adoption_holds_for_one_start(database: Database, placing: Placing) -> None:
    users = Users(database)

    async def start(*, adopt: bool) -> JobRow:
        async with database.transaction() as session:
            row = await jobs.get(session, "words")
            return await jobs.desire(session, row, DesiredState.RUNNING, adopt=adopt)

    await users.submit(start=False)
    assert (await start(adopt=True)).adopt
    assert not (await start(adopt=False)).adopt, "the newest request decides"
    await start(adopt=True)
    async with reconciling(database, placing), running_hosts(database, "a"):
        job = await users.until("RUNNING")
        assert not job.adopt
        (run,) = await users.runs()
        assert not run.spec.adopt, "later attempts do not have it"
        assert not (await start(adopt=True)).adopt, "a running job is left unchanged"
        await users.ended(await users.ask("restart"))
        first, second = await users.runs()
        assert not second.spec.adopt
        assert len(first.spec.platform) == 32
        assert second.spec.platform == first.spec.platform


async def test_a_savepoint_of_a_running_job_and_its_deletion_are_done_by_an_agent(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b"):
        await users.submit()
        await users.until("RUNNING")
        async with database.transaction() as session:
            job = await jobs.get(session, "words")
            saved = await savepoints.create(session, job, name="nightly", location="/save")
            made = await operations.begin(
                session, "savepoint", job=job.id, arguments={"savepoint": saved.id}, timeout_s=60, by="ada"
            )
        assert (await users.ended(made.id)).state == "COMPLETED"
        async with database.transaction() as session:
            saved = await savepoints.begin_delete(session, await savepoints.get(session, saved.id))
            made = await operations.begin(
                session, "delete-savepoint", job=job.id, arguments={"savepoint": saved.id}, timeout_s=60, by="ada"
            )
        assert (await users.ended(made.id)).state == "COMPLETED"
    async with database.reading() as session:
        kinds = [(task.kind, task.host) for task in await session.scalars(select(TaskRow).order_by(TaskRow.id))]
    agent = (await users.runs())[0].host
    assert kinds == [("savepoint", agent), ("delete-savepoint", agent)]


async def test_an_operation_that_nobody_can_do_ends_at_its_deadline_with_its_savepoint(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing):
        job = await users.submit(start=False)
        async with database.transaction() as session:
            saved = await savepoints.create(session, job, name="nightly", location="/save")
            made = await operations.begin(
                session, "savepoint", job=job.id, arguments={"savepoint": saved.id}, timeout_s=0.3, by="ada"
            )
        ended = await users.ended(made.id)
        assert ended.failure.error == "operation-timed-out"
        async with database.reading() as session:
            assert (await savepoints.get(session, saved.id)).state == "FAILED"


async def test_deleting_ends_the_job_first(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a"):
        made = await users.submit()
        await users.until("RUNNING")
        assert (await users.ended(await users.ask("delete"))).state == "COMPLETED"
        async with database.reading() as session:
            row = await jobs.get(session, made.id, deleted=True)
            assert row.deleted_at is not None
            assert row.state == "CANCELED"
        assert (await users.submit()).id != made.id  # the name is free


async def test_a_drained_host_hands_its_jobs_over_as_far_as_there_is_room(database: Database, placing: Placing) -> None:
    users = Users(database)
    names = ["one", "two", "three"]
    async with reconciling(database, placing), running_hosts(database, "a", slots=3) as on:
        for name in names:
            await users.submit(name)
        for name in names:
            await users.until("RUNNING", name=name)
        async with running_hosts(database, "b", slots=2) as more:
            more["b"].claims = on["a"].claims
            async with database.transaction() as session:
                await hosts.drain(session, await hosts.get(session, "a"), True)

            async def moved() -> bool:
                rows = [(await users.runs(name))[-1] for name in names]
                states = [(await users.job(name)).state for name in names]
                return [row.host for row in rows].count(more["b"].id) == 2 and states == ["RUNNING"] * 3

            await eventually(moved, "two of three have moved and the third continues")
            assert sorted([len(await users.runs(name)) for name in names]) == [1, 2, 2]


async def test_a_decision_about_an_older_version_of_a_job_is_refused(database: Database, placing: Placing) -> None:
    users, place = Users(database), CheckpointLocations.of(placing)
    await users.submit()
    async with database.reading() as session:
        scene = await load(session)
    (case,) = scene.cases
    job, run = case.facts(place)
    writes = decide(job, run, scene.fleet, scene.now)
    await users.ask("cancel")
    with pytest.raises(ConcurrentUpdate):
        async with database.transaction() as session:
            await apply(session, case, writes, place)
    assert (await users.job()).state == "CREATED"


async def test_a_stale_leader_writes_nothing(database: Database, placing: Placing) -> None:
    """Also if its own clock still counts the lease as valid."""
    users = Users(database)
    async with running_hosts(database, "a"):
        await users.submit()
        stale = await taken(database, "old")
        async with database.transaction() as session:
            await lease.release(session, "old", stale)
        assert await lease.acquire(database, "new", ttl_s=60) == stale + 1
        leader = lease.Leader(database, "old")
        leader._fencing_token, leader._until = stale, float("inf")
        term = loop.Term(database, placing, leader, stale)
        assert term.leads
        before = (await users.job()).row_version
        assert await term.round()  # it would load the refused changes again
        row = await users.job()
        assert (row.state, row.row_version, row.run) == ("CREATED", before, None)
        async with database.reading() as session:
            assert not list(await session.scalars(select(RunRow)))
            assert not list(await session.scalars(select(OperationRow)))


async def test_a_standby_that_is_moved_to_a_better_host_is_there_again_at_once(
    database: Database, placing: Placing
) -> None:
    """It did not fail: only a failed standby delays its replacement."""

    async def placed(agent: str) -> bool:
        async with database.reading() as session:
            query = select(StandbyRow.host).where(StandbyRow.state.in_(standbys.WAITING))
            return list(await session.scalars(query)) == [agent]

    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", slots=3) as on:
        await users.submit(standbys=1)
        await users.until("RUNNING")
        await eventually(lambda: placed(on["a"].id), "there is no other host")
        async with running_hosts(database, "b") as more:
            await eventually(lambda: placed(more["b"].id), "it is on the better host", timeout_s=60)


async def test_a_standby_that_dies_while_it_takes_over_is_followed_by_the_next(
    database: Database, placing: Placing
) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b", "c") as on:
        await users.submit(standbys=2)
        job = await users.until("RUNNING")

        async def ready() -> bool:
            async with database.reading() as session:
                return list(await session.scalars(select(StandbyRow.state))) == ["READY", "READY"]

        await eventually(ready, "two standbys are READY")
        for actor in on.values():
            actor.starts = False  # promoted standbys do not claim
        died = Failure(error="driver-crashed", what="The driver was ended by SIGKILL.", domain="run", retry=True)
        fallen = [job.run]
        for _ in range(2):
            driver = next(
                candidate
                for host in on.values()
                for candidate in host.drivers.values()
                if candidate.spec.run == fallen[-1]
            )
            driver.report |= {"state": "EXITED", "exit_code": -9, "failure": died}

            async def followed() -> str | None:
                run = (await users.job()).run
                states = [host.drivers[run].report["state"] for host in on.values() if run in host.drivers]
                return run if run not in fallen and states == ["STARTING"] else None

            fallen.append(await eventually(followed, "the next one takes over"))
        for actor in on.values():
            actor.starts = True
        row = await users.until("RUNNING")
        assert row.run == fallen[-1]
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.body.cause, recovery.body.standby) == ("crash", fallen[-1])


async def test_a_stale_leader_promotes_nobody_and_two_at_once_promote_one(database: Database, placing: Placing) -> None:
    users, place = Users(database), CheckpointLocations.of(placing)
    placing = replace(placing, host_lease_s=20.0)
    async with running_hosts(database, "a", "b", "c", lease_s=20.0) as on:
        async with reconciling(database, placing):
            await users.submit(standbys=2)
            job = await users.until("RUNNING")

            async def guarded() -> bool:
                async with database.reading() as session:
                    states = await session.scalars(select(StandbyRow.state))
                return list(states) == ["READY", "READY"]

            await eventually(guarded, "two standbys are READY")
        driver = next(
            candidate for host in on.values() for candidate in host.drivers.values() if candidate.spec.run == job.run
        )
        driver.report |= {"state": "EXITED", "exit_code": -9}

        async def exited() -> bool:
            async with database.reading() as session:
                row = await session.get(RunRow, job.run)
            return row is not None and row.state == "EXITED"

        await eventually(exited, "its driver has exited")
        stale = await taken(database, "old")
        async with database.transaction() as session:
            await lease.release(session, "old", stale)
        assert await lease.acquire(database, "new", ttl_s=60) == stale + 1
        leader = lease.Leader(database, "old")
        leader._fencing_token, leader._until = stale, float("inf")
        assert await loop.Term(database, placing, leader, stale).round()
        row = await users.job()
        assert (row.state, row.run) == ("RUNNING", job.run)
        assert await guarded()

        # Also without the check of the lease.
        async with database.reading() as session:
            scenes = [await load(session), await load(session)]
        fenced = 0
        for scene in scenes:
            (case,) = scene.cases
            facts, run = case.facts(place)
            writes = decide(facts, run, scene.fleet, scene.now)
            assert writes.standbys.promote is not None
            try:
                async with database.transaction() as session:
                    await apply(session, case, writes, place)
            except ConcurrentUpdate:
                fenced += 1
        assert fenced == 1
        async with database.reading() as session:
            states = sorted(await session.scalars(select(StandbyRow.state)))
            wanted = [row.spec for row in await session.scalars(select(RunRow)) if row.spec.desired == "RUNNING"]
        assert states == ["PROMOTING", "READY"]
        assert [spec.run for spec in wanted if not spec.standby] == [(await users.job()).run]


async def test_a_round_that_places_a_driver_leaves_standbys_to_the_next(
    database: Database, placing: Placing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that places standbys also answers the agent of the driver."""
    users = Users(database)
    placing = replace(placing, host_lease_s=20.0)
    waits: list[object] = []  # transactions that wait for the disk
    monkeypatch.setattr("clonos_api.reconcile.applying.wait_for_disk", waits.append)

    async def standbys() -> int:
        async with database.reading() as session:
            return len(list(await session.scalars(select(StandbyRow.id))))

    async with running_hosts(database, "a", slots=1, lease_s=20.0):
        async with reconciling(database, placing):
            await users.submit("first", standbys=1)
            await users.until("RUNNING", name="first")
        assert await standbys() == 0, "no slot is free"
        token = await taken(database, "leader")
        leader = lease.Leader(database, "leader")
        leader._fencing_token, leader._until = token, float("inf")
        term = loop.Term(database, placing, leader, token)
        async with running_hosts(database, "b", lease_s=20.0):
            await users.submit("second")
            placed = False
            waits.clear()
            while not placed:
                again = await term.round()
                placed = (await users.job("second")).run is not None
            assert again, "the next round follows at once"
            assert await standbys() == 0
            assert len(waits) == 1, "the id of the run is the key of its claim: no other run may have it"
            await term.round()
            assert await standbys() == 1
            assert len(waits) == 1


async def test_two_leaders_at_once_would_not_both_place_a_job(database: Database, placing: Placing) -> None:
    """Without the lease, the `row_version` of the job still accepts only one of two decisions."""
    users, place = Users(database), CheckpointLocations.of(placing)
    async with running_hosts(database, "a", "b"):
        await users.submit()
        for _ in range(2):
            async with database.reading() as session:
                scenes = [await load(session), await load(session)]
            fenced = 0
            for scene in scenes:
                (case,) = scene.cases
                job, run = case.facts(place)
                try:
                    async with database.transaction() as session:
                        await apply(session, case, decide(job, run, scene.fleet, scene.now), place)
                except ConcurrentUpdate:
                    fenced += 1
            assert fenced == 1
        assert len(await users.runs()) == 1


async def test_hosts_are_not_lost_for_the_time_that_the_service_itself_was_away(
    database: Database, placing: Placing, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users(database)
    async with running_hosts(database, "a") as on:
        async with reconciling(database, placing):
            await users.submit()
            first = await users.until("RUNNING")
        # No replica responded for longer than the lease; the agent sends its next heartbeat a little late.
        on["a"].hidden = True
        await _expired(users, on["a"])
        monkeypatch.setattr(loop, "_REJOIN_S", 60.0)
        async with reconciling(database, placing):
            await users.submit("other")
            await users.until("STARTING", name="other")
            on["a"].hidden = False
            await users.until("RUNNING", name="other")
    job = await users.job()
    assert (job.state, job.run) == ("RUNNING", first.run)
    async with database.reading() as session:
        assert (await hosts.get(session, "a")).state == HostState.READY
    assert not await users.happened("host.lost")


async def _expired(users: Users, actor: FakeAgent) -> None:
    from clonos_api.store.db.clock import now

    async def over() -> bool:
        async with users.database.reading() as session:
            return (await hosts.get(session, actor.id)).lease_until < await now(session)

    await eventually(over, "the lease is over")


def test_the_deadlines_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "control-plane.md").read_text()
    assert f"| {deadlines.CLAIM_S:.0f} s |" in page
    assert f"| {deadlines.RECOVER_S:.0f} s |" in page
    assert f"`timeout_s` + {deadlines.STOP_MARGIN_S:.0f} s" in page
    assert f"| {deadlines.CANCEL_S:.0f} s |" in page
