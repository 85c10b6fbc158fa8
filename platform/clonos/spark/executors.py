"""How many executors a session on a cluster has: a standby holds a few of them, and requests the rest at promotion.

Dynamic allocation is off, because it removes executors in the middle of epochs. These calls are those that it makes.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.spark.internals import jvm_of
from clonos.spark.session import alive, is_local

_log = logging.getLogger("clonos")
_INSTANCES: Final = "spark.executor.instances"
_RETRY_S: Final = 1.0


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
    number = int(spark.sparkContext.getConf().get(_INSTANCES, "1") or "1")
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
