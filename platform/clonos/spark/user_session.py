"""Checks and configures a Spark session that the user's own program has built."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from clonos.causal.counting import count
from clonos.causal.epoch_scope import KAFKA_ENVIRONMENT, worker_environment
from clonos.embedded.jars import ensure_jars
from clonos.errors import SessionIncompatible
from clonos.faults import DRIVER_GROUP
from clonos.formats.registry import registry_environment
from clonos.host_inputs import EXECUTOR_ENVIRONMENT, ZONE_AND_LOCALE
from clonos.settings import KafkaSettings, Settings
from clonos.spark.classes import ensure_classes
from clonos.spark.internals import has_class, jvm_of
from clonos.spark.managers import SHORT_SOCKETS
from clonos.spark.session import FASTER, GUARD, PROMISED, connector_jars, local_task_failures
from clonos.spark.storage import storage_jars

# Spark's defaults of the settings that cannot change after a session is built.
_FIXED: Final = {
    "spark.speculation": "false",
    "spark.task.maxFailures": "4",
    "spark.stage.maxConsecutiveAttempts": "4",
    "spark.stage.maxAttempts": "2147483647",
    "spark.dynamicAllocation.enabled": "false",
}
# A local master has no executors that Spark could lose, and retries tasks by a number of its own.
_OF_CLUSTERS: Final = ("spark.task.maxFailures", "spark.stage.maxAttempts", "spark.dynamicAllocation.enabled")
_PLUGINS: Final = "spark.plugins"
_CLASS: Final = "clonos.LaneSink"
_CONNECTOR: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def spark_conf(settings: Settings | None = None, *, checkpoint: str = "") -> dict[str, str]:
    """Return the configuration of a Spark session for `clonos.exactly_once`.

    It holds the settings that exactly-once delivery needs, those that make epochs faster, and the pinned Kafka
    connector and the Java classes of Clonos as ``spark.jars``, which are downloaded and compiled if needed.

    Args:
        settings: Default: from the environment.
        checkpoint: Location of the checkpoint; for ``s3a:`` the configuration holds the jars of that file system.

    Returns:
        A mapping for ``SparkSession.builder.config(map=…)``.

    Raises:
        JarsUnavailable: The jars cannot be downloaded.
        EnvironmentFault: The Java classes do not compile.

    Example:
        >>> spark = SparkSession.builder.config(map=clonos.spark_conf()).getOrCreate()
    """
    settings = settings or Settings()
    jars = ensure_jars(settings)
    conf = {
        **PROMISED,
        **FASTER,
        **SHORT_SOCKETS,
        **{f"{EXECUTOR_ENVIRONMENT}{name}": value for name, value in ZONE_AND_LOCALE.items()},
        _PLUGINS: GUARD,
        "spark.jars": f"{connector_jars(jars)},{ensure_classes(jars)}",
    }
    return conf | storage_jars(checkpoint, conf, settings)


def check_session(spark: SparkSession) -> None:
    """Refuse a session with settings that let Spark repeat a part of an epoch by itself, and that can no longer be
    changed.

    Raises:
        SessionIncompatible: A setting has a wrong value; the error names each.
    """
    _classic(spark)
    context = spark.sparkContext
    conf = context.getConf()
    current = {name: conf.get(name, default) or default for name, default in _FIXED.items()}
    local = local_task_failures(context.master)
    if local is not None:
        current |= {name: PROMISED[name] for name in _OF_CLUSTERS}
        if local != "1":
            raise SessionIncompatible(
                f"Master {context.master} lets Spark retry tasks within an epoch.",
                hint="leave the second number out of the master.",
            )
    needs = {name: PROMISED[name] for name, value in current.items() if value.strip().lower() != PROMISED[name]}
    current[_PLUGINS] = conf.get(_PLUGINS, "") or ""
    if local is None and GUARD not in map(str.strip, current[_PLUGINS].split(",")):
        needs[_PLUGINS] = GUARD
    if needs:
        has = ", ".join(f"{name}={current[name]}" for name in needs)
        needed = ", ".join(f"{name}={value}" for name, value in needs.items())
        raise SessionIncompatible(
            f"This Spark session has {has}; exactly-once delivery needs {needed}.",
            hint=f"they cannot change after a session is built: set {needed} there, or all at once with "
            "SparkSession.builder.config(map=clonos.spark_conf()).",
        )


def check_connector(spark: SparkSession) -> None:
    """Refuse a session without Spark's Kafka connector."""
    _classic(spark)
    try:
        jvm_of(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CONNECTOR)
    except Exception as missing:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        raise SessionIncompatible(
            "This Spark session has no Kafka connector.",
            hint=f"build it with spark.jars.packages={package}, or with "
            "SparkSession.builder.config(map=clonos.spark_conf()).",
        ) from missing


def check_classes(spark: SparkSession) -> None:
    """Refuse a session without the Java classes of Clonos, which read and publish Kafka records.

    Raises:
        SessionIncompatible: The session does not have them.
    """
    if not has_class(spark, _CLASS):
        raise SessionIncompatible(
            "This Spark session does not have the Java classes of Clonos.",
            hint="build it with SparkSession.builder.config(map=clonos.spark_conf()), or add the jars that "
            "clonos.spark_conf()['spark.jars'] names.",
        )


def configure_workers(spark: SparkSession, kafka: KafkaSettings) -> None:
    """Set the Kafka cluster and the interpreter for Python workers, for functions that are built after this call.

    Raises:
        SessionIncompatible: The session's workers are set to another cluster, or to other credentials.
    """
    context = spark.sparkContext
    current, requested = context.environment.get(KAFKA_ENVIRONMENT), worker_environment(kafka)[KAFKA_ENVIRONMENT]
    if current not in (None, requested):
        raise SessionIncompatible(
            "The workers of this Spark session are configured for another Kafka cluster, or with other credentials.",
            hint="use one cluster in a program; read other clusters with spark.readStream.",
        )
    for name, value in ZONE_AND_LOCALE.items():
        context.environment.setdefault(name, value)
    context.environment.update({**worker_environment(kafka), **registry_environment(), DRIVER_GROUP: str(os.getpgrp())})
    if local_task_failures(context.master) is not None and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # otherwise the `python3` of the PATH
    count.attach(context)


def check_workers(spark: SparkSession, modules: Sequence[str]) -> None:
    """Refuse a session whose Python workers cannot import `modules`.

    This also warms the workers up for the first epoch.
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
        raise SessionIncompatible(
            f"The Python workers of this session ({context.pythonExec}) cannot import {', '.join(names)}: "
            f"{lines[0] if lines else failure}",
            hint=f"install clonos there, or set PYSPARK_PYTHON={sys.executable} before the session is built.",
        ) from failure


_starting = threading.Lock()  # two queries of one program may start at the same time


@contextlib.contextmanager
def promised_settings(spark: SparkSession, query: Mapping[str, str]) -> Iterator[None]:
    """Inside the context, set the run-time settings that exactly-once delivery needs, then restore the user's values.

    A Spark query that is started in the context copies them. `query` has further settings for that query.
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


def _classic(spark: SparkSession) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionIncompatible(
            "This is a Spark Connect session: the driver's epochs cannot be planned from here.",
            hint="use a classic session: SparkSession.builder.master(…), without remote(…).",
        )
