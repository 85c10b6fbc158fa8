"""The description of a Spark cluster: one pydantic schema for cluster files, the REST API and the agent.

The administrator of the cluster writes it. A job names the cluster and the resources that it needs there
(`clonos.jobs.spec.Spec.cluster`, ``executor``), and cannot change what this description sets.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from clonos.documents import read_yaml
from clonos.jobs.spec import Metadata, Part

# Environment variable of a driver with the value of ``spark.authenticate.secret`` of its cluster: other users of the
# machine see command lines.
SECRET_VARIABLE: Final = "CLONOS_CLUSTER_SECRET"  # noqa: S105, a name
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
MASTER: Final = re.compile(
    rf"spark://{_HOST}:[0-9]{{1,5}}(?:,{_HOST}:[0-9]{{1,5}})*|yarn|k8s://https?://{_HOST}(?::[0-9]{{1,5}})?"
)
_LABEL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"  # a name in Kubernetes
LOCATION: Final = re.compile(r"(?:file:///|[a-z][a-z0-9+.-]*://[^/\s]+(?:/|$))\S*")


class Manager(StrEnum):
    """What starts executors on a cluster: Spark's own master, Hadoop or Kubernetes."""

    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


class KubernetesSettings(Part):
    """How executors run as pods; only with a master ``k8s://…``."""

    image: str = Field(min_length=1, pattern=r"^\S+$")
    """Image of executors: Spark's version of the driver, Java, and Python unless the cluster has an `environment`."""
    namespace: str = Field("default", pattern=_LABEL)
    """Namespace of the executors' pods."""
    service_account: str = Field("", alias="serviceAccount", pattern=rf"^$|{_LABEL}")
    """Service account of these pods; empty: the default one of the namespace. Executors do not call Kubernetes."""
    pod_template: str = Field("", alias="podTemplate", pattern=r"^(/\S+)?$")
    """File on the drivers' hosts with the template of an executor's pod; empty: none."""
    pull_secrets: tuple[Annotated[str, Field(pattern=_LABEL)], ...] = Field((), alias="pullSecrets")
    """Names of the secrets that nodes need to pull the image."""

    @property
    def spark_conf(self) -> dict[str, str]:
        """The Spark configuration of these settings."""
        conf = {
            "spark.kubernetes.container.image": self.image,
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.authenticate.executor.serviceAccountName": self.service_account,
            "spark.kubernetes.executor.podTemplateFile": self.pod_template,
            "spark.kubernetes.container.image.pullSecrets": ",".join(self.pull_secrets),
        }
        return {name: value for name, value in conf.items() if value}


class ClusterSettings(Part):
    """How drivers use a Spark cluster: the field ``spec`` of a cluster file."""

    master: str
    """Master URL: ``spark://HOST:PORT[,HOST:PORT…]``, ``yarn`` or ``k8s://https://HOST:PORT``."""
    ui: str = Field("", pattern=r"^(https?://\S+)?$")
    """Address of the master's web UI, such as ``http://127.0.0.1:8080``; empty: unknown."""
    spark_conf: dict[str, str] = Field(default_factory=dict, alias="sparkConf")
    """Spark configuration of every application on the cluster, such as ``spark.driver.host`` or ``spark.eventLog.dir``.
    It takes precedence over a job's configuration.
    """
    auth_secret: str = Field("", alias="authSecret", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")
    """Name of the secret for ``spark.authenticate.secret``. The driver's host has it; neither a specification nor the
    control plane does. Empty: a standalone cluster does not authenticate; on YARN and Kubernetes, Spark generates a
    secret for each application.
    """
    trusted_network: bool = Field(False, alias="trustedNetwork")
    """Passwords may travel between driver and executors without encryption."""
    shared_locations: tuple[str, ...] = Field((), alias="sharedLocations")
    """Location prefixes that the driver and all executors see alike, such as ``file:///mnt/shared``. A checkpoint with
    the scheme ``file:`` must be below one of them.
    """
    python: str = ""
    """Python interpreter of the executors; empty: the path of the driver's interpreter."""
    environment: str = ""
    """Archive with a Python environment that Spark unpacks on each executor, such as ``hdfs:///envs/clonos.tar.gz``;
    `python` is then a path inside of it (default ``bin/python``).
    """
    hosts: tuple[str, ...] = ()
    """Hosts whose agents reach the cluster; empty: all hosts."""
    kubernetes: KubernetesSettings | None = None
    """How executors run as pods; required with a master ``k8s://…``."""

    @field_validator("master")
    @classmethod
    def _check_master(cls, master: str) -> str:
        if not MASTER.fullmatch(master):
            raise ValueError(f"{master!r}: use spark://HOST:PORT, yarn or k8s://https://HOST:PORT")
        return master

    @field_validator("shared_locations")
    @classmethod
    def _check_locations(cls, locations: tuple[str, ...]) -> tuple[str, ...]:
        for location in locations:
            if not LOCATION.fullmatch(location) or ".." in location.split("/"):
                raise ValueError(
                    f"{location!r}: use a URI with a scheme, such as file:///mnt/shared or hdfs://HOST/PATH"
                )
        return locations

    @property
    def manager(self) -> Manager:
        """What manages the cluster's resources."""
        if self.master == Manager.YARN:
            return Manager.YARN
        return Manager.KUBERNETES if self.master.startswith("k8s://") else Manager.STANDALONE

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.auth_secret and self.manager is not Manager.STANDALONE:
            raise ValueError(
                f"authSecret is for standalone clusters; on {self.manager} Spark generates one for each application"
            )
        return self

    @model_validator(mode="after")
    def _check_kubernetes(self) -> Self:
        if self.manager is not Manager.KUBERNETES:
            if self.kubernetes is not None:
                raise ValueError("kubernetes needs a master such as k8s://https://HOST:PORT")
        elif self.kubernetes is None:
            raise ValueError(f"{self.master} needs the field kubernetes, with the image of executors")
        elif twice := sorted(self.kubernetes.spark_conf.keys() & self.spark_conf.keys()):
            raise ValueError(f"fields of kubernetes set {', '.join(twice)}: leave it out of sparkConf")
        return self


class ClusterMetadata(Metadata):
    """Name and labels of a cluster."""

    name: Annotated[str, Field(max_length=100)]
    """Name of the cluster, which jobs name in `cluster`."""


class ClusterSpec(Part):
    """The description of a Spark cluster, as in a ``cluster.yaml``."""

    api_version: Annotated[Literal["clonos/v1"], Field(alias="apiVersion")] = "clonos/v1"
    """Version of the format."""
    kind: Literal["Cluster"] = "Cluster"
    """Kind of the document."""
    metadata: ClusterMetadata
    """Name and labels."""
    spec: ClusterSettings
    """The settings of the cluster."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.metadata.name


class ClusterReport(Part):
    """What a check application saw on a cluster (`clonos.driver.cluster_check`)."""

    spark: str = ""
    """Version of Spark on the driver and the executors; differing versions separated by commas. `java` and `python`:
    the same, for the executors only.
    """
    java: str = ""
    """Version of Java of the executors."""
    python: str = ""
    """Version of Python of the executors."""
    executors: int = Field(0, ge=0)
    """Number of executors that ran a task of the check."""
    hosts: tuple[str, ...] = ()
    """Hosts of these executors."""
    problems: tuple[str, ...] = ()
    """What jobs on this cluster would fail with, one sentence each; empty: the cluster can be used."""


def read_cluster(path: Path) -> ClusterSpec:
    """Read the description of a cluster from a YAML file; `SpecError` names the invalid field."""
    return read_yaml(path, ClusterSpec, "a description of a cluster")
