"""The secrets that specifications of jobs and descriptions of clusters refer to, and their insertion for the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from clonos.errors import SpecError
from clonos.jobs.cluster import SECRET_VARIABLE, ClusterSpec
from clonos.jobs.secret_refs import RESOLVED_LABEL, references, resolve
from clonos.jobs.spec import JobSpec

_LONGEST: Final = 65_536
# The folder of the clusters' secrets, beside the folders of the owners of jobs.
_CLUSTERS: Final = "clusters"


def names(spec: JobSpec) -> list[str]:
    """Return the sorted names of the secrets that a specification refers to; `SpecError` for an unusable name."""
    passwords = (connection.password for connection in spec.spec.connections.values())
    return sorted(references([*spec.spec.params.values(), *spec.spec.spark_conf.values(), *passwords]))


def resolved(spec: JobSpec, read: Callable[[str], str]) -> JobSpec:
    """Replace the references in a specification by the secrets.

    Write the result only to a file that only the driver can read. The label `RESOLVED_LABEL` names the changed fields.

    Unset fields stay unset, because the decorator in the code decides them.

    Raises:
        SpecError: A reference has no usable name, or `read` has no secret of that name.
    """
    parts = {"params": spec.spec.params, "spark_conf": spec.spec.spark_conf}
    changed: dict[str, Any] = {
        part: {name: resolve(value, read) for name, value in values.items()}
        for part, values in parts.items()
        if references(values.values())
    }
    fields = [f"{part}.{name}" for part in changed for name, value in parts[part].items() if references([value])]
    connections = spec.spec.connections
    if references(connection.password for connection in connections.values()):
        changed["connections"] = {
            name: connection.model_copy(update={"password": resolve(connection.password, read)})
            for name, connection in connections.items()
        }
    if not changed:
        return spec
    labels = {**spec.metadata.labels, RESOLVED_LABEL: ",".join(fields)}
    metadata = spec.metadata.model_copy(update={"labels": labels})
    return spec.model_copy(update={"metadata": metadata, "spec": spec.spec.model_copy(update=changed)})


def from_folder(folder: Path, owner: str) -> Callable[[str], str]:
    """Return a reader of the secrets of an owner: the files in the folder with the owner's name below `folder`.

    Each file is named like its secret. Without an owner (``""``) the files are in `folder` itself. A line break at the
    end of a file is not part of the secret. The function raises `SpecError` for a missing file.
    """
    own = folder / quote(owner, safe="@+") if owner else folder
    read = _from(own)

    def read_own(name: str) -> str:
        if owner.startswith(".") or owner == _CLUSTERS:
            raise SpecError(f"The owner {owner!r} has no secrets.", hint="create the job with another subject.")
        return read(name)

    return read_own


class ClusterSecrets(NamedTuple):
    """A cluster's description with its secrets, and the secret of its authentication (empty: it has none)."""

    cluster: ClusterSpec
    auth_secret: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a process that connects to the cluster."""
        return {SECRET_VARIABLE: self.auth_secret} if self.auth_secret else {}


def with_secrets(cluster: ClusterSpec, folder: Path) -> ClusterSecrets:
    """Read the secrets of a cluster: the files in ``clusters`` below `folder`, which no job gets, else `SpecError`."""
    read = _from(folder / _CLUSTERS)
    settings = cluster.spec
    conf = {name: resolve(value, read) for name, value in settings.spark_conf.items()}
    resolved_settings = settings.model_copy(update={"spark_conf": conf})
    auth_secret = read(settings.auth_secret) if settings.auth_secret else ""
    return ClusterSecrets(cluster.model_copy(update={"spec": resolved_settings}), auth_secret)


def _from(folder: Path) -> Callable[[str], str]:
    def read(name: str) -> str:
        path = folder / name
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(_LONGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SpecError(
                f"This host has no usable secret {name}: {why}.",
                hint=f"put it into the file {path}, readable by the agent alone.",
            ) from error
        if len(text) > _LONGEST:
            raise SpecError(f"The secret {name} is longer than {_LONGEST} characters.")
        return text.removesuffix("\n")

    return read
