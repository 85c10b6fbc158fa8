"""A real HDFS on loopback: Hadoop's ``MiniDFSCluster`` with one data node, in a JVM of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from support.hadoop import HadoopJvm

_HEAP_MB: Final = 256


class Hdfs:
    """A name node and a data node.

    Args:
        folder: Directory for data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hadoop = HadoopJvm(folder, _HEAP_MB)
        self._cluster: Any = None
        self.url = ""

    @property
    def conf(self) -> dict[str, str]:
        """The Spark settings of a job that uses it."""
        return {"spark.hadoop.dfs.replication": "1"}

    def __enter__(self) -> Self:
        jvm = self._hadoop.__enter__().jvm
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
            return str(self._hadoop.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _files(self) -> Any:
        return self._cluster.getFileSystem()

    def _path(self, location: str) -> Any:
        return self._hadoop.jvm.org.apache.hadoop.fs.Path(location)

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
        self._hadoop.__exit__()
