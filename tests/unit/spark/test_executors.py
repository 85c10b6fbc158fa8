"""The requests for executors of a standby, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from clonos.spark import executors


class Context:
    """A Spark context on a cluster; `answers` are the answers to its next requests."""

    def __init__(self, *answers: bool | Exception, master: str = "spark://127.0.0.1:7077") -> None:
        self.answers = list(answers)
        self.requested: list[int] = []
        self.killed: list[str] = []
        self.master = master
        self._jsc = SimpleNamespace(sc=lambda: self)

    def getConf(self) -> dict[str, str]:  # noqa: N802, Spark's name
        return {"spark.executor.instances": "3"}

    def requestTotalExecutors(self, number: int, _tasks: int, _hosts: object) -> bool:  # noqa: N802, Spark's name
        self.requested.append(number)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def getExecutorIds(self) -> list[str]:  # noqa: N802, Spark's name
        return ["9", "11", "2"]

    def killExecutors(self, ids: list[str]) -> None:  # noqa: N802, Spark's name
        self.killed = ids

    def isStopped(self) -> bool:  # noqa: N802, Spark's name
        return False


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "jvm_of", lambda spark: spark._jvm)


def session(context: Context) -> Any:
    converters = SimpleNamespace(CollectionConverters=SimpleNamespace(asJava=list))
    scala = SimpleNamespace(jdk=SimpleNamespace(javaapi=converters))
    jvm = SimpleNamespace(PythonUtils=SimpleNamespace(toScalaMap=dict, toSeq=list), scala=scala)
    return SimpleNamespace(sparkContext=context, _jvm=jvm)


def test_a_request_is_repeated_until_the_master_acknowledges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master is away, or does not answer in time."""
    monkeypatch.setattr(executors, "_RETRY_S", 0.01)
    context = Context(False, Py4JError("Futures timed out"), True)
    thread = executors.request_executors(session(context))
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
    assert context.requested == [3, 3, 3]


def test_a_session_that_ended_requests_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "alive", lambda _spark: False)
    context = Context(Py4JError("the JVM has exited"))
    thread = executors.request_executors(session(context))
    assert thread is not None
    thread.join(30)
    assert context.requested == [3]


def test_a_standby_holds_the_newest_executors() -> None:
    context = Context(True, True)
    executors.hold_executors(session(context), 1)
    assert context.killed == ["2", "9"]
    assert context.requested == [1, 1], "the kill lowers the number"


def test_a_standby_that_has_no_more_executors_releases_none() -> None:
    context = Context(True)
    executors.hold_executors(session(context), 3)
    assert context.killed == []
    assert context.requested == [3]


def test_a_local_master_has_no_executors() -> None:
    context = Context(master="local[2]")
    executors.hold_executors(session(context), 1)
    assert executors.request_executors(session(context)) is None
    assert context.requested == []
