"""What differs between the managers of Spark clusters: standalone, YARN and Kubernetes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clonos.errors import SpecError
from clonos.jobs.cluster import ClusterSettings, Manager

# Folders with the client configuration of Hadoop, such as yarn-site.xml.
HADOOP_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_RESOURCE_MANAGER: Final = "spark.hadoop.yarn.resourcemanager."
# On YARN and Kubernetes Spark generates the secret, so encryption needs nothing from the user.
_ENCRYPTED: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
# Spark ends an application after a number of lost executors. A job runs for months: only losses of the last hour count.
_LOST_EXECUTORS: Final = {"spark.executor.failuresValidityInterval": "1h"}
# The temporary folder of a container of YARN, which Spark would use, has a path that is too long for a socket.
SHORT_SOCKETS: Final = {"spark.python.unix.domain.socket.dir": "/tmp"}  # noqa: S108, Spark's own default elsewhere
_YARN: Final = {
    **_ENCRYPTED,
    **_LOST_EXECUTORS,
    "spark.yarn.am.attemptFailuresValidityInterval": "1h",
    **SHORT_SOCKETS,
    # By default Hadoop's client tries for a quarter of an hour to reach a resource manager that is away.
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "60000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "5000",
}


_KUBERNETES: Final = {
    **_ENCRYPTED,
    **_LOST_EXECUTORS,
    # In client mode there is no such service, and a role needs no right to delete services.
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}
# Kubernetes mounts it into each pod.
_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def manager_defaults(settings: ClusterSettings) -> Mapping[str, str]:
    """Return the configuration of sessions on a cluster that its manager needs; jobs and the cluster file override
    it.
    """
    match settings.manager:
        case Manager.YARN:
            return _YARN
        case Manager.KUBERNETES:
            return {**_KUBERNETES, **_pod_of_driver(settings)}
        case _:
            return {}


def manager_conf(settings: ClusterSettings) -> Mapping[str, str]:
    """Return the configuration that fields of a cluster file for its manager set."""
    return settings.kubernetes.spark_conf if settings.kubernetes is not None else {}


def archives_setting(settings: ClusterSettings) -> str:
    """Return the setting of Spark with the archives that executors unpack. YARN itself unpacks them, once on each
    node.
    """
    return "spark.yarn.dist.archives" if settings.manager is Manager.YARN else "spark.archives"


def _pod_of_driver(settings: ClusterSettings) -> dict[str, str]:
    """How executors reach a driver that runs in a pod; empty for another driver."""
    if not _POD.is_file():
        return {}
    name = socket.gethostname()
    # Other pods do not resolve the name of a pod, only its address.
    conf = {"spark.driver.host": str(socket.getaddrinfo(name, None)[0][4][0])}
    if settings.kubernetes is not None and _POD.read_text().strip() == settings.kubernetes.namespace:
        conf["spark.kubernetes.driver.pod.name"] = name  # the executors' pods are deleted with this pod
    return conf


def hadoop_folders() -> list[Path]:
    """Return the folders with Hadoop's client configuration that this process's environment names."""
    return [Path(folder) for name in HADOOP_VARIABLES if (folder := os.environ.get(name))]


def require_manager_settings(settings: ClusterSettings, described: str) -> None:
    """Refuse a cluster whose manager Spark cannot find, or cannot use from this host.

    Args:
        settings: The description of the cluster.
        described: The cluster in a message.

    Raises:
        SpecError: A YARN cluster has no address, or a file that a Kubernetes cluster names is not on this host.
    """
    if settings.manager is Manager.YARN:
        _require_resource_manager(settings, described)
        return
    template = settings.kubernetes.pod_template if settings.kubernetes is not None else ""
    if template and not Path(template).is_file():
        raise SpecError(
            f"The pod template {template} of {described} is not on this host.",
            hint="copy it to all hosts that reach the cluster, or leave kubernetes.podTemplate out.",
        )


def _require_resource_manager(settings: ClusterSettings, described: str) -> None:
    in_files = any((folder / "yarn-site.xml").is_file() for folder in hadoop_folders())
    if not in_files and not any(name.startswith(_RESOURCE_MANAGER) for name in settings.spark_conf):
        raise SpecError(
            f"Spark does not know the resource manager of {described}.",
            hint=f"set {HADOOP_VARIABLES[0]} to a folder with yarn-site.xml, or {_RESOURCE_MANAGER}address in the "
            "cluster file's sparkConf.",
        )
