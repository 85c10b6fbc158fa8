"""A Spark session as Clonos needs it: what it changes in Spark, why, and what a user may change back."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from py4j.java_gateway import java_import
from pyspark import SparkContext
from pyspark.sql import SparkSession

from clonos.embedded.jars import Jars, ensure_jars
from clonos.engine import forks
from clonos.engine.jvm import GatewayProcess, launch_gateway
from clonos.engine.localfs import CLASS as LOCAL_FILES
from clonos.errors import SpecError
from clonos.settings import Settings

_STATE = "spark.sql.streaming.stateStore"
# A socket's path has at most 107 characters; the name of one of Spark's has 42.
_LONGEST_FOLDER = 64

# What the promise rests on: an epoch fails as a whole and is replayed as a whole, and no attempt that
# was given up can still write.
PROMISED: Mapping[str, str] = {
    # A second copy of a task would be a second writer of its lane.
    "spark.speculation": "false",
    # Retries of a task or a stage inside of an epoch cannot be told from the first attempt in Python.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    # Adaptive execution chooses partitions from statistics that differ from run to run.
    "spark.sql.adaptive.enabled": "false",
    # The order of a union's partitions must be that of its inputs.
    "spark.sql.unionOutputPartitioning": "false",
    # Round-robin repartitioning sends a row by its place; sorted, the place follows from the rows.
    "spark.sql.execution.sortBeforeRepartition": "true",
    # State files of this version have unique names: one written by a superseded driver replaces none.
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.checkpointFormatVersion": "2",
}

# What is faster, and a user's to change.
FASTER: Mapping[str, str] = {
    # Creates by rename on a local disk; measured: an epoch of one record 165 -> 77 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Workers forked with their imports done: the first epoch after a start 7.1 -> 4.5 s.
    "spark.python.daemon.module": "clonos.engine.daemon",
    # Whoever takes over reads the changes since the newest snapshot, some 30 ms for those of an epoch.
    f"{_STATE}.maintenanceInterval": "10s",
    # Each start of a query has consumers of its own; beyond so many a task that needs one first closes the oldest of
    # those that nobody uses any more: a tenth of a second of a takeover after 16 rehearsals of four partitions.
    "spark.kafka.consumer.cache.capacity": "256",
    # 40 ms less for every hop into Python.
    "spark.python.unix.domain.socket.enabled": "true",
}

# What a session of our own starts from.
SESSION_DEFAULTS: Mapping[str, str] = {
    **PROMISED,
    **FASTER,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # On by default since 4.1, without authentication.
    "spark.master.rest.enabled": "false",
}


@dataclass
class Session:
    """A Spark session together with the JVM that it lives in.

    Attributes:
        spark: The session.
        gateway: Its JVM.
        scratch: A folder that goes with it.
    """

    spark: SparkSession
    gateway: GatewayProcess
    scratch: Path
    _stopped: bool = field(default=False, init=False, repr=False)

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop the session and end its JVM, after `timeout_s` seconds by force. Harmless when repeated."""
        if self._stopped:
            return
        self._stopped = True
        try:
            self.spark.stop()
        finally:
            self.gateway.stop(timeout_s=timeout_s)
            _forget(self.scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
) -> Session:
    """Start a JVM and a Spark session in it.

    Args:
        app_name: Name of the application in Spark.
        master: Spark's master; ``auto``: this machine, with twice as many task slots as cores.
        conf: The user's configuration; it wins over `SESSION_DEFAULTS`.
        jars: Default: those of `settings`, fetched if needed.
        settings: Default: from the environment.
        heap_mb: Heap of the driver's JVM.
        log_file: Where Spark's warnings go; default: stderr.
        jvm_flags: In place of the start-up cache, for the run that makes it.

    Raises:
        SpecError: `conf` or `master` would break the promise, or this process has a session already.
        EnvironmentFault: Java, the jars or the JVM cannot be had.
    """
    if SparkContext._active_spark_context is not None:
        raise SpecError(
            "This process has a Spark session already.", hint="stop it first, or run the job in a process of its own."
        )
    chosen = session_conf(app_name, master, conf or {})
    master = chosen["spark.master"]
    settings = settings or Settings()
    jars = jars or ensure_jars(settings)
    if not master.startswith("local"):
        # Executors elsewhere do not have the driver's class path.
        chosen["spark.jars"] = ",".join([*filter(None, [chosen.get("spark.jars", "")]), connector_jars(jars)])
    scratch = Path(tempfile.mkdtemp(prefix="clonos-session-"))
    python = sys.executable
    if master.startswith("local") and chosen["spark.python.daemon.module"] == FASTER["spark.python.daemon.module"]:
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
        _forget(scratch)
        raise
    try:
        builder = SparkSession.builder
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        # By name: PySpark imports their packages, which makes each use of them search all jars in vain first.
        for name in ("PythonUtils", "SimplePythonFunction"):
            java_import(spark.sparkContext._jvm, f"org.apache.spark.api.python.{name}")
        # Spark tells this to some runners of Python only, and has a daemon with workers for each environment.
        spark.sparkContext.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
        return Session(spark, gateway, scratch)
    except BaseException:
        gateway.stop()
        _forget(scratch)
        raise


def _forget(scratch: Path) -> None:
    """Remove a session's folder; a later session of this process does not call what was in it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop(forks.ADDRESS, None)
    shutil.rmtree(scratch, ignore_errors=True)


def connector_jars(jars: Jars) -> str:
    """The Kafka connector as a value of ``spark.jars``."""
    return ",".join(str(jar) for jar in sorted(jars.connector.glob("*.jar")))


def session_conf(app_name: str, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """The whole configuration of a session: ours, with the user's over it.

    Raises:
        SpecError: A key of `conf`, or `master`, would break the promise.
    """
    automatic, master = master == "auto", _slots(master)
    broken = sorted(key for key, value in PROMISED.items() if key in conf and _plain(conf[key]) != _plain(value))
    if broken:
        wanted = ", ".join(f"{key}={PROMISED[key]}" for key in broken)
        raise SpecError(
            f"Exactly-once delivery needs {wanted}.", hint=f"leave {', '.join(broken)} out of the Spark configuration."
        )
    if local_task_failures(master) not in (None, "1"):
        raise SpecError(
            f"Master {master} lets Spark retry tasks inside of an epoch.", hint="leave the second number out."
        )
    chosen = {
        **SESSION_DEFAULTS,
        "spark.sql.shuffle.partitions": str(_cores(master) * (1 if automatic else 2)),
        "spark.app.name": app_name,
        "spark.master": master,
    }
    if master.startswith("local"):
        # Nobody else connects, and a machine's own name does not always resolve.
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        chosen["spark.hadoop.fs.file.impl"] = LOCAL_FILES  # elsewhere executors lack the class
        if len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            chosen["spark.python.unix.domain.socket.dir"] = "/tmp"  # noqa: S108, as Spark itself does
    return {**chosen, **conf}


def _slots(master: str) -> str:
    # A lane waits for the broker most of its time: with a slot per core an epoch of four lanes takes two rounds
    # on two cores (measured under 200 records/s: p50 932 ms against 677 ms).
    return f"local[{2 * _cores('local[*]')}]" if master == "auto" else master


def local_task_failures(master: str | None) -> str | None:
    """How often a task may fail on a local master; None for a cluster, which goes by its configuration."""
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
