"""A JVM with Hadoop's mini clusters, which a test starts parts of."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from clonos.embedded.java import java_binary
from clonos.embedded.spark_java import spark_flags, spark_home
from support.jars import fetched_jar

_JARS: Final = (
    # The version of the Hadoop client in the PySpark wheel.
    (
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        "3.5.0",
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    ),
    # The mini cluster of YARN asserts that its folders exist.
    (
        "org.junit.jupiter",
        "junit-jupiter-api",
        "5.13.4",
        "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
    ),
    (
        "org.junit.platform",
        "junit-platform-commons",
        "1.13.4",
        "1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408",
    ),
    ("org.opentest4j", "opentest4j", "1.3.0", "48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b"),
    # Its resource manager has classes of a proxy with certificates.
    ("org.bouncycastle", "bcprov-jdk18on", "1.82", "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82", "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63"),
    ("org.bouncycastle", "bcutil-jdk18on", "1.82", "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d"),
)
_END_S: Final = 30


class HadoopJvm:
    """The JVM.

    Args:
        folder: Its working directory, with its log.
        heap_mb: Its heap.

    Attributes:
        jvm: Its classes.
    """

    def __init__(self, folder: Path, heap_mb: int) -> None:
        self._folder = folder
        self._heap_mb = heap_mb
        self._gateway: JavaGateway | None = None
        self._process: Any = None
        self._log = contextlib.ExitStack()
        self.jvm: Any = None

    def __enter__(self) -> Self:
        jars = [str(fetched_jar(*jar)) for jar in _JARS]
        java = java_binary()
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._log.enter_context((self._folder / "log").open("w"))
        port, token, self._process = launch_gateway(
            classpath=os.pathsep.join([*jars, f"{spark_home()}/jars/*"]),
            jarpath=str(next((spark_home() / "jars").glob("py4j-*.jar"))),
            javaopts=[*spark_flags(java), f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC"],
            java_path=str(java),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
            cwd=str(self._folder),
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        self.jvm = self._gateway.jvm
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
        if self._process is not None:
            self._process.stdin.close()  # the JVM exits at the end of its input
            self._process.wait(_END_S)
        self._log.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._process.pid)
