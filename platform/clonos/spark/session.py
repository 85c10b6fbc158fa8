"""Builds Spark sessions for Clonos: the settings that Clonos changes, the reasons, and those that a user may
override.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from py4j.java_gateway import java_import
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from clonos.embedded.jars import Jars, ensure_jars
from clonos.errors import ClusterUnavailable, SpecError
from clonos.host_inputs import EXECUTOR_ENVIRONMENT, ZONE_AND_LOCALE, fix_zone_and_locale, require_files
from clonos.jobs.spec import ExecutorResources
from clonos.kafka import java_flags
from clonos.settings import Settings
from clonos.spark import forks
from clonos.spark.classes import ensure_classes
from clonos.spark.clusters import ClusterUse, cluster_defaults, python_of, use_master, with_cluster
from clonos.spark.internals import set_login_user, start_callbacks
from clonos.spark.java import CHECKPOINT_FILES, LOCAL_FILE_SYSTEM
from clonos.spark.jvm import GatewayProcess, launch_gateway
from clonos.spark.managers import SHORT_SOCKETS
from clonos.spark.storage import storage_jars

_STATE = "spark.sql.streaming.stateStore"
# A socket's path has at most 107 characters; the name of Spark's sockets has 42.
_MAX_TEMPDIR_CHARACTERS = 64
# Spark's own stop has no timeout. A driver that never exits would keep its slot.
_STOP_S = 60.0

# Required for exactly-once delivery: an epoch fails and is replayed as a whole, and an abandoned attempt cannot write.
PROMISED: Mapping[str, str] = {
    # A second copy of a task would be a second writer of its lane.
    "spark.speculation": "false",
    # The retry of a task within an epoch would publish or record again. Spark still repeats the tasks of a lost
    # executor: `clonos.EpochGuard` fails them.
    "spark.task.maxFailures": "1",
    # The same for a stage: the first counts lost shuffle files that a task notices, the second every repetition.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
    # A removed executor takes shuffle files of the epoch with it, and the epoch would fail.
    "spark.dynamicAllocation.enabled": "false",
    # Adaptive execution chooses partitions from statistics that differ from run to run.
    "spark.sql.adaptive.enabled": "false",
    # A union's partitions must have the order of its inputs.
    "spark.sql.unionOutputPartitioning": "false",
    # Round-robin repartitioning sends a row by its position; after a sort the position follows from the rows.
    "spark.sql.execution.sortBeforeRepartition": "true",
    # Integers next to a null would become floats: large ones change, and 5.0 does not find the recorded answer for 5.
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true",
    # pandas results that do not fit the declared type fail, instead of being cut.
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
    # State files of this version have unique names: a superseded driver cannot overwrite a file.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.checkpointFormatVersion": "2",
}

# The Spark plugin that fails the repeated tasks of an epoch, on a cluster.
GUARD: Final = "clonos.EpochGuard"

# Faster; a user may change them.
EXTENSIONS: Final = "spark.sql.extensions"
LIVE_PYTHON: Final = "org.apache.spark.sql.execution.python.clonos.LivePython"

FASTER: Mapping[str, str] = {
    # Creates by rename on a local disk; measured: an epoch of one record 165 -> 77 ms. On S3 it creates on a condition.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    # Functions in Python of live queries, whose results would otherwise come at the end of an epoch.
    EXTENSIONS: LIVE_PYTHON,
    # Workers forked with their imports done: the first epoch after a start 7.1 -> 4.5 s.
    "spark.python.daemon.module": "clonos.spark.daemon",
    # A takeover reads one changelog of each partition for each epoch since the newest snapshot, which Spark uploads
    # at this interval. At four epochs a second, 5 s halve them.
    f"{_STATE}.maintenanceInterval": "5s",
    # Each start of a query has its own consumers. Above this number, a task that needs one first closes the oldest
    # unused one: a tenth of a second of a takeover after 16 rehearsals of four partitions.
    "spark.kafka.consumer.cache.capacity": "256",
    # 40 ms less for every hop into Python.
    "spark.python.unix.domain.socket.enabled": "true",
}

# Spark's ports need the secret that Spark generates for each application on a local master. Its older protocol (SASL)
# authenticates with MD5.
AUTHENTICATED: Mapping[str, str] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}

# The configuration of a session that Clonos builds, before the user's.
SESSION_DEFAULTS: Mapping[str, str] = {
    **PROMISED,
    **FASTER,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # On by default since 4.1, without authentication.
    "spark.master.rest.enabled": "false",
    **{f"{EXECUTOR_ENVIRONMENT}{name}": value for name, value in ZONE_AND_LOCALE.items()},
}


def has_account(uid: int) -> bool:
    """Whether the operating system knows the name of a user."""
    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False


def alive(spark: SparkSession) -> bool:
    """Whether the session and its JVM still run."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


