"""``clonos cluster`` and ``clonos submit --cluster`` against a control plane whose leader begins checks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clonos import errors
from clonos.cli.app import app
from clonos.testing.harness import eventually
from component.cli.conftest import Clonos
from support.scripted import ScriptedAgent
from support.serving import ApiProcess, Served

JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # A process of its own, because the output of the commands is compared.
    home = tmp_path_factory.mktemp("api")
    with ApiProcess(home, log=home / "api.log", reconcile=True) as process:
        yield process.served


@pytest.fixture
def clonos(control_plane: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clonos:
    """Runs `clonos` with arguments; raises the command's error."""
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLONOS_API", control_plane.url)
    monkeypatch.setenv("CLONOS_TOKEN", control_plane.admin)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def body(result: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.fixture
def checker(control_plane: Served) -> Iterator[dict[str, Any]]:
    """An agent that answers each check with this result; the checked descriptions are under ``seen``."""
    answer: dict[str, Any] = {"result": {"spark": "4.2.1", "executors": 2}, "seen": []}
    ended = threading.Event()

    with ScriptedAgent(control_plane, "checker") as agent:
        agent.register()

        def work() -> None:
            revision = None
            while not ended.is_set():
                agent.heartbeat()
                fetched = agent.work(revision, wait_s=0.2)
                revision = fetched["revision"]
                for task in fetched.get("tasks", []):
                    answer["seen"].append(task["arguments"]["spec"])
                    agent.task_done(task["task"], **answer["result"])

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield answer
        finally:
            ended.set()
            thread.join(30)
            with control_plane.client() as admin:
                admin.delete("/hosts/checker")


def test_add_with_options_and_inspect(clonos: Clonos) -> None:
    options = (
        *("--master", "spark://m:7077", "--ui", "http://m:8080", "--conf", "spark.driver.host=a"),
        *("--conf", "spark.eventLog.dir=hdfs://h/logs", "--auth-secret", "spark", "--trusted-network"),
        *("--shared", "file:///mnt/a", "--shared", "hdfs://h/b", "--python", "python3"),
        *("--environment", "hdfs://h/env.tar.gz", "--host", "h1", "--host", "h2"),
    )
    added = body(clonos("cluster", "add", "every-option", *options, "-o", "json"))
    assert added["spec"] == {
        "master": "spark://m:7077",
        "ui": "http://m:8080",
        "sparkConf": {"spark.driver.host": "a", "spark.eventLog.dir": "hdfs://h/logs"},
        "authSecret": "spark",
        "trustedNetwork": True,
        "sharedLocations": ["file:///mnt/a", "hdfs://h/b"],
        "python": "python3",
        "environment": "hdfs://h/env.tar.gz",
        "hosts": ["h1", "h2"],
        "kubernetes": None,
    }
    assert body(clonos("cluster", "inspect", "every-option", "-o", "json"))["name"] == "every-option"
    shown = clonos("cluster", "inspect", "every-option").stdout
    for part in ("UNCHECKED", "spark://m:7077", "http://m:8080", "h1, h2", "secret spark of the hosts", "hdfs://h/b"):
        assert part in shown, part
    assert "every-option" in clonos("cluster", "ls", "-o", "name").stdout.split()
    with pytest.raises(errors.NameTaken):
        clonos("cluster", "add", "every-option", "--master", "yarn")


def test_add_from_a_file_whose_fields_options_replace(clonos: Clonos, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "kind: Cluster\nmetadata: {name: other, labels: {team: a}}\n"
        "spec: {master: 'spark://m:7077', hosts: [h1], ui: 'http://m:8080'}\n"
    )
    added = body(clonos("cluster", "add", "of-file", "--file", str(file), "--host", "h2", "-o", "json"))
    assert (added["name"], added["labels"]) == ("of-file", {"team": "a"})
    assert (added["spec"]["master"], added["spec"]["hosts"]) == ("spark://m:7077", ["h2"])
    changed = body(clonos("cluster", "add", "of-file", "--master", "yarn", "--replace", "-o", "json"))
    assert (changed["version"], changed["spec"]["master"], changed["spec"]["hosts"]) == (2, "yarn", [])
    assert body(clonos("cluster", "add", "new", "--master", "yarn", "--replace", "-o", "json"))["version"] == 1


def test_pods_are_described_in_a_file(clonos: Clonos, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    pods = "{image: 'r/executor:1', namespace: streams}"
    file.write_text(f"metadata: {{name: pods}}\nspec: {{master: 'k8s://https://m:6443', kubernetes: {pods}}}\n")
    clonos("cluster", "add", "pods", "--file", str(file))
    shown = clonos("cluster", "inspect", "pods").stdout
    assert "r/executor:1 in the namespace streams" in shown
    assert "a secret of Spark for each application" in shown
    with pytest.raises(errors.SpecError, match="needs the field kubernetes"):
        clonos("cluster", "add", "podless", "--master", "k8s://https://m:6443")


@pytest.mark.parametrize("options", [(), ("--master", "local[2]"), ("--master", "yarn", "--shared", "/mnt")])
def test_a_description_that_is_invalid_is_not_sent(clonos: Clonos, options: tuple[str, ...]) -> None:
    with pytest.raises(errors.SpecError, match=r"spec\.(master|sharedLocations)"):
        clonos("cluster", "add", "wrong", *options)
    with pytest.raises(errors.NotFound):
        clonos("cluster", "inspect", "wrong")


def test_check_waits_and_shows_what_it_saw(clonos: Clonos, checker: dict[str, Any]) -> None:
    clonos("cluster", "add", "checked", "--master", "spark://m:7077")
    # The agent answers the check of the addition before this one begins.
    eventually(lambda: body(clonos("cluster", "inspect", "checked", "-o", "json"))["state"] == "READY", "it is READY")
    checker["result"] = {"spark": "4.2.1,4.1.0", "problems": ["The executors have Spark 4.1.0."]}
    shown = clonos("cluster", "check", "checked").stdout
    assert "INCOMPATIBLE" in shown
    assert "The executors have Spark 4.1.0." in shown
    assert checker["seen"][-1]["spec"]["master"] == "spark://m:7077"
    assert "The executors have Spark 4.1.0." in clonos("cluster", "ls").stdout
    checker["result"] = {"spark": "4.2.1"}
    assert body(clonos("cluster", "check", "checked", "-o", "json"))["state"] == "READY"
    assert body(clonos("cluster", "check", "checked", "--no-wait", "-o", "json"))["kind"] == "check-cluster"


def test_brackets_are_not_markup(clonos: Clonos) -> None:
    options = ("--master", "spark://[fd00::1]:7077", "--conf", "spark.x=[bold]y")
    clonos("cluster", "add", "bracketed", *options)
    for shown in (clonos("cluster", "ls").stdout, clonos("cluster", "inspect", "bracketed").stdout):
        assert "spark://[fd00::1]:7077" in shown
    assert "spark.x=[bold]y" in clonos("cluster", "inspect", "bracketed").stdout


def test_rm(clonos: Clonos) -> None:
    for name in ("one", "two"):
        clonos("cluster", "add", name, "--master", "yarn")
    assert clonos("cluster", "rm", "one", "two").stdout.splitlines() == ["one is removed.", "two is removed."]
    with pytest.raises(errors.NotFound):
        clonos("cluster", "inspect", "one")


def test_submit_names_a_cluster_in_place_of_the_specified_master(clonos: Clonos, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "job.yaml").write_text("metadata: {name: on-cluster}\nspec: {main: job.py, master: 'local[2]'}\n")
    with pytest.raises(errors.SpecError, match="there is no cluster 'absent'"):
        clonos("submit", str(tmp_path), "--cluster", "absent", "--no-start")
    clonos("cluster", "add", "named", "--master", "yarn", "--ui", "http://m:8080")
    created = body(clonos("submit", str(tmp_path), "--cluster", "named", "--no-start", "-o", "json"))
    assert (created["spec"]["spec"]["cluster"], created["spec"]["spec"]["master"]) == ("named", "auto")
    shown = clonos("job", "inspect", "on-cluster").stdout
    assert "http://m:8080" in shown
    inspected = body(clonos("job", "inspect", "on-cluster", "-o", "json"))
    assert inspected["cluster"]["name"] == "named"
    assert [row.split()[1] for row in clonos("cluster", "inspect", "named").stdout.splitlines() if "jobs" in row] == [
        "none"
    ]
    clonos("cluster", "rm", "named")
    assert "named (removed)" in clonos("job", "inspect", "on-cluster").stdout
