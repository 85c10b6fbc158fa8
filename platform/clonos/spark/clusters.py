"""Sessions on a Spark cluster: executors, security, the Python environment and the code of the job."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from clonos.errors import ClusterUnavailable, SessionIncompatible, SpecError
from clonos.jobs.cluster import SECRET_VARIABLE, ClusterSettings, ClusterSpec, Manager
from clonos.jobs.spec import ExecutorResources
from clonos.settings import KafkaSettings, RegistrySettings
from clonos.spark.managers import archives_setting, manager_conf, manager_defaults, require_manager_settings

# The folders of an executor with the Python environment and with the job's code.
_ENVIRONMENT: Final = "environment"
_CODE: Final = "clonos_code"
_CONNECT_S: Final = 10.0
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
# Netty disables the buffers that Arrow needs on Java 24 and later. Older ones ignore a property; an unknown flag is an
# error, so ``--sun-misc-unsafe-memory-access`` is not set: Java 25 only warns without it.
_EXECUTOR_JAVA: Final = "-Dio.netty.noUnsafe=false"


@dataclass(frozen=True)
class ClusterUse:
    """How one session uses a Spark cluster."""

    settings: ClusterSettings  # the description of the cluster
    executor: ExecutorResources  # the resources of the executors
    name: str = ""  # the cluster's name; empty: a master without a description
    secret: str = ""  # the value of ``spark.authenticate.secret``; empty: Spark does not authenticate
    # Whether a checkpoint may be in any folder that all executors see, not only in a shared location.
    any_folder: bool = False

    @property
    def described(self) -> str:
        """The cluster in a message."""
        return f"the cluster {self.name}" if self.name else f"the Spark cluster at {self.settings.master}"


def use_cluster(spec: ClusterSpec, executor: ExecutorResources) -> ClusterUse:
    """Return the use of a described cluster, with the secret of this process's environment.

    Raises:
        SpecError: The description names a secret, and the environment variable `SECRET_VARIABLE` is not set.
    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if spec.spec.auth_secret and not secret:
        raise SpecError(
            f"The cluster {spec.name} needs the secret {spec.spec.auth_secret}.",
            hint=f"set its value in the environment variable {SECRET_VARIABLE}.",
        )
    # On YARN and Kubernetes Spark generates one for each application.
    return ClusterUse(spec.spec, executor, spec.name, secret if spec.spec.manager is Manager.STANDALONE else "")


def use_master(master: str, executor: ExecutorResources) -> ClusterUse:
    """Return the use of a cluster without a description, with default settings."""
    settings = ClusterSettings.model_construct(master=master)
    return ClusterUse(settings, executor, secret=os.environ.get(SECRET_VARIABLE, ""), any_folder=is_loopback(master))


def use_of(spark: SparkSession) -> ClusterUse:
    """Return the use of a cluster by a session that the user's program has built."""
    context = spark.sparkContext
    executor = ExecutorResources(instances=int(context.getConf().get("spark.executor.instances", "1") or "1"))
    return ClusterUse(ClusterSettings.model_construct(master=context.master or ""), executor, any_folder=True)


def is_loopback(master: str) -> bool:
    """Whether all hosts of a cluster's master are this machine."""
    if master.startswith("local-cluster"):
        return True
    hosts = [host for host, _port in _addresses(master)]
    return bool(hosts) and all(host == "localhost" or _loopback_address(host) for host in hosts)