@dataclass
class Session:
    """A Spark session together with the JVM that runs it."""

    spark: SparkSession
    gateway: GatewayProcess  # the JVM's process
    scratch: Path  # a directory that is removed with the session
    _stopped: bool = field(default=False, init=False, repr=False)

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop the session and its JVM. A repeated call has no effect.

        A JVM that does not stop the session within a minute, or does not exit within `timeout_s` seconds after that, is
        killed.
        """
        if self._stopped:
            return
        self._stopped = True
        watchdog = threading.Timer(_STOP_S, self.gateway.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            self.spark.stop()
        except Exception:
            # A JVM that exited has nothing to stop; its error must not replace the one that the caller handles.
            if alive(self.spark):
                raise
        finally:
            watchdog.cancel()
            self.gateway.stop(timeout_s=timeout_s)
            _remove_scratch(self.scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()


def build_session(
    app_name: str,
    *,
    master: str = "auto",
    conf: Mapping[str, str] | None = None,
    jars: Jars | None = None,
    settings: Settings | None = None,
    heap_mb: int = 1024,
    log_file: Path | None = None,
    jvm_flags: Sequence[str] = (),
    cores: int | None = None,
    cluster: ClusterUse | None = None,
    checkpoint: str = "",
) -> Session:
    """Start a JVM and a Spark session in it.

    Args:
        app_name: Name of the application in Spark.
        master: Spark's master; ``auto``: this host, with twice as many task slots as cores. Unused with `cluster`.
        conf: The user's configuration; it overrides `SESSION_DEFAULTS`.
        jars: Default: the jars of `settings`, downloaded if needed.
        settings: Default: from the environment.
        heap_mb: Heap of the driver's JVM in MB.
        log_file: File for Spark's log; default: stderr.
        jvm_flags: Flags of the JVM that creates the ahead-of-time cache; empty: use the cache if it exists.
        cores: Number of cores of the master ``auto``; None: all cores of the machine.
        cluster: The Spark cluster; None: `master`, with default settings if it is not a local one.
        checkpoint: Location of the checkpoint. One on S3 needs jars that are downloaded then.

    Raises:
        SpecError: `conf` or `master` would break exactly-once delivery, or this process already has a session.
        EnvironmentFault: Java, the jars, the JVM or the cluster are unavailable, or the limit of open files is too low.
    """
    if SparkContext._active_spark_context is not None:
        raise SpecError(
            "This process already has a Spark session.", hint="stop it first, or run the job in a process of its own."
        )
    require_files()
    fix_zone_and_locale()
    master = (conf or {}).get("spark.master", master)
    if cluster is None and not is_local(master):
        cluster = use_master(master, ExecutorResources())
    chosen = session_conf(app_name, master, conf or {}, cores=cores, cluster=cluster)
    settings = settings or Settings()
    jars = jars or ensure_jars(settings)
    if flags := java_flags(settings.kafka):
        for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
            chosen[name] = " ".join(filter(None, [*flags, chosen.get(name, "")]))
    if cluster is not None:
        # Executors elsewhere do not have the driver's class path.
        own = [connector_jars(jars), str(ensure_classes(jars))]
        chosen["spark.jars"] = ",".join([*filter(None, [chosen.get("spark.jars", "")]), *own])
    chosen |= storage_jars(checkpoint, chosen, settings)
    scratch = Path(tempfile.mkdtemp(prefix="clonos-session-"))
    python = sys.executable if cluster is None else python_of(cluster, sys.executable)
    if cluster is None and chosen["spark.python.daemon.module"] == FASTER["spark.python.daemon.module"]:
        python, os.environ[forks.ADDRESS] = forks.launcher(scratch)
    try:
        gateway = launch_gateway(
            jars,
            heap_mb=heap_mb,
            conf=chosen,
            log_file=log_file,
            log_format=settings.log_format,
            jvm_flags=jvm_flags,
            python=python,
        )
    except BaseException:
        _remove_scratch(scratch)
        raise
    try:
        if not has_account(os.getuid()):  # a user of `clonos agent --uids`
            set_login_user(f"uid-{os.getuid()}")
        builder = SparkSession.builder
        for key, value in chosen.items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except Py4JJavaError as failure:
            if cluster is None:
                raise
            reason = str(failure.java_exception.toString()).partition("\n")[0]
            if "IllegalArgumentException" in reason:
                raise SpecError(f"Spark refuses the configuration for {cluster.described}: {reason}") from failure
            if "stopped SparkContext" in reason:  # Spark stops a context that no master has accepted for a minute
                reason = "no master accepted the application."
            raise ClusterUnavailable(
                f"Spark did not connect to {cluster.described}: {reason}",
                hint="check the master's address, and that its version of Spark and its secret are the same.",
            ) from failure
        # Imported by name: PySpark imports their packages, and then each use first searches all jars.
        for name in ("PythonUtils", "SimplePythonFunction"):
            java_import(spark.sparkContext._jvm, f"org.apache.spark.api.python.{name}")
        start_callbacks(spark)
        # Spark sets this only for some runners of Python, and starts a daemon with workers for each environment.
        spark.sparkContext.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
        return Session(spark, gateway, scratch)
    except BaseException:
        gateway.stop()
        _remove_scratch(scratch)
        raise


def _remove_scratch(scratch: Path) -> None:
    """Remove a session's directory, and the settings that would make a later session use the programs in it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop(forks.ADDRESS, None)
    shutil.rmtree(scratch, ignore_errors=True)


