"""Which changes of a session's executors are reported, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError

from clonos.driver.watches import ExecutorWatch
from support.event_fields import into


class Some:
    """A Scala option."""

    def __init__(self, value: str | None) -> None:
        self.value = value

    def isDefined(self) -> bool:  # noqa: N802, Scala's name
        return self.value is not None

    def get(self) -> str | None:
        return self.value


class Context:
    """A Spark context; `ids` are its executors' ids, `listed` the ids in Spark's status."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.listed: list[str] | None = None  # None: as `ids`
        self.reads = 0
        self.failure: Exception | None = None
        self._jsc = SimpleNamespace(sc=lambda: self)

    def getConf(self) -> dict[str, str]:  # noqa: N802, Spark's name
        return {"spark.executor.instances": "3"}

    def getExecutorIds(self) -> Any:  # noqa: N802, Spark's name
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(mkString=lambda separator: separator.join(self.ids))

    def statusStore(self) -> Any:  # noqa: N802, Spark's name
        self.reads += 1
        summaries = [self._summary(each) for each in ("driver", *(self.ids if self.listed is None else self.listed))]
        listed = SimpleNamespace(size=lambda: len(summaries), apply=summaries.__getitem__)
        return SimpleNamespace(executorList=lambda active: listed if active else None)

    @staticmethod
    def _summary(each: str) -> Any:
        logs = SimpleNamespace(get=lambda name: Some(f"http://w/{each}" if name == "stderr" else None))
        return SimpleNamespace(
            id=lambda: each, hostPort=lambda: f"[fd00::{each}]:5", totalCores=lambda: 2, executorLogs=lambda: logs
        )


def watched(context: Context, every_s: float = 3.0) -> tuple[ExecutorWatch, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    session: Any = SimpleNamespace(sparkContext=context)
    return ExecutorWatch(session, into(events), every_s=every_s), events


def test_each_change_is_reported_once() -> None:
    context = Context()
    watch, events = watched(context)
    context.ids = ["10", "9"]
    watch.poll_once()
    (event,) = events
    assert (event["event"], event["wanted"], event["registered"]) == ("executors", 3, 2)
    first = {"id": "9", "host": "[fd00::9]", "cores": 2, "stdout": "", "stderr": "http://w/9"}
    assert event["executors"][0] == first, "by number, without the driver"
    watch.poll_once()
    assert (len(events), context.reads) == (1, 1), "nothing has changed: one short call"
    context.ids = ["10"]
    watch.poll_once()
    assert events[-1]["registered"] == 1


def test_a_status_that_is_behind_is_read_again() -> None:
    context = Context()
    watch, events = watched(context)
    context.ids, context.listed = ["1", "2"], ["1"]
    watch.poll_once()
    context.listed = None
    watch.poll_once()
    assert [event["registered"] for event in events] == [1, 2]


def test_many_executors_are_counted_and_not_listed() -> None:
    context = Context()
    watch, events = watched(context)
    context.ids = [f"{number}" for number in range(500)]
    watch.poll_once()
    assert (events[0]["registered"], len(events[0]["executors"])) == (500, 20)


def test_a_jvm_that_ends_and_a_stop_report_nothing() -> None:
    context = Context()
    watch, events = watched(context)
    context.failure = Py4JError("An error occurred while calling")
    watch.poll_once()
    context.failure, context.ids = None, ["1"]
    watch.stop()
    watch.poll_once()
    assert events == []


def test_the_thread_polls_until_it_is_stopped() -> None:
    context, reported = Context(), threading.Event()
    session: Any = SimpleNamespace(sparkContext=context)
    watch = ExecutorWatch(session, lambda _event, **_keys: reported.set(), every_s=0.01)
    context.ids = ["1"]
    watch.start()
    assert reported.wait(30)
    watch.stop()
