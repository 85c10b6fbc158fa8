"""Savepoints, checkpoints and names keep their owner, and no job publishes again without a request."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos_api.store import jobs
from clonos_api.store.db.database import Database
from support.scripted import ScriptedAgent, create, placed, saved, spec, upload
from support.serving import Served, served
from support.stored import EventFile

Callers = Callable[..., httpx.Client]


def asked(client: httpx.Client, name: str, **more: Any) -> httpx.Response:
    body = {"spec": {**spec(name), **more.pop("like", {})}, "artifact": upload(client), "start": False, **more}
    return client.post("/jobs", json=body)


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rsplit("/", 1)[-1]


@contextmanager
def published(service: Served, job: str, *numbers: int, after_s: float = 0.0) -> Iterator[ScriptedAgent]:
    """An agent whose driver has reported these epochs of a job."""
    with ScriptedAgent(service, f"h{secrets.token_hex(4)}") as agent:
        agent.register()
        run = asyncio.run(placed(service, job, agent.name))
        file = EventFile()
        file.at += after_s
        file.start(1)
        for number in numbers:
            file.epoch(number)
        agent.push("events", run, 0, lines=file.lines)
        yield agent


async def deleted(service: Served, name: str) -> None:
    database = Database(service.settings.database)
    try:
        async with database.transaction() as session:
            await jobs.delete(session, await jobs.get(session, name))
    finally:
        await database.close()


def test_only_the_owner_starts_from_a_savepoint(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str
) -> None:
    created = create(ada, name)
    point = asyncio.run(saved(service, created["id"], out=3))
    wanted = {"savepoint": point, "publish_again": True}
    refused = asked(bob, f"{name}-too", start_from=wanted)
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    assert bob.get(f"/jobs/{name}-too").status_code == 404
    create(bob, f"{name}-bob")
    assert bob.post(f"/jobs/{name}-bob/start", json=wanted).status_code == 403
    assert asked(ada, f"{name}-ada", start_from=wanted).status_code == 201
    with service.client() as admin:
        assert asked(admin, f"{name}-root", start_from=wanted).status_code == 201


def test_only_its_owner_deletes_a_savepoint(service: Served, ada: httpx.Client, bob: httpx.Client, name: str) -> None:
    point = asyncio.run(saved(service, create(ada, name)["id"]))
    assert ada.delete(f"/jobs/{name}").status_code == 202
    assert bob.delete(f"/savepoints/{point}").status_code == 403
    assert bob.get(f"/savepoints/{point}").json()["state"] == "COMPLETED"
    assert ada.delete(f"/savepoints/{point}").status_code == 202
    assert bob.get(f"/savepoints/{point}").json()["state"] == "DELETING"


def test_a_job_name_remains_its_owners_after_deletion(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str
) -> None:
    """The checkpoint and the causal log use the name, also after the deletion of the job."""
    create(ada, name)
    taken = asked(bob, name)
    assert (taken.status_code, slug(taken)) == (409, "name-taken")
    assert ada.delete(f"/jobs/{name}").status_code == 202
    refused = asked(bob, name)
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    assert "admin" in refused.json()["hint"]
    create(ada, name)
    assert ada.delete(f"/jobs/{name}").status_code == 202
    with service.client() as admin:
        create(admin, name)
        assert admin.delete(f"/jobs/{name}").status_code == 202
        denied = [entry for entry in admin.get("/audit").json()["data"] if entry["outcome"] == "denied"]
    assert any(entry["subject"] == "bob" and name in str(entry["detail"]) for entry in denied)
    assert asked(ada, name).status_code == 403  # it is the admin's now


@pytest.mark.parametrize(
    "place", ["{}/jobs/{}/checkpoint", "file://{}/jobs/{}", "{}/jobs/", "{}//jobs/./{}/checkpoint/q"]
)
def test_the_checkpoint_of_another_subject_is_refused(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str, place: str
) -> None:
    create(ada, name)
    like = {"spec": {"main": "job.py", "checkpoint": place.format(service.settings.home.absolute(), name)}}
    refused = asked(bob, f"{name}-too", like=like)
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    create(bob, f"{name}-bob")
    changed = {"spec": {**spec(f"{name}-bob"), **like}}
    assert bob.patch(f"/jobs/{name}-bob", json=changed, headers={"If-Match": "*"}).status_code == 403
    own = {"spec": {"main": "job.py", "checkpoint": f"/elsewhere/{name}"}}
    assert asked(bob, f"{name}-own", like=own).status_code == 201
    assert asked(ada, f"{name}-there", like=own).status_code == 403


SPELLINGS = [
    "/{}/jobs/{}/checkpoint",
    "///{}/jobs/{}",
    "//elsewhere{}/jobs/{}/checkpoint",
    "file://elsewhere{}/jobs/{}/checkpoint",
    "/proc/self/root{}/jobs/{}/checkpoint",
    "/proc/1/root{}/jobs/{}/checkpoint",
    "file:///proc/self/root{}/jobs/{}/checkpoint",
    "/dev/fd/3{}/jobs/{}",
    "/./proc/self/root{}/jobs/{}",
    "/.//proc/self/root{}/jobs/{}",
    "file:///%2e/proc/self/root{}/jobs/{}",
    "/%70roc/self/root{}/jobs/{}",
    "/x/%2e%2e{}/jobs/{}",
    "..{}/jobs/{}",
    "jobs/{}{}",
]


@pytest.mark.parametrize("place", SPELLINGS)
def test_another_spelling_of_a_directory_is_refused(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str, place: str
) -> None:
    create(ada, name)
    location = place.format(service.settings.home.absolute(), name)
    refused = asked(bob, f"{name}-too", like={"spec": {"main": "job.py", "checkpoint": location}})
    assert (refused.status_code, slug(refused)) == (422, "spec-invalid"), refused.text
    create(bob, f"{name}-bob")
    assert bob.post(f"/jobs/{name}-bob/savepoints", json={"location": location}).status_code == 422


def test_a_savepoint_is_not_written_to_the_checkpoint_of_another_subject(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str
) -> None:
    create(ada, name)
    create(bob, f"{name}-bob")
    location = str(service.settings.home.absolute() / "jobs" / name)
    refused = bob.post(f"/jobs/{name}-bob/savepoints", json={"location": location})
    assert (refused.status_code, slug(refused)) == (403, "forbidden")


@pytest.mark.parametrize(
    ("theirs", "spelling"),
    [
        ("hdfs://nn:8020/{}", "hdfs://nn/{}"),
        ("hdfs://nn:8020/{}", "hdfs:///{}"),
        ("hdfs://nn:8020/{}", "hdfs://NN.:08020/{}"),
        ("s3a://bucket/{}", "s3a://Bucket:80/{}"),
        ("abfss://data@acc.dfs.core.windows.net/{}", "abfs://data@acc.blob.core.windows.net/{}"),
        ("/data/{}", "/data/{}.before-w1"),
        ("/data/{}", "/data/./{}//out"),
    ],
)
def test_another_spelling_of_a_specified_checkpoint_is_refused(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str, theirs: str, spelling: str
) -> None:
    like = {"spec": {"main": "job.py", "checkpoint": theirs.format(name)}}
    assert asked(ada, name, like=like).status_code == 201
    refused = asked(bob, f"{name}-too", like={"spec": {"main": "job.py", "checkpoint": spelling.format(name)}})
    assert (refused.status_code, slug(refused)) == (403, "forbidden"), refused.text


def test_the_checkpoint_of_an_older_version_remains_its_owners(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str
) -> None:
    """A driver may run with the older version, after a change of the specification."""
    like = {"spec": {"main": "job.py", "checkpoint": f"/data/{name}-1"}}
    assert asked(ada, name, like=like).status_code == 201
    changed = {"spec": {**spec(name), "spec": {"main": "job.py", "checkpoint": f"/data/{name}-2"}}}
    assert ada.patch(f"/jobs/{name}", json=changed, headers={"If-Match": "*"}).status_code == 200
    assert asked(bob, f"{name}-too", like=like).status_code == 403
    assert (
        bob.post(
            f"/jobs/{create(bob, f'{name}-bob')['name']}/savepoints", json={"location": f"/data/{name}-1"}
        ).status_code
        == 403
    )


def test_a_savepoint_is_nobodys_checkpoint(service: Served, ada: httpx.Client, bob: httpx.Client, name: str) -> None:
    """Its location is shown to every viewer. A job that worked in it would take and change its state."""
    point = asyncio.run(saved(service, create(ada, name)["id"]))
    location = bob.get(f"/savepoints/{point}").json()["location"]
    create(bob, f"{name}-bob")
    for folder in (location, f"{location}/out", location.rpartition("/")[0]):
        like = {"spec": {"main": "job.py", "checkpoint": folder}}
        assert asked(bob, f"{name}-too", like=like).status_code == 403, folder
        changed = {"spec": {**spec(f"{name}-bob"), **like}}
        assert bob.patch(f"/jobs/{name}-bob", json=changed, headers={"If-Match": "*"}).status_code == 403
    refused = asked(ada, f"{name}-ada", like={"spec": {"main": "job.py", "checkpoint": location}})
    assert refused.status_code == 403
    assert "--savepoint" in refused.json()["hint"]
    assert bob.post(f"/jobs/{name}-bob/savepoints", json={"location": location}).status_code == 403


def test_the_folders_of_names_to_come_are_not_taken(
    service: Served, ada: httpx.Client, bob: httpx.Client, name: str
) -> None:
    home = service.settings.home.absolute()
    for folder in (
        f"{home}/jobs/{name}/checkpoint",
        f"{home}/jobs/x/../{name}",
        f"{home}/savepoints/{name}",
        f"{home}",
    ):
        like = {"spec": {"main": "job.py", "checkpoint": folder}}
        assert asked(bob, f"{name}-bob", like=like).status_code in (403, 422), folder
    own = {"spec": {"main": "job.py", "checkpoint": f"{home}/jobs/{name}-own/checkpoint"}}
    assert asked(bob, f"{name}-own", like=own).status_code == 201
    create(ada, name)


def test_an_order_names_the_subjects_whose_folders_the_run_opens(service: Served, ada: httpx.Client, name: str) -> None:
    """The owner file has the subject; an admin may take over a name, and start from any savepoint."""
    point = asyncio.run(saved(service, create(ada, name)["id"]))
    begun = {"savepoint": point, "publish_again": True}
    with service.client() as admin:
        of_savepoint = asked(admin, f"{name}-root", start_from=begun).json()
        create(ada, f"{name}-taken")
        assert ada.delete(f"/jobs/{name}-taken").status_code == 202
        of_name = create(admin, f"{name}-taken")
    for job in (of_savepoint, of_name):
        with ScriptedAgent(service, f"h{secrets.token_hex(4)}") as agent:
            agent.register()
            asyncio.run(placed(service, job["id"], agent.name))
            (run_spec,) = agent.work()["runs"]
            assert run_spec["folder_owners"] == ["ada"]


def test_locations_outside_of_the_allowed_roots_are_refused(tmp_path: Path, name: str) -> None:
    with (
        served(tmp_path, checkpoint_roots=["/data/clonos", "s3a://bucket/clonos/"]) as service,
        service.client() as root,
    ):
        token = root.post("/tokens", json={"name": "ada", "role": "operator", "subject": "ada"}).json()["token"]
        with service.client(token) as ada:
            for number, (location, status) in enumerate(
                [
                    ("/data/clonos/ada", 201),
                    ("s3a://bucket/clonos/ada", 201),
                    ("/data/clonos-too", 403),
                    ("s3a://other/clonos/ada", 403),
                    ("/elsewhere/ada", 403),
                ]
            ):
                like = {"spec": {"main": "job.py", "checkpoint": location}}
                assert asked(ada, f"{name}-{number}", like=like).status_code == status, location
            assert asked(ada, f"{name}-default").status_code == 201
        like = {"spec": {"main": "job.py", "checkpoint": "/elsewhere/root"}}
        assert asked(root, f"{name}-root", like=like).status_code == 201


def test_republishing_needs_an_explicit_request(service: Served, ada: httpx.Client, name: str) -> None:
    """Without `publish_again` a job starts from an older point only where nothing was published after it."""
    created = create(ada, name)
    with published(service, created["id"], 0, 1, 2):
        for epoch in (0, 1):
            refused = ada.post(f"/jobs/{name}/start", json={"epoch": epoch})
            assert (refused.status_code, slug(refused)) == (409, "would-publish-again")
        old, new = (asyncio.run(saved(service, created["id"], out=epoch)) for epoch in (1, 2))
        assert slug(ada.post(f"/jobs/{name}/start", json={"savepoint": old})) == "would-publish-again"
        assert slug(asked(ada, f"{name}-too", start_from={"savepoint": old})) == "would-publish-again"
        assert ada.get(f"/jobs/{name}").json()["desired_state"] == "STOPPED"
        assert asked(ada, f"{name}-new", start_from={"savepoint": new}).status_code == 201
        # The check does not cover records that a job of another name published.
        assert asked(ada, f"{name}-old", start_from={"savepoint": old, "publish_again": True}).status_code == 201
        assert ada.post(f"/jobs/{name}/start", json={"epoch": 1, "publish_again": True}).status_code == 202


def test_jobs_of_one_name_are_one_history(service: Served, ada: httpx.Client, name: str) -> None:
    """The next job of a name continues the checkpoint of the previous job."""
    with published(service, create(ada, name)["id"], 0, 1, 2):
        assert ada.delete(f"/jobs/{name}").status_code == 202
    # Its run is open still: as the leader would, when the run has ended.
    asyncio.run(deleted(service, name))
    with published(service, create(ada, name)["id"], 3, 4, after_s=100.0):
        assert slug(ada.post(f"/jobs/{name}/start", json={"epoch": 2})) == "would-publish-again"
        assert ada.post(f"/jobs/{name}/start", json={"epoch": 4}).status_code == 202


def test_a_republish_request_is_audited_and_counts_for_one_start(service: Served, ada: httpx.Client, name: str) -> None:
    created = create(ada, name)
    for wrong in ({"publish_again": True}, {"epoch": 1, "savepoint": created["id"]}, {"epoch": -1}):
        assert ada.post(f"/jobs/{name}/start", json=wrong).status_code == 422, wrong
    with published(service, created["id"], 0, 1):
        wanted = {"savepoint": None, "epoch": 0, "publish_again": True}
        assert ada.post(f"/jobs/{name}/start", json=wanted).status_code == 202
        again = ada.post(f"/jobs/{name}/start", json=wanted)
        assert (again.status_code, slug(again)) == (409, "state-conflict")  # it is to run already
    with service.client() as admin:
        entries = [entry for entry in admin.get("/audit").json()["data"] if entry["target"] == created["id"]]
    (start,) = [entry for entry in entries if entry["action"] == "job.start"]
    assert (start["subject"], start["detail"]["start_from"]) == ("ada", wanted)
