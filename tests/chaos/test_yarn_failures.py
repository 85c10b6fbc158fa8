"""Failures on YARN: Hadoop's own mini cluster, whose containers are real processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import AFTER, WaitingJobs, check_output, while_running

from clonos.settings import KafkaSettings
from clonos.spark.environment_archive import build_environment
from clonos.testing.harness import eventually
from support.yarn import Yarn

pytestmark = [pytest.mark.timeout(3000), pytest.mark.full]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as yarn:
        yield yarn


@pytest.mark.chaos(fault="SIGKILL", target="executor, then driver", topology="clonos run, YARN")
@pytest.mark.parametrize(
    "kind", [pytest.param("service", marks=pytest.mark.turn(3)), "stateful"]
)  # the latter with an environment archive
def test_an_executor_and_the_driver_are_killed(
    yarn: Yarn, kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    """The epoch of a lost executor fails whole; a killed driver leaves no executor."""
    file = tmp_path / "cluster.json"
    settings = {"master": "yarn", "sharedLocations": [f"file://{tmp_path}"], "sparkConf": yarn.conf}
    if kind == "stateful":
        settings["environment"] = build_environment(tmp_path / "environment.tar.gz").path.as_uri()
    file.write_text(json.dumps({"metadata": {"name": "hadoop"}, "spec": settings}))
    spec = {"executor": {"instances": 2, "cores": 1, "memory": "512m"}}
    environment = {"HADOOP_CONF_DIR": str(yarn.configuration)}
    jobs = WaitingJobs(yarn, kafka, name, make_topic, tmp_path, spec, ("--cluster", str(file)), environment)
    run, until_a_task_waits = jobs.start(kind)
    try:
        waiting, feeder = until_a_task_waits()
        (session,) = run.events_of("session")
        application = session["application_id"]
        assert yarn.applications()[application] == "RUNNING"
        # The first epoch needs one executor only; the other one may still unpack its environment.
        while_running(waiting.driver, lambda: len(yarn.executors()) == 2, "both executors run")
        yarn.kill_executor(waiting.python)
        feeder.burst(AFTER)
        check_output(run, feeder, kind)
        assert waiting.restarts() > 0, "the epoch failed whole"
        while_running(waiting.driver, lambda: len(yarn.executors()) == 2, "YARN replaced the executor")
        waiting.driver.kill()
        eventually(lambda: not yarn.executors(), "the executors have exited")
        eventually(lambda: yarn.applications()[application] in {"FINISHED", "FAILED"}, "the application has ended")
        driver = run.start(arguments=jobs.arguments, environment=environment)
        feeder.burst(AFTER)
        check_output(run, feeder, kind)
        driver.stop_gracefully()
        eventually(lambda: not yarn.executors(), "the executors of the second application have exited")
        states = yarn.applications()
        assert states[run.events_of("session")[-1]["application_id"]] == "FINISHED"
    finally:
        run.end()
