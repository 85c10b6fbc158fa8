"""The JVM that PySpark drives, started by us instead of by ``spark-submit``.

PySpark's launcher asks for a module that the wheel's Java lacks, goes through two shell scripts and a
JVM of its own to put the command together, and polls ten times a second. Owning the launch also lets a
start use an ahead-of-time cache.
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

from clonos.embedded import aot
from clonos.embedded.jars import Jars
from clonos.embedded.java import java_binary, java_major
from clonos.embedded.layout import render_properties
from clonos.engine.localfs import JAR as LOCAL_FILES
from clonos.errors import EnvironmentFault

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_START_S = 60.0
# Spark's own list (JavaModuleOptions), without the vector module.
_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *(f"java.base/java.util.{name}" for name in ("concurrent", "concurrent.atomic")),
    *(f"java.base/{name}" for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs")),
    *("java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)
_MODULE_FLAGS = (
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # Plans are trees that Catalyst walks by recursion, and messages about them meet recursive patterns: the
    # default of 1 MB has overflowed while a query was being stopped.
    "-Xss4m",
)
_LOG4J_SUFFIXES = ("properties", "yaml", "yml", "json", "jsn", "xml")
_OPTION_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_SILENT_MAJOR = 17  # the last long-term release that does not warn of native libraries
# Below this heap HotSpot itself would not choose G1, if it knew the heap that it is given and not only the machine:
# G1's own threads take 8 % of a core here (docs/adr/0014-local-files.md).
_G1_HEAP_MB = 1792
_UNSAFE_MAJOR = 24  # also the first without the package sun.security.action


class GatewayProcess:
    """The running JVM; PySpark connects to it through this process's environment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the JVM is there."""
        return self._process.poll() is None

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the JVM, after `timeout_s` seconds by force. Harmless when repeated.

        A Spark session on it must have been stopped before.
        """
        os.environ.pop(_PORT, None)
        os.environ.pop(_SECRET, None)
        _forget_gateway()
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()  # the end of its input is what the JVM exits on
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
    """Start the JVM and point PySpark at it. It ends when this process ends, however that happens.

    Args:
        jars: Their connector goes on the class path itself.
        heap_mb: Heap of the JVM (in local mode that of the executor too).
        conf: Spark configuration known before the first class is loaded.
        log_file: Where the JVM's warnings are appended; default: stderr.
        log_format: ``console`` or ``json``.
        jvm_flags: In place of the ahead-of-time cache, for the run that makes it.
        python: What Spark calls for a Python process.

    Raises:
        EnvironmentFault: The JVM ended, or did not come up.
    """
    java = java_binary()
    with tempfile.TemporaryDirectory(prefix="clonos-gateway-") as folder:
        info = Path(folder) / "connection"
        # A file that only we can read, and not the command line: configuration may hold passwords.
        properties = Path(folder) / "spark.properties"
        properties.touch(mode=0o600)
        properties.write_text(render_properties(conf or {}))
        os.environ["SPARK_HOME"] = str(_spark_home())
        os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = python, sys.executable
        process = _start(
            [
                *_java_command(java, jars, heap_mb, jvm_flags, _options(conf or {}, log_format)),
                *("org.apache.spark.deploy.SparkSubmit", "--properties-file", str(properties)),
                *("--load-spark-defaults", "pyspark-shell"),
            ],
            info,
            log_file,
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
    """Where the ahead-of-time cache of this JVM is."""
    inputs = (pyspark.__version__, str(_spark_home()), str(LOCAL_FILES), *_flags(java))
    return aot.cache_file(jars, "spark", java, *inputs)


def _spark_home() -> Path:
    return Path(pyspark.__file__).parent


def _flags(java: Path) -> list[str]:
    flags = [*_MODULE_FLAGS]
    major = java_major(java)
    if major >= _UNSAFE_MAJOR:
        # Arrow needs Netty's unsafe buffers, which Netty gives up on this Java unless told.
        flags += ["-Dio.netty.noUnsafe=false", "--sun-misc-unsafe-memory-access=allow"]
    else:
        flags.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    if major > _SILENT_MAJOR:
        flags.append("--enable-native-access=ALL-UNNAMED")
    return flags


def _java_command(java: Path, jars: Jars, heap_mb: int, jvm_flags: Sequence[str], options: Sequence[str]) -> list[str]:
    home = _spark_home()
    connector = [str(jar) for jar in sorted(jars.connector.glob("*.jar"))]
    return [
        *(str(java), *_flags(java), *(jvm_flags or aot.use_flags(java, aot_file(jars, java)))),
        # Python goes by this variable by itself, a JVM does not.
        *([f"-Djava.io.tmpdir={folder}"] if (folder := os.environ.get("TMPDIR")) else []),
        # The cache itself is made with G1: what that archives, every collector loads.
        *(f"-Xmx{heap_mb}m", *([] if jvm_flags else _collector(heap_mb, options)), *options),
        # The folder that a user may add to comes last: the cache wants the same beginning each time.
        *("-cp", os.pathsep.join([f"{home}/jars/*", *connector, str(LOCAL_FILES), str(_conf_folder())])),
    ]


def _collector(heap_mb: int, options: Sequence[str]) -> list[str]:
    """The garbage collector, unless the user names one (two are an error)."""
    elsewhere = [*options, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)]
    if heap_mb >= _G1_HEAP_MB or any(re.search(r"-XX:\+Use\w*GC\b", option) for option in elsewhere):
        return []
    return ["-XX:+UseSerialGC"]


def _conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf")


def _options(conf: Mapping[str, str], log_format: str) -> list[str]:
    """How the JVM logs, and the user's own options, which come last and so win.

    Our configuration of Log4j steps back behind any of the user's: one in Spark's folder of settings, in the
    environment, or named by an option.
    """
    own = shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    elsewhere = [*own, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)]
    if "LOG4J_CONFIGURATION_FILE" in os.environ or any(".configurationFile=" in option for option in elsewhere):
        return own
    found = [file for suffix in _LOG4J_SUFFIXES if (file := _conf_folder() / f"log4j2.{suffix}").is_file()]
    if found:
        return [f"-Dlog4j2.configurationFile={found[0]}", *own]
    ours = Path(__file__).parent.with_name("embedded") / "spark-log4j2.properties"
    job = conf.get("spark.app.name", "")
    return [f"-Dlog4j2.configurationFile={ours}", f"-Dclonos.log.format={log_format}", f"-Dclonos.job={job}", *own]


def _start(command: Sequence[str], info: Path, log_file: Path | None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_CONNECT_MODE": "0"}
    if log_file:
        log_file.parent.mkdir(parents=True, exist_ok=True)
    output = log_file.open("ab") if log_file else None
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            # Standard output belongs to the program; the JVM's lines are log lines.
            stdout=output or sys.stderr.fileno(),
            stderr=output or sys.stderr.fileno(),
            env=environment,
            # Ctrl-C is for Python, which then stops the query in order.
            preexec_fn=_ignore_requests_to_stop,
        )
    finally:
        if output:
            output.close()


def _ignore_requests_to_stop() -> None:
    """Ctrl-C and a SIGTERM to the whole group ask the driver, which finishes its epoch with this JVM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _await_connection(process: subprocess.Popen[bytes], info: Path, log_file: Path | None) -> tuple[int, str]:
    deadline = time.monotonic() + _START_S
    while not info.exists():
        if process.poll() is not None:
            tail = ""
            if log_file:
                tail = "\n" + "\n".join(log_file.read_text(errors="replace").splitlines()[-15:])
            raise EnvironmentFault(
                f"Spark's JVM ended with status {process.returncode} while it started.{tail}",
                kept="nothing was started.",
                hint="see the lines above; less driver memory helps where the machine has too little.",
            )
        if time.monotonic() > deadline:
            raise EnvironmentFault(
                f"Spark's JVM did not come up in {_START_S:.0f} s.", kept="nothing was started.", hint="try again."
            )
        time.sleep(0.005)
    # The JVM renames the file into place: what is there is whole.
    raw = info.read_bytes()
    port, length = struct.unpack(">ii", raw[:8])
    return port, raw[8 : 8 + length].decode()


def _forget_gateway() -> None:
    """Let PySpark connect anew the next time: it keeps its connection in class attributes."""
    gateway = getattr(SparkContext, "_gateway", None)
    if gateway is not None:
        with suppress(Exception):  # its other end may be gone, which is what we are after
            gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
