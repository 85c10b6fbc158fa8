"""A real YARN on loopback: Hadoop's ``MiniYARNCluster``, whose containers are processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any, Final, Self

from clonos.embedded.java import java_binary
from clonos.embedded.spark_java import java_home_for_spark, spark_home
from support.hadoop import HadoopJvm
from support.standalone import children_of

_HEAP_MB: Final = 384
_NODE_MB: Final = 4096
# Without a limit of the disk's use, and with the queue that Hadoop's own packages configure in a file.
_SETTINGS: Final = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.resourcemanager.bind-host": "127.0.0.1",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100.0",
    "yarn.nodemanager.resource.memory-mb": f"{_NODE_MB}",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": f"{_NODE_MB}",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.root.default.maximum-capacity": "100",
    "yarn.scheduler.capacity.root.default.state": "RUNNING",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
    "yarn.scheduler.capacity.resource-calculator": ("org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"),
}
_EXECUTOR: Final = re.compile(rb"YarnCoarseGrainedExecutorBackend\0.*--executor-id\0", re.DOTALL)


class Yarn:
    """A resource manager, and node managers that start containers.

    Args:
        folder: Directory for its files and logs.
        nodes: Number of node managers.
    """

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self._folder = folder
        self._nodes = nodes
        self._hadoop = HadoopJvm(folder, _HEAP_MB)
        self._cluster: Any = None

    @property
    def configuration(self) -> Path:
        """A folder for ``HADOOP_CONF_DIR``."""
        return self._folder / "configuration"

    @property
    def conf(self) -> dict[str, str]:
        """The Spark settings of a cluster file."""
        java_home = java_home_for_spark(self._folder / "java-home", java_binary())
        return {
            # The jars of this machine, instead of an upload of 400 MB for each application.
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.stagingDir": f"file://{self._folder}/staging",
            "spark.yarn.appMasterEnv.JAVA_HOME": str(java_home),
            "spark.executorEnv.JAVA_HOME": str(java_home),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.yarn.am.memory": "384m",
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        jvm = self._hadoop.__enter__().jvm
        try:
            conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
            for name, value in _SETTINGS.items():
                conf.set(name, value)
            self._cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", self._nodes, 1, 1)
            self._cluster.init(conf)
            self._cluster.start()
            assert self._cluster.waitForNodeManagersToConnect(60_000)
            self.configuration.mkdir(exist_ok=True)
            stream = jvm.java.io.FileOutputStream(str(self.configuration / "yarn-site.xml"))
            self._cluster.getConfig().writeXml(stream)
            stream.close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs."""
        return [pid for pid in children_of(self._hadoop.pid) if _EXECUTOR.search(_command(pid))]

    def executor_of(self, python: int) -> int:
        """The process id of the executor of a Python worker."""
        return next(pid for pid in self.executors() if python in children_of(pid))

    def kill_executor(self, python: int) -> None:
        """Send SIGKILL to the executor of a Python worker, and to all of its Python workers."""
        executor = self.executor_of(python)
        for pid in [executor, *children_of(executor)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def applications(self) -> dict[str, str]:
        """The state of each application, by its id."""
        manager = self._cluster.getResourceManager().getRMContext().getRMApps()
        return {str(entry.getKey()): str(entry.getValue().getState()) for entry in manager.entrySet()}

    def logs(self) -> str:
        """The error output of all containers."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self._folder.rglob("stderr"))

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        self._hadoop.__exit__()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
