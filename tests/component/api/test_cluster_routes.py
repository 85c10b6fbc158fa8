"""Clusters over REST: their descriptions, versions, checks and removal, and the jobs that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from clonos.jobs.cluster import ClusterReport
from clonos.resources.clusters import ClusterState
from clonos_api.store import clusters, tasks
from support.scripted import ScriptedAgent, create, spec, upload

Write = Callable[..., Any]


def described(name: str, **settings: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"master": "spark://m:7077", **settings}}


def add(admin: httpx.Client, name: str, **settings: Any) -> dict[str, Any]:
    answer = admin.post("/clusters", json=described(name, **settings))
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def problems(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 422, answer.text
    return [error["field"] for error in answer.json()["errors"]]


def submit(client: httpx.Client, job: str, cluster: str, **more: Any) -> httpx.Response:
    wanted = spec(job)
    wanted["spec"] |= {"cluster": cluster, **more}
    return client.post("/jobs", json={"spec": wanted, "artifact": upload(client), "start": False})


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "c-" + "".join(char if char.isalnum() else "-" for char in request.node.name.lower())[-60:].strip("-")


def test_a_cluster_is_added_changed_and_removed(admin: httpx.Client, name: str) -> None:
    created = admin.post("/clusters", json=described(name, sparkConf={"spark.driver.host": "a"}))
    assert created.headers["Location"].endswith(f"/clusters/{name}")
    assert created.json()["state"] == "UNCHECKED"
    read = admin.get(f"/clusters/{name}")
    assert read.headers["ETag"] == created.headers["ETag"]
    assert read.json()["spec"]["sparkConf"] == {"spark.driver.host": "a"}
    assert admin.get(f"/clusters/{name}", headers={"If-None-Match": read.headers["ETag"]}).status_code == 304

    change = described(name, hosts=["a", "b"])
    assert admin.put(f"/clusters/{name}", json=change).status_code == 428
    assert admin.put(f"/clusters/{name}", json=change, headers={"If-Match": '"7"'}).status_code == 412
    changed = admin.put(f"/clusters/{name}", json=change, headers={"If-Match": read.headers["ETag"]})
    assert (changed.status_code, changed.json()["version"], changed.json()["spec"]["hosts"]) == (200, 2, ["a", "b"])
    assert changed.json()["spec"]["sparkConf"] == {}
    renamed = admin.put(f"/clusters/{name}", json=described("other"), headers={"If-Match": "*"})
    assert problems(renamed) == ["metadata.name"]

    assert admin.delete(f"/clusters/{name}", headers={"If-Match": '"1"'}).status_code == 412
    assert admin.delete(f"/clusters/{name}", headers={"If-Match": '"2"'}).status_code == 204
    assert admin.get(f"/clusters/{name}").status_code == 404


def test_a_description_may_be_yaml(admin: httpx.Client, name: str) -> None:
    body = f"kind: Cluster\nmetadata: {{name: {name}}}\nspec: {{master: yarn}}\n"
    answer = admin.post("/clusters", content=body, headers={"Content-Type": "application/yaml"})
    assert (answer.status_code, answer.json()["spec"]["master"]) == (201, "yarn")
    assert admin.post("/clusters", json=described(name)).status_code == 409


def test_a_repeated_request_adds_one_cluster_and_begins_one_check(admin: httpx.Client, name: str) -> None:
    for path, body in (("/clusters", described(name)), (f"/clusters/{name}/check", None)):
        headers = {"Idempotency-Key": f"{name} {path}"}
        answers = [admin.post(path, json=body, headers=headers) for _ in range(2)]
        assert answers[0].text == answers[1].text
        assert "Idempotency-Replayed" in answers[1].headers


def test_clusters_are_paged_by_name(admin: httpx.Client, name: str) -> None:
    for letter in "bca":
        add(admin, f"{name}-{letter}")
    first = admin.get("/clusters", params={"limit": 2, "starting_after": name}).json()
    assert [row["name"] for row in first["data"]] == [f"{name}-a", f"{name}-b"]
    second = admin.get("/clusters", params={"limit": 1, "starting_after": first["next"]}).json()
    assert [row["name"] for row in second["data"]] == [f"{name}-c"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"master": "local[2]"}, "spec.master"),
        ({"sparkConf": {"spark.ssl.keyPassword": "hunter2"}}, "spec.sparkConf.spark.ssl.keyPassword"),
        ({"sparkConf": {"spark.authenticate.secret": "${secret:x}"}}, "spec.sparkConf.spark.authenticate.secret"),
        ({"sparkConf": {"spark.jars.repositories": "https://a:hunter2@b/"}}, "spec.sparkConf.spark.jars.repositories"),
        ({"sparkConf": {"spark.master": "yarn"}}, "spec.sparkConf.spark.master"),
        ({"sparkConf": {"spark.executor.memory": "1g"}}, "spec.sparkConf.spark.executor.memory"),
        ({"sparkConf": {"spark.task.maxFailures": "4"}}, "spec.sparkConf.spark.task.maxFailures"),
        ({"sparkConf": {"spark.driver.host": "${env:HOST}"}}, "spec.sparkConf.spark.driver.host"),
        ({"sparkConf": {"driver.host": "a"}}, "spec.sparkConf.driver.host"),
        ({"ui": "https://admin:hunter2@spark:8080/x"}, "spec.ui"),
        ({"ui": "https://admin@spark"}, "spec.ui"),
    ],
)
def test_descriptions_that_are_refused(admin: httpx.Client, name: str, settings: dict[str, Any], field: str) -> None:
    answer = admin.post("/clusters", json=described("refused", **settings))
    assert problems(answer) == [field]
    assert "hunter2" not in answer.text
    add(admin, name)
    assert problems(admin.put(f"/clusters/{name}", json=described(name, **settings), headers={"If-Match": "*"}))


def test_settings_that_clusters_need(admin: httpx.Client, name: str) -> None:
    conf = {
        "spark.driver.host": "10.0.0.1",
        "spark.eventLog.dir": "hdfs://h/logs",
        "spark.executor.extraJavaOptions": "-Dx=y",
        "spark.ssl.keyPassword": "${secret:key}",
    }
    assert add(admin, name, sparkConf=conf)["spec"]["sparkConf"] == conf


def test_an_unknown_cluster_is_refused_and_the_known_ones_are_named(admin: httpx.Client, name: str) -> None:
    add(admin, name)
    refused = submit(admin, name, "no-such-cluster")
    assert problems(refused) == ["spec.cluster"]
    assert name in refused.json()["errors"][0]["hint"]
    checked = admin.post("/jobs/validate", json={"spec": described(name) | {"spec": {"cluster": "no-such-cluster"}},
                                                 "artifact": upload(admin)})  # fmt: skip
    assert [problem["field"] for problem in checked.json()["problems"]] == ["spec.cluster"]


def test_a_job_names_a_cluster_or_a_master(admin: httpx.Client, name: str) -> None:
    add(admin, name)
    assert problems(submit(admin, name, name, master="local[2]"))
    assert submit(admin, name, name, executor={"instances": 4, "cores": 2}).status_code == 201
    assert admin.get(f"/clusters/{name}").json()["jobs"] == [], "neither runs nor will run"
    started = admin.post(f"/jobs/{name}/start")
    assert started.status_code == 202, started.text
    assert admin.get(f"/clusters/{name}").json()["jobs"] == [name]
    listed = admin.get("/clusters", params={"limit": 200}).json()["data"]
    assert [row["jobs"] for row in listed if row["name"] == name] == [[name]]


def test_a_job_cannot_override_what_its_cluster_sets(admin: httpx.Client, name: str) -> None:
    add(admin, name, sparkConf={"spark.network.timeout": "60s", "spark.driver.host": "a"})
    conf = {"spark.network.timeout": "600s", "spark.rdd.compress": "true"}
    refused = submit(admin, name, name, sparkConf=conf)
    assert problems(refused) == ["spec.sparkConf.spark.network.timeout"]
    created = create(admin, name)
    change = spec(name)
    change["spec"] |= {"cluster": name, "sparkConf": conf}
    patched = admin.patch(f"/jobs/{created['id']}", json={"spec": change}, headers={"If-Match": "*"})
    assert problems(patched) == ["spec.sparkConf.spark.network.timeout"]


def test_a_cluster_with_problems_gets_no_new_job(admin: httpx.Client, name: str, write: Write) -> None:
    add(admin, name)
    assert submit(admin, f"{name}-0", name).status_code == 201, "one that is not checked yet is allowed"

    async def incompatible(session: Any) -> None:
        row = await clusters.begin_check(session, await clusters.get(session, name))
        await clusters.succeed(session, row, ClusterReport(problems=("Python is 3.9.",)))

    write(incompatible)
    refused = submit(admin, name, name)
    assert problems(refused) == ["spec.cluster"]
    assert "Python is 3.9." in refused.json()["errors"][0]["what"]


def test_the_result_of_a_check(admin: httpx.Client, agent: ScriptedAgent, name: str, write: Write) -> None:
    add(admin, name)
    operation = admin.post(f"/clusters/{name}/check")
    assert operation.status_code == 202
    assert operation.headers["Location"].endswith(operation.json()["id"])

    async def begin(session: Any) -> str:
        """As the leader does it."""
        row = await clusters.begin_check(session, await clusters.get(session, name))
        arguments = {"cluster": row.id, "version": row.version}
        return str((await tasks.create(session, agent.id, clusters.CHECK, arguments, operation=of)).id)

    of = operation.json()["id"]
    task = write(begin)
    assert [(assigned["task"], assigned["kind"]) for assigned in agent.work()["tasks"]] == [(task, "check-cluster")]
    body = {"instance": agent.instance, "ok": True, "result": {"executors": -1}}
    assert agent.client.post(f"/hosts/{agent.id}/tasks/{task}", json=body).status_code == 422
    agent.task_done(task, spark="4.2.1", executors=2, problems=[])
    shown = admin.get(f"/clusters/{name}").json()
    assert (shown["state"], shown["report"]["executors"]) == (ClusterState.READY, 2)
    assert admin.get(f"/operations/{of}").json()["result"] == {"cluster": name, "state": "READY"}


def test_a_cluster_of_a_running_job_cannot_be_removed(admin: httpx.Client, name: str) -> None:
    add(admin, name)
    job = submit(admin, name, name).json()["id"]
    admin.post(f"/jobs/{job}/start")
    refused = admin.delete(f"/clusters/{name}")
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (409, "state-conflict")
    assert name in refused.json()["detail"]
    assert admin.post(f"/jobs/{job}/stop").status_code == 202
    assert admin.delete(f"/clusters/{name}").status_code == 204


def test_a_job_does_not_move_to_a_host_off_its_cluster(admin: httpx.Client, agent: ScriptedAgent, name: str) -> None:
    add(admin, name, hosts=["elsewhere"])
    job = submit(admin, name, name, checkpoint="s3a://bucket/x").json()["id"]
    refused = admin.post(f"/jobs/{job}/move", json={"to": agent.name})
    assert refused.status_code == 409
    assert f"Host {agent.name} does not reach cluster {name}." in refused.json()["detail"]
