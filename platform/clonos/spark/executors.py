"""How many executors a session on a cluster has: a standby holds a few of them, and requests the rest at promotion.

Dynamic allocation is off, because it removes executors in the middle of epochs. These calls are those that it makes.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from clonos.spark.internals import jvm_of
from clonos.spark.session import is_local

_INSTANCES: Final = "spark.executor.instances"
# Spark's own setting for a minimum, with which `SparkContext` starts.
_DEFAULT_INSTANCES: Final = 2


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
    # The oldest stay: their ids are numbers that grow.
    surplus = sorted(ids, key=int)[number:]
    _request(spark, number)
    if surplus:
        context.killExecutors(jvm.PythonUtils.toSeq(surplus))
        _request(spark, number)  # the kill has lowered the number


def request_executors(spark: SparkSession) -> None:
    """Request all executors that the session's configuration names. A local master has none.

    The call returns at once. Tasks run on the executors that the session has, until others register.
    """
    if not is_local(spark.sparkContext.master or ""):
        _request(spark, int(spark.sparkContext.getConf().get(_INSTANCES, "") or _DEFAULT_INSTANCES))


def _request(spark: SparkSession, number: int) -> None:
    preferred_hosts = jvm_of(spark).PythonUtils.toScalaMap({})
    spark.sparkContext._jsc.sc().requestTotalExecutors(number, 0, preferred_hosts)
