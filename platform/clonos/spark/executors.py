"""The executors that a session on a cluster has. A standby holds a few of them, and requests the rest at promotion.

Dynamic allocation is off, because it removes executors in the middle of epochs. These calls are those that it makes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.spark.internals import jvm_of
from clonos.spark.session import alive, is_local

_log = logging.getLogger("clonos")
_INSTANCES: Final = "spark.executor.instances"
_RETRY_S: Final = 1.0
_DRIVER: Final = "driver"  # Spark lists it among the executors


@dataclass(frozen=True)
class RegisteredExecutor:
    """An executor that has registered with the session."""

    id: str  # Spark's id of the executor
    host: str  # the executor's host
    cores: int  # number of its task slots
    stdout: str = ""  # address of its standard output, as its worker or YARN's node reports it; empty: unknown
    stderr: str = ""  # address of its standard error; empty: unknown


def wanted_executors(spark: SparkSession) -> int:
    """Return the number of executors that the session's configuration names."""
    return int(spark.sparkContext.getConf().get(_INSTANCES, "1") or "1")


def slots_of_executors(spark: SparkSession) -> dict[str, int]:
    """Return the number of task slots of each registered executor, by its id.

    Raises:
        Py4JError: The JVM ends.
    """
    cores = int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or "1")
    return {executor.id: executor.cores // cores for executor in registered_executors(spark)}


def configured_slots(spark: SparkSession) -> int:
    """Return the number of task slots of the executors that the session's configuration names."""
    conf = spark.sparkContext.getConf()
    cores, task = (int(conf.get(name, "1") or "1") for name in ("spark.executor.cores", "spark.task.cpus"))
    return wanted_executors(spark) * (cores // task)


def executor_ids(spark: SparkSession) -> frozenset[str]:
    """Spark's ids of the executors that have registered, in one call to the JVM.

    Raises:
        Py4JError: The JVM ends.
    """
    listed = str(spark.sparkContext._jsc.sc().getExecutorIds().mkString(","))
    return frozenset(filter(None, listed.split(",")))


def registered_executors(spark: SparkSession) -> list[RegisteredExecutor]:
    """Return the executors that have registered, by id. Spark's web UI, which has the same list, need not run.

    Raises:
        Py4JError: The JVM ends.
    """
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    summaries = [listed.apply(index) for index in range(listed.size())]
    executors = [_registered(summary) for summary in summaries if str(summary.id()) != _DRIVER]
    return sorted(executors, key=lambda executor: (len(executor.id), executor.id))


def _registered(summary: Any) -> RegisteredExecutor:
    logs = summary.executorLogs()

    def log(name: str) -> str:
        address = logs.get(name)
        return str(address.get()) if address.isDefined() else ""

    host = str(summary.hostPort()).rpartition(":")[0]
    return RegisteredExecutor(str(summary.id()), host, int(summary.totalCores()), log("stdout"), log("stderr"))


def hold_executors(spark: SparkSession, number: int) -> None:
    """Release all executors of the session but `number` of them, and request no others. A local master has none.

    Args:
        spark: The session. No task of it runs.
        number: Number of executors to hold.
    """
    if is_local(spark.sparkContext.master or ""):
        return
    context: Any = spark.sparkContext._jsc.sc()
    jvm = jvm_of(spark)
    ids = list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(context.getExecutorIds()))
    # The newest stay (ids are numbers that grow): an executor that started while its worker was lost is registered here
    # until the session ends, but the master does not know it.
    surplus = sorted(ids, key=int)[:-number]
    _request(spark, number)
    if surplus:
        context.killExecutors(jvm.PythonUtils.toSeq(surplus))
        _request(spark, number)  # the kill has lowered the number


def request_executors(spark: SparkSession) -> threading.Thread | None:
    """Request all executors that the session's configuration names, in the background. A local master has none.

    A master that does not answer must not delay a takeover: Spark waits two minutes for it. The request is repeated
    until the master acknowledges it. Until others register, tasks run on the executors that the session has.

    Returns:
        The thread that requests them; None with a local master.
    """
    if is_local(spark.sparkContext.master or ""):
        return None
    number = wanted_executors(spark)
    thread = threading.Thread(target=_request_until_acknowledged, args=(spark, number), name="executors", daemon=True)
    thread.start()
    return thread


def _request_until_acknowledged(spark: SparkSession, number: int) -> None:
    while True:
        try:
            if _request(spark, number):
                return
        except Py4JError as error:
            if not alive(spark):
                return
            _log.warning("the cluster did not take a request for %d executors: %s", number, error)
        time.sleep(_RETRY_S)


def _request(spark: SparkSession, number: int) -> bool:
    """Whether the cluster has acknowledged the request."""
    preferred_hosts = jvm_of(spark).PythonUtils.toScalaMap({})
    return bool(spark.sparkContext._jsc.sc().requestTotalExecutors(number, 0, preferred_hosts))
