"""Checks of a session that the user's program built, and of the sources of an epoch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clonos.driver.repeatable import StreamingScan
from clonos.errors import SessionIncompatible
from clonos.settings import KafkaSettings
from clonos.spark.session import alive, local_task_failures
from clonos.spark.user_session import check_session, configure_workers

STAGES = "spark.stage.maxConsecutiveAttempts"


class Context:
    """The parts of a Spark context that the checks read."""

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self.environment: dict[str, str] = {}
        self.pythonExec = "python3"
        self._conf = {name.replace("_", "."): value for name, value in conf.items()}

    def getConf(self) -> Any:  # noqa: N802
        return self._conf

    def accumulator(self, start: int) -> int:
        return start


class Session:
    def __init__(self, master: str = "local[2]", **conf: str) -> None:
        self.sparkContext = Context(master, **conf)


FIT: list[Any] = [
    Session(spark_stage_maxConsecutiveAttempts="1"),
    Session("local", spark_stage_maxConsecutiveAttempts="1"),
    Session("local[*,1]", spark_stage_maxConsecutiveAttempts=" 1 ", spark_speculation="FALSE"),
    Session("local[2]", spark_stage_maxConsecutiveAttempts="1", spark_task_maxFailures="4"),
    Session(
        "spark://there:7077",
        spark_stage_maxConsecutiveAttempts="1",
        spark_stage_maxAttempts="1",
        spark_task_maxFailures="1",
        spark_plugins="org.other.Plugin, clonos.EpochGuard",
    ),
]
UNFIT: list[tuple[Any, list[str]]] = [
    (Session(), [STAGES]),
    (Session("local[2,3]", spark_stage_maxConsecutiveAttempts="1"), ["local[2,3]", "second number"]),
    (Session(spark_stage_maxConsecutiveAttempts="1", spark_speculation="true"), ["spark.speculation=false"]),
    (
        Session("yarn", spark_stage_maxConsecutiveAttempts="1"),
        ["spark.task.maxFailures=1", "spark.stage.maxAttempts=1"],
    ),
    (Session("local-cluster[2,1,512]", spark_plugins="org.other.Plugin"), ["spark.plugins=clonos.EpochGuard"]),
    (Session("yarn", spark_dynamicAllocation_enabled="true"), ["spark.dynamicAllocation.enabled=false"]),
    (Session("yarn", spark_speculation="true"), ["spark.task.maxFailures=1", STAGES, "spark.speculation=false"]),
]


@pytest.mark.parametrize("session", FIT)
def test_a_fit_session(session: Any) -> None:
    check_session(session)


@pytest.mark.parametrize(("session", "named"), UNFIT)
def test_an_unfit_session_is_refused_with_every_setting_named(session: Any, named: list[str]) -> None:
    with pytest.raises(SessionIncompatible) as refused:
        check_session(session)
    for name in named:
        assert name in str(refused.value)
    assert "spark_conf()" in refused.value.hint or "second number" in refused.value.hint


def test_spark_connect_is_refused() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionIncompatible, match="Spark Connect"):
        check_session(remote)


@pytest.mark.parametrize(
    ("master", "failures"),
    [
        ("local", "1"),
        ("local[8]", "1"),
        ("local[*]", "1"),
        ("local[*, 3]", "3"),
        ("local-cluster[2,1,1024]", None),
        ("yarn", None),
        ("", None),
        (None, None),
    ],
)
def test_how_often_a_task_may_fail_locally(master: str | None, failures: str | None) -> None:
    assert local_task_failures(master) == failures


def test_workers_use_this_interpreter_unless_the_user_sets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    kafka = KafkaSettings(bootstrap_servers="b:1", sasl_password="secret")  # type: ignore[arg-type]
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("clonos.causal.counting.count.attach", lambda context: None)
    session: Any = Session()
    configure_workers(session, kafka)
    assert session.sparkContext.pythonExec == sys.executable
    assert json.loads(session.sparkContext.environment["CLONOS_WORKER_KAFKA"])["sasl_password"] == "secret"
    for other in (Session("yarn"), Session()):
        monkeypatch.setenv("PYSPARK_PYTHON", "mine") if other.sparkContext.master != "yarn" else None
        configure_workers(other, kafka)  # type: ignore[arg-type]
        assert other.sparkContext.pythonExec == "python3"


def test_a_session_without_a_jvm_is_not_alive() -> None:
    assert not alive(Session())  # type: ignore[arg-type]


def test_topics_of_a_scan() -> None:
    assert StreamingScan("kafka", {"subscribe": "a, b"}).topics() == ["a", "b"]
    assert StreamingScan("kafka", {"assign": '{"a": [0], "c": [1]}'}).topics() == ["a", "c"]
    assert StreamingScan("kafka", {"subscribepattern": "a.*"}).topics() == []
