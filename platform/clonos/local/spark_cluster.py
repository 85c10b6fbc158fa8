"""The Spark cluster of a local platform: its ports, and its registration in the control plane."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from clonos.embedded.java import java_binary
from clonos.embedded.layout import free_ports, port_is_free
from clonos.embedded.standalone_spark import StandaloneSpark
from clonos.jobs.cluster import ClusterMetadata, ClusterSettings, ClusterSpec
from clonos.private_folders import create_private, write_private

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.embedded.jars import Jars

NAME: Final = "local"  # of the cluster in the control plane
_PORTS: Final = "ports.json"


def spark_cluster(folder: Path, jars: Jars) -> StandaloneSpark:
    """Return the Spark cluster with files in `folder`, on the ports of its last start if they are free.

    Jobs that run again with the platform were placed with the master's address. Executors use the start-up cache that
    ``make setup`` created for drivers.
    """
    from clonos.spark.jvm import executor_cache  # imports PySpark

    file = folder / _PORTS
    ports = _last_ports(file)
    if ports is None or not all(map(port_is_free, ports)):
        port, ui_port = free_ports(2)
        ports = port, ui_port
        create_private(folder)
        file.write_bytes(msgspec.json.encode(ports))
    return StandaloneSpark(folder, port=ports[0], ui_port=ports[1], cache=executor_cache(jars, java_binary()))


def _last_ports(file: Path) -> tuple[int, int] | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[int, int])
    except (OSError, ValueError):
        return None


def register(client: Client, spark: StandaloneSpark, home: Path) -> None:
    """Register the cluster, as an administrator, and give its secret to the agents of this ``CLONOS_HOME``."""
    secrets = home / "secrets" / "clusters"
    create_private(secrets)
    write_private(secrets / NAME, spark.secret)
    settings = ClusterSettings(
        master=spark.master, ui=spark.ui, auth_secret=NAME, shared_locations=(home.absolute().as_uri(),)
    )
    client.clusters.add_or_replace(ClusterSpec(metadata=ClusterMetadata(name=NAME), spec=settings))