def connector_jars(jars: Jars) -> str:
    """Return the paths of the Kafka connector's jars, as a value of the Spark setting ``spark.jars``."""
    return ",".join(str(jar) for jar in sorted(jars.connector.glob("*.jar")))


def session_conf(
    app_name: str,
    master: str,
    conf: Mapping[str, str],
    *,
    cores: int | None = None,
    cluster: ClusterUse | None = None,
) -> dict[str, str]:
    """Return the Spark configuration of a session: the defaults of Clonos, overridden by the user's `conf` and the
    cluster's.

    The arguments are as for `build_session`.

    Raises:
        SpecError: `conf` or `master` would break exactly-once delivery.
    """
    if cluster is None and not is_local(master):
        cluster = use_master(master, ExecutorResources())
    automatic = master == "auto"
    master = _slots(master, cores) if cluster is None else cluster.settings.master
    requested = {**conf, **(cluster.settings.spark_conf if cluster is not None else {})}
    broken = sorted(
        key for key, value in PROMISED.items() if key in requested and _plain(requested[key]) != _plain(value)
    )
    if EXTENSIONS in conf:
        conf = {**conf, EXTENSIONS: f"{conf[EXTENSIONS]},{LIVE_PYTHON}"}
    if broken:
        required = ", ".join(f"{key}={PROMISED[key]}" for key in broken)
        places = "the Spark configuration" if cluster is None else "the Spark configuration and the cluster file"
        raise SpecError(f"Exactly-once delivery needs {required}.", hint=f"leave {', '.join(broken)} out of {places}.")
    if local_task_failures(master) not in (None, "1"):
        raise SpecError(f"Master {master} lets Spark retry tasks within an epoch.", hint="leave the second number out.")
    chosen = {**SESSION_DEFAULTS, "spark.app.name": app_name, "spark.master": master}
    if len(tempfile.gettempdir()) > _MAX_TEMPDIR_CHARACTERS:
        chosen |= SHORT_SOCKETS  # executors have the same setting, and the folder is on every host
    if cluster is not None:
        return with_cluster({**chosen, **cluster_defaults(cluster), **conf}, cluster, plugin=GUARD)
    chosen["spark.sql.shuffle.partitions"] = str(_cores(master) * (1 if automatic else 2))
    # No other host connects, and a host's own name does not always resolve. Other users of this host can connect.
    chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **AUTHENTICATED}
    chosen["spark.hadoop.fs.file.impl"] = LOCAL_FILE_SYSTEM  # on a cluster `CheckpointFiles` has it
    return {**chosen, **conf}


def _slots(master: str, cores: int | None) -> str:
    # A lane spends most of its time waiting for the broker. With a slot per core, an epoch of four lanes takes two
    # rounds on two cores (measured at 200 records/s: p50 932 ms instead of 677 ms).
    return f"local[{2 * (cores or _cores('local[*]'))}]" if master == "auto" else master


def is_local(master: str | None) -> bool:
    """Whether a job's master is this machine, in the driver's JVM: ``auto`` or ``local[…]``; ``local-cluster[…]`` is a
    cluster.
    """
    return master == "auto" or local_task_failures(master) is not None


def local_task_failures(master: str | None) -> str | None:
    """Return the number of allowed task failures in a local master such as ``local[4,1]``; None for a cluster, which
    has a setting for it.
    """
    local = re.fullmatch(r"local(?:\[[^,\]]+(?:,\s*(\d+)\s*)?\])?", master or "")
    return (local.group(1) or "1") if local else None


def _plain(value: str) -> str:
    return value.strip().lower()


def _cores(master: str) -> int:
    named = re.match(r"local\[(\d+)", master)
    if named:
        return int(named.group(1))
    if master == "local":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
