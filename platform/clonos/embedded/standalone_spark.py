"""A Spark standalone cluster: the commands of its master and workers, and what the master reports.

Spark's wheel has no scripts for them (``start-master.sh``). The commands start the classes that these scripts start,
with the Java of `clonos.embedded.java`. All processes listen on loopback, unless they have a host name of their own, as
in the containers of ``docker/compose.yaml``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from clonos.embedded.java import java_binary
from clonos.embedded.layout import HOST, render_properties
from clonos.embedded.spark_java import StartUpCache, java_home_for_spark, scala_version, spark_flags, spark_home
from clonos.private_folders import create_private, write_private

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_HEAP_MB: Final = 256
_TIMEOUT_S: Final = 5.0
_FILES_KEPT_S: Final = 3600  # of applications that have ended


@dataclass(frozen=True)
class WorkerSize:
    """What a worker offers to executors."""

    cores: int = 2  # task slots
    memory_mb: int = 4096  # sum of its executors' memory, in MiB. Spark only counts it; a worker itself needs little.


@dataclass(frozen=True)
class MasterReport:
    """What the master reports."""

    status: str  # ``ALIVE`` once it accepts applications; ``RECOVERING`` after its restart
    workers: int  # number of workers that are alive
    applications: tuple[str, ...]  # ids of the applications that run or wait for executors


class _Worker(msgspec.Struct):
    state: str


class _Application(msgspec.Struct):
    id: str


class _Body(msgspec.Struct):
    """What this module reads of the master's JSON."""

    status: str
    workers: list[_Worker]
    activeapps: list[_Application]


class StandaloneSpark:
    """The processes of a Spark standalone cluster, as commands that a supervisor or a container starts.

    Master and workers authenticate each other and applications with a secret that only this user can read, and encrypt
    what they send: other users of the machine can connect to a port on loopback.

    Args:
        folder: Directory for settings, the master's state and the workers' files. It is private to this user.
        port: Port of the master.
        ui_port: Port of the master's web UI.
        size: What each worker offers.
        cache: A cache that makes executors start faster.
        host: Name of the host of the processes, on which they listen. Default: loopback, on this machine.
        master: URL of the master of workers here, if the master is on another host.
        settings: Further Spark settings of the processes.

    Example:
        >>> spark = StandaloneSpark(Path("spark"), port=7077, ui_port=8080)
        >>> spark.prepare()
        >>> spawn(spark.master_command(), output=log, directory=spark.folder, environment=spark.environment())
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int,
        ui_port: int,
        size: WorkerSize = WorkerSize(),
        cache: StartUpCache | None = None,
        host: str = HOST,
        master: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.master = master or f"spark://{host}:{port}"
        self.ui = f"http://{host}:{ui_port}"
        self._host = host
        self._settings = dict(settings or {})
        self._port, self._ui_port = port, ui_port
        self._size = size
        self._cache = cache

    @property
    def secret(self) -> str:
        """The secret that applications authenticate with (``spark.authenticate.secret``)."""
        return self._secret_file.read_text().strip()

    @property
    def _secret_file(self) -> Path:
        return self.folder / "secret"

    @property
    def _properties(self) -> Path:
        return self.folder / "spark.properties"

    @property
    def _recovery(self) -> Path:
        return self.folder / "recovery"

    def prepare(self, *, secret: str = "", forget: bool = True) -> None:
        """Create the directory, the settings and the secret: that of an earlier call, or a new one, unless it is named.

        With `forget`, the master forgets the applications of an earlier start, which have ended.
        """
        create_private(self.folder)
        if secret or not self._secret_file.exists():
            write_private(self._secret_file, secret or secrets.token_hex(32))
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.master.rest.enabled": "false",
            "spark.ui.killEnabled": "false",  # the web UI has no passwords
            # Applications and their executors survive the master's restart.
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self._recovery),
            "spark.worker.cleanup.enabled": "true",
            "spark.worker.cleanup.appDataTtl": str(_FILES_KEPT_S),
            **self._settings,
        }
        write_private(self._properties, render_properties(settings))
        if forget:
            shutil.rmtree(self._recovery, ignore_errors=True)
        self._recovery.mkdir(exist_ok=True)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment variables of master and workers; `base` is inherited; default: this process's."""
        base = os.environ if base is None else base
        # Settings of the user's own Spark, and of a gateway that this process may have.
        inherited = {name: value for name, value in base.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **inherited,
            # Workers start executors with it.
            "JAVA_HOME": str(java_home_for_spark(self.folder / "java", java_binary(), self._cache)),
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": scala_version(),  # without it, a worker looks for a build of Spark
            # The first is the address of all sockets, the second only a name.
            **({"SPARK_LOCAL_IP": HOST} if self._host == HOST else {"SPARK_LOCAL_HOSTNAME": self._host}),
        }

    def master_command(self) -> list[str]:
        """Return the command line of the master."""
        return [*self._java(_MASTER), *self._address(self._port, self._ui_port)]

    def worker_command(self, name: str, *, ui_port: int = 0) -> list[str]:
        """Return the command line of a worker; `ui_port` 0 is any free port."""
        size = ["--cores", str(self._size.cores), "--memory", f"{self._size.memory_mb}m"]
        files = ["--work-dir", str(self.folder / name)]
        return [*self._java(_WORKER), *self._address(0, ui_port), *size, *files, self.master]

    def _java(self, name: str) -> list[str]:
        java = java_binary()
        log4j = Path(__file__).with_name("spark-log4j2.properties")
        return [
            *(str(java), *spark_flags(java), f"-Xmx{_HEAP_MB}m", "-XX:+UseSerialGC"),
            *(f"-Dlog4j2.configurationFile={log4j}", "-Dclonos.log.level=info"),
            *("-cp", f"{spark_home()}/jars/*", name, "--properties-file", str(self._properties)),
        ]

    def _address(self, port: int, ui_port: int) -> list[str]:
        return ["--host", self._host, "--port", str(port), "--webui-port", str(ui_port)]

    def report(self) -> MasterReport | None:
        """Return what the master reports; None if it does not answer."""
        try:
            answer = httpx.get(f"{self.ui}/json/", timeout=_TIMEOUT_S).content
            body = msgspec.json.decode(answer, type=_Body)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return None
        alive = [worker for worker in body.workers if worker.state == "ALIVE"]
        return MasterReport(body.status, len(alive), tuple(application.id for application in body.activeapps))
