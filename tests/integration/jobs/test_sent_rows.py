"""The driver takes the rows that a cluster's tasks send only from running tasks, and only whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

EPOCH = 7


class Classes:
    """The classes of `clonos.spark.java` that are not public, by reflection.

    Args:
        spark: The session in whose JVM they are.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def create(self, name: str, *arguments: object) -> Any:
        """Call the only constructor of ``clonos.NAME``."""
        (constructor,) = self._jvm.java.lang.Class.forName(f"clonos.{name}").getDeclaredConstructors()
        constructor.setAccessible(True)
        return constructor.newInstance(self._array(arguments))

    def call(self, target: Any, name: str, *arguments: object) -> Any:
        """Call the method with this name and number of parameters."""
        for method in target.getClass().getDeclaredMethods():
            types = method.getParameterTypes()
            if method.getName() == name and len(types) == len(arguments):
                method.setAccessible(True)
                return method.invoke(target, self._array(arguments))
        raise AssertionError(f"there is no method {name}")

    def path(self, folder: Path) -> Any:
        """The folder as a path of the JVM."""
        return self._jvm.java.nio.file.Paths.get(str(folder), self._gateway.new_array(self._jvm.java.lang.String, 0))

    def plan(self, *rows: str) -> Any:
        """A plan of tasks that do this with their rows."""
        for method in self._jvm.java.lang.Class.forName("clonos.TaskPlan").getDeclaredMethods():
            if method.getName() == "parse":
                method.setAccessible(True)
                return method.invoke(None, self._array((json.dumps({"rows": rows}),)))
        raise AssertionError("there is no method parse")

    def sent(self, partition: int, *, size: int, rows: bytes = b"") -> Any:
        """The message of a task that sent `size` bytes, `rows` of them with the message."""
        topics = self._gateway.new_array(self._jvm.java.lang.String, 0)
        return self.create("SentRows", partition, topics, size, rows, self.create("RecordDigest"), 0)

    def _array(self, values: tuple[object, ...]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array


@pytest.fixture
def classes(spark: SparkSession) -> Classes:
    return Classes(spark)


@pytest.fixture
def epoch(classes: Classes, tmp_path: Path) -> Any:
    """An epoch of two tasks."""
    return classes.create("SpooledEpoch", EPOCH, classes.plan("SEND", "SEND"), classes.path(tmp_path), None)


def outcomes(classes: Classes, epoch: Any) -> list[tuple[int, int]]:
    """Task and size of all tasks, after task 1 has ended without rows."""
    classes.call(epoch, "add", classes.sent(1, size=0))
    return [(task["task"], task["size"]) for task in json.loads(epoch.outcomes())]


def test_the_parts_of_a_task_are_one_spool(classes: Classes, epoch: Any) -> None:
    for part in (b"some", b"rows"):
        classes.call(epoch, "receive", 0, part)
    classes.call(epoch, "add", classes.sent(0, size=8))
    assert outcomes(classes, epoch) == [(0, 8), (1, 0)]


def test_a_part_after_the_end_of_its_task_is_refused(classes: Classes, epoch: Any) -> None:
    classes.call(epoch, "receive", 0, b"rows")
    classes.call(epoch, "add", classes.sent(0, size=4))
    with pytest.raises(Py4JJavaError, match="rows of partition 0 of epoch 7 came too late"):
        classes.call(epoch, "receive", 0, b"more")
    assert outcomes(classes, epoch) == [(0, 4), (1, 0)]


def test_a_part_after_the_end_of_its_epoch_is_refused(classes: Classes, epoch: Any) -> None:
    epoch.close()
    with pytest.raises(Py4JJavaError, match="rows of partition 1 of epoch 7 came too late"):
        classes.call(epoch, "receive", 1, b"rows")


@pytest.mark.parametrize(
    ("parts", "size", "reason"),
    [
        ([], 4, "no rows of task 1 of epoch 7 arrived"),
        ([b"ro"], 4, "task 1 of epoch 7 sent 4 bytes, and 2 arrived"),
        ([b"rows", b"rows"], 4, "task 1 of epoch 7 sent 4 bytes, and 8 arrived"),
    ],
)
def test_a_task_whose_rows_did_not_arrive_fails(
    classes: Classes, epoch: Any, parts: list[bytes], size: int, reason: str
) -> None:
    for part in parts:
        classes.call(epoch, "receive", 1, part)
    with pytest.raises(Py4JJavaError, match=reason):
        classes.call(epoch, "add", classes.sent(1, size=size))
    with pytest.raises(Py4JJavaError, match="0 of 2 tasks of epoch 7 reported"):
        epoch.outcomes()


def test_a_part_for_a_start_of_the_query_that_ended_is_answered_with_a_refusal(classes: Classes) -> None:
    part = classes.create("RowTransfer$Part", "of-an-earlier-start", EPOCH, 0, b"rows")
    answer = classes.call(classes.create("RowTransfer"), "receive", part)
    assert answer == "this start of the query has ended"
