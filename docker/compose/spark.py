"""The Spark cluster of compose.yaml (``--profile spark``): its processes, and its registration in the control plane.

``spark.py master UI`` and ``spark.py worker UI HOST`` become a process of Spark's standalone mode, with the classes of
PySpark's wheel. ``spark.py register UI API`` adds the cluster to the control plane and exits. UI is the address of the
master's web UI for browsers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clonos.embedded.standalone_spark import StandaloneSpark, WorkerSize

if TYPE_CHECKING:
    from clonos.client import Client

NAME = "spark"  # of the cluster in the control plane, and of its secret
MASTER_HOST = "spark-master"
PORT = 7077
UI_PORT = 8080
WORKER_UI_PORT = 8081
SIZE = WorkerSize(cores=2, memory_mb=2048)
SECRETS = Path("/run/clonos/clusters")
HOME = Path("/var/lib/clonos")  # also of agents: they share the folder below
SHARED = HOME / "shared"


def process(host: str, ui: str) -> StandaloneSpark:
    """The processes of the cluster on `host`; `ui` is the address of the master's web UI for browsers."""
    # Names of containers mean nothing to a browser: the master forwards requests to the web UIs of workers.
    settings = {"spark.ui.reverseProxy": "true", "spark.ui.reverseProxyUrl": ui}
    master = f"spark://{MASTER_HOST}:{PORT}"
    return StandaloneSpark(
        HOME / "spark", port=PORT, ui_port=UI_PORT, size=SIZE, host=host, master=master, settings=settings
    )


def run(spark: StandaloneSpark, host: str) -> None:
    """Become the master or the worker on `host`."""
    # A master that starts again continues with its applications.
    spark.prepare(secret=(SECRETS / NAME).read_text().strip(), forget=False)
    command = spark.master_command() if host == MASTER_HOST else spark.worker_command("work", ui_port=WORKER_UI_PORT)
    os.execve(command[0], command, spark.environment())  # noqa: S606 - a process of its own container


def register(client: Client, ui: str) -> None:
    """Add the cluster to the control plane, or replace its description; a host then checks it."""
    from clonos.jobs.cluster import ClusterMetadata, ClusterSettings, ClusterSpec

    settings = ClusterSettings(
        master=f"spark://{MASTER_HOST}:{PORT}", ui=ui, auth_secret=NAME, shared_locations=(SHARED.as_uri(),)
    )
    client.clusters.add_or_replace(ClusterSpec(metadata=ClusterMetadata(name=NAME), spec=settings))


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    if role == "register":
        from clonos.client import Client  # processes of Spark start faster without it

        token = (HOME / "admin.token").read_text().strip()
        with Client(rest[0], token, ca=Path("/run/clonos/ca/ca.pem"), patience_s=30.0) as api:
            register(api, address)
    else:
        own = rest[0] if role == "worker" else MASTER_HOST
        run(process(own, address), own)