def _loopback_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master of a standalone cluster; empty for another cluster."""
    if not master.startswith("spark://"):
        return []
    parts = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, _colon, port in parts if port.isdecimal()]


def require_master(use: ClusterUse) -> None:
    """Refuse a standalone cluster whose masters accept no connection, where Spark would try for a minute, and
    a cluster without an address.

    Raises:
        ClusterUnavailable: No master accepts a connection.
        SpecError: The resource manager of YARN has no address.
    """
    require_manager_settings(use.settings, use.described)
    addresses = _addresses(use.settings.master)
    reasons = []
    for address in addresses:
        try:
            socket.create_connection(address, timeout=_CONNECT_S).close()
        except OSError as error:
            reasons.append(f"{address[0]}:{address[1]}: {error}")
        else:
            return
    if reasons:
        raise ClusterUnavailable(
            f"No master of {use.described} answers: {'; '.join(reasons)}.",
            hint="check that the master runs, and its address and port.",
        )


def python_of(use: ClusterUse, default: str) -> str:
    """Return the Python interpreter of the executors; `default` unless the cluster names one."""
    settings = use.settings
    return f"./{_ENVIRONMENT}/{settings.python or 'bin/python'}" if settings.environment else settings.python or default


def cluster_defaults(use: ClusterUse) -> dict[str, str]:
    """Return the configuration that the job's own and the cluster's override."""
    executor, slots = use.executor, use.executor.instances * use.executor.cores
    conf = {
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": f"{executor.memory_mb}m",
        # Two for each slot, as with a local master.
        "spark.sql.shuffle.partitions": str(2 * slots),
    }
    if use.settings.master.startswith("spark://"):
        conf["spark.cores.max"] = str(slots)  # otherwise an application takes all cores of the cluster
    # Only checks of the cluster have barriers. Spark waits a quarter of a minute after each attempt.
    conf["spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures"] = "4"
    conf |= manager_defaults(use.settings)
    if is_loopback(use.settings.master):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


def with_cluster(conf: Mapping[str, str], use: ClusterUse, *, plugin: str) -> dict[str, str]:
    """Return the configuration of a session on a cluster: `conf`, then the cluster's, then what Clonos needs.

    Args:
        conf: The defaults and the job's configuration.
        use: The cluster.
        plugin: A Spark plugin, added to the plugins of `conf`.
    """
    settings = use.settings
    merged = {**conf, **settings.spark_conf, **manager_conf(settings), "spark.master": settings.master}
    if settings.environment:
        archive = f"{settings.environment}#{_ENVIRONMENT}"
        name = archives_setting(settings)
        merged[name] = ",".join(filter(None, [merged.get(name, ""), archive]))
    if use.secret:
        merged |= {
            "spark.authenticate": "true",
            "spark.authenticate.secret": use.secret,
            "spark.network.crypto.enabled": "true",
            # Executors write broadcast blocks to disk, and blocks of lanes hold Kafka's passwords.
            "spark.io.encryption.enabled": "true",
        }
    plugins = [name.strip() for name in merged.get("spark.plugins", "").split(",") if name.strip()]
    merged["spark.plugins"] = ",".join(dict.fromkeys([*plugins, plugin]))
    own = merged.get("spark.executor.extraJavaOptions", "")
    merged["spark.executor.extraJavaOptions"] = f"{_EXECUTOR_JAVA} {own}".strip()
    return merged


def require_encryption(
    conf: Mapping[str, str], use: ClusterUse, kafka: KafkaSettings, registry: RegistrySettings
) -> None:
    """Refuse passwords that the driver would send to executors in plain text.

    Args:
        conf: The session's configuration.
        use: The cluster.
        kafka: The Kafka cluster; each task gets its credentials.
        registry: The Schema Registry; each task gets its credentials.

    Raises:
        SessionIncompatible: There are passwords, and Spark does not encrypt.
    """
    passwords = {"CLONOS_REGISTRY__PASSWORD": registry.password}
    passwords["CLONOS_REGISTRY__SSL_KEY_PASSWORD"] = registry.ssl_key_password
    sent = [f"CLONOS_KAFKA__{name.upper()}" for name in kafka.secrets()]
    sent += [name for name, password in passwords.items() if password is not None]
    on = {name for name, value in conf.items() if value.strip().lower() == "true"}
    encrypted = "spark.authenticate" in on and bool({"spark.network.crypto.enabled", "spark.ssl.rpc.enabled"} & on)
    if sent and not encrypted and not use.settings.trusted_network:
        raise SessionIncompatible(
            f"{', '.join(sent)} would travel to the executors of {use.described} without encryption.",
            hint=f"name an authSecret in the cluster file and set its value in {SECRET_VARIABLE}, "
            "or set trustedNetwork: true.",
        )


def ship_code(spark: SparkSession, folder: Path, files: Collection[str], scratch: Path) -> list[str]:
    """Send the files of a job's code to all executors, and make its modules importable there.

    A module's ``__file__`` is in a folder that has the other files too.

    Args:
        spark: The session.
        folder: The folder of the job file.
        files: The files, relative to `folder`.
        scratch: A directory for the archive.

    Returns:
        The modules on top level that tasks can import.
    """
    if not files:
        return []
    archive = scratch / f"{_CODE}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for name in sorted(files):
            content.writestr(zipfile.ZipInfo(name, _ZIP_TIME), (folder / name).read_bytes())
    context = spark.sparkContext
    context.addArchive(f"{archive}#{_CODE}")
    if context._python_includes is not None and _CODE not in context._python_includes:
        context._python_includes.append(_CODE)  # PySpark adds a path for zip files only, which hold no data files
    tops = {name.partition("/")[0] for name in files if name.endswith(".py")}
    return sorted({re.sub(r"\.py$", "", top) for top in tops})
