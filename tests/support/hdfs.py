"""A real HDFS on loopback: Hadoop's ``MiniDFSCluster`` with one data node, in a JVM of its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from clonos.embedded.java import java_binary
from clonos.embedded.spark_java import spark_flags, spark_home
from support.jars import fetched_jar

_VERSION: Final = "3.5.0"  # of the Hadoop client in the PySpark wheel
_SHA256: Final = "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"
_HEAP: Final = "-Xmx256m"


class Hdfs:
    """A name node and a data node.

    Args:
        folder: Directory for data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateway: JavaGateway | None = None
        self._cluster: Any = None
        self._process: Any = None
        self._log = contextlib.ExitStack()
        self.url = ""

    @property
    def conf(self) -> dict[str, str]:
        """The Spark settings of a job that uses it."""
        return {"spark.hadoop.dfs.replication": "1"}

    def __enter__(self) -> Self:
        jar = fetched_jar("org.apache.hadoop", "hadoop-client-minicluster", _VERSION, _SHA256)
        java = java_binary()
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._log.enter_context((self._folder / "log").open("w"))
        port, token, self._process = launch_gateway(
            classpath=os.pathsep.join([str(jar), f"{spark_home()}/jars/*"]),
            jarpath=str(next((spark_home() / "jars").glob("py4j-*.jar"))),
            javaopts=[*spark_flags(java), _HEAP, "-XX:+UseSerialGC"],
            java_path=str(java),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        jvm: Any = self._gateway.jvm
        conf = jvm.org.apache.hadoop.conf.Configuration()
        conf.set("dfs.namenode.fs-limits.min-block-size", "0")
        builder = getattr(jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")
        self._cluster = builder(conf, jvm.java.io.File(str(self._folder))).numDataNodes(1).build()
        self._cluster.waitActive()
        self.url = self._cluster.getURI().toString()
        return self

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder."""
        return [status.getPath().getName() for status in self._files().listStatus(self._path(folder))]

    def read(self, file: str) -> str:
        """The content of a file."""
        stream = self._files().open(self._path(file))
        try:
            return str(self._jvm().org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _jvm(self) -> Any:
        assert self._gateway is not None
        return self._gateway.jvm

    def _files(self) -> Any:
        return self._cluster.getFileSystem()

    def _path(self, location: str) -> Any:
        return self._jvm().org.apache.hadoop.fs.Path(location)

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            if self._cluster is not None:
                self._cluster.shutdown()
            self._gateway.shutdown()
        if self._process is not None:
            self._process.stdin.close()  # the JVM exits at the end of its input
            self._process.wait(30)
        self._log.close()
