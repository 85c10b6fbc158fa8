"""A Spark session that somebody else built: what the promise needs of it, what is set on it and what is refused."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession

from clonos.causal.counting import count
from clonos.causal.scope import KAFKA_ENVIRONMENT, worker_environment
from clonos.embedded.jars import ensure_jars
from clonos.engine.session import FASTER, PROMISED, connector_jars, local_task_failures
from clonos.errors import SessionUnfit
from clonos.faults import DRIVER_GROUP
from clonos.formats.registry import registry_environment
from clonos.settings import KafkaSettings, Settings

# Spark's defaults of the settings that are fixed when a session is made.
_FIXED: Final = {"spark.speculation": "false", "spark.task.maxFailures": "4", "spark.stage.maxConsecutiveAttempts": "4"}
_CONNECTOR: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def spark_conf(settings: Settings | None = None) -> dict[str, str]:
    """What a Spark session needs for `clonos.exactly_once`, for ``SparkSession.builder.config(map=…)``.

    What the promise rests on, what makes epochs faster, and the pinned Kafka connector as ``spark.jars`` (fetched
    when it is not there).

    Raises:
        JarsUnavailable: The jars cannot be had.
    """
    return {**PROMISED, **FASTER, "spark.jars": connector_jars(ensure_jars(settings or Settings()))}


def check_session(spark: SparkSession) -> None:
    """Refuse a session whose fixed settings let Spark repeat a part of an epoch by itself.

    Raises:
        SessionUnfit: Naming each setting.
    """
    _classic(spark)
    context = spark.sparkContext
    conf = context.getConf()
    found = {name: conf.get(name, default) or default for name, default in _FIXED.items()}
    local = local_task_failures(context.master)
    if local is not None:
        found["spark.task.maxFailures"] = "1"  # a local master does not look at it
        if local != "1":
            raise SessionUnfit(
                f"Master {context.master} lets Spark retry tasks inside of an epoch.",
                hint="leave the second number out of the master.",
            )
    wrong = [name for name, value in found.items() if value.strip().lower() != PROMISED[name]]
    if wrong:
        has = ", ".join(f"{name}={found[name]}" for name in wrong)
        needed = ", ".join(f"{name}={PROMISED[name]}" for name in wrong)
        raise SessionUnfit(
            f"This Spark session has {has}; exactly-once delivery needs {needed}.",
            hint=f"they are fixed when a session is made: set {needed} there, or all at once with "
            "SparkSession.builder.config(map=clonos.spark_conf()).",
        )


def check_connector(spark: SparkSession) -> None:
    """Refuse a session without Spark's Kafka connector.

    Raises:
        SessionUnfit: Naming the package.
    """
    _classic(spark)
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CONNECTOR)
    except Exception as missing:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        raise SessionUnfit(
            "This Spark session has no Kafka connector.",
            hint=f"make it with spark.jars.packages={package}, or with "
            "SparkSession.builder.config(map=clonos.spark_conf()).",
        ) from missing


def tell_workers(spark: SparkSession, kafka: KafkaSettings) -> None:
    """Let Python workers reach Kafka and import what this process can. It holds for functions built afterwards.

    Raises:
        SessionUnfit: They were told of another cluster.
    """
    context = spark.sparkContext
    told, asked = context.environment.get(KAFKA_ENVIRONMENT), worker_environment(kafka)[KAFKA_ENVIRONMENT]
    if told not in (None, asked):
        raise SessionUnfit(
            "The workers of this Spark session were told of another Kafka cluster, or of other credentials.",
            hint="use one cluster in a program; read other ones with spark.readStream.",
        )
    context.environment.update({**worker_environment(kafka), **registry_environment(), DRIVER_GROUP: str(os.getpgrp())})
    if local_task_failures(context.master) is not None and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # otherwise the `python3` of the PATH
    count.attach(context)


def check_workers(spark: SparkSession, modules: Sequence[str]) -> None:
    """Refuse a session whose Python workers cannot import `modules` (they warm up for the first epoch by it).

    Raises:
        SessionUnfit: Naming the interpreter.
    """
    names = tuple(modules)

    def imported(_number: int) -> str:
        for name in names:
            importlib.import_module(name)
        return sys.executable

    context = spark.sparkContext
    try:
        context.parallelize([0], 1).map(imported).collect()
    except Exception as failure:
        lines = [line.strip() for line in str(failure).splitlines() if "Error" in line]
        raise SessionUnfit(
            f"The Python workers of this session ({context.pythonExec}) cannot import {', '.join(names)}: "
            f"{lines[0] if lines else failure}",
            hint=f"install clonos there, or set PYSPARK_PYTHON={sys.executable} before the session is made.",
        ) from failure


_starting = threading.Lock()  # two queries of one program may start at the same time


@contextlib.contextmanager
def promised_settings(spark: SparkSession, query: Mapping[str, str]) -> Iterator[None]:
    """Set what may be set at run time while a query starts (it keeps a copy), then put the user's values back.

    Args:
        spark: The session.
        query: Further settings of this query.
    """
    before: dict[str, str | None] = {}
    with _starting:
        try:
            for name, value in {**PROMISED, **query}.items():
                if name not in _FIXED:
                    old = spark.conf.get(name, None)
                    if old != value:
                        before[name] = old
                        spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def alive(spark: SparkSession) -> bool:
    """Whether the session and its JVM are still there."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _classic(spark: SparkSession) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionUnfit(
            "This is a Spark Connect session: the driver's epochs cannot be planned from here.",
            hint="use a classic session: SparkSession.builder.master(…), without remote(…).",
        )
