"""The secrets that a job's specification refers to, and their insertion into the specification for the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from clonos.errors import SpecError
from clonos.jobs.secret_refs import RESOLVED_LABEL, references, resolve
from clonos.jobs.spec import JobSpec

_LONGEST: Final = 65_536


def names(spec: JobSpec) -> list[str]:
    """Names of the secrets that a specification refers to, sorted.

    Raises:
        SpecError: A reference has no usable name.
    """
    return sorted(references([*spec.spec.params.values(), *spec.spec.spark_conf.values()]))


def resolved(spec: JobSpec, read: Callable[[str], str]) -> JobSpec:
    """Replace the references in a specification by the secrets.

    Write the result only to a file that only the driver can read. The label `RESOLVED_LABEL` names the changed fields.

    Unset fields stay unset, because the decorator in the code decides them.

    Raises:
        SpecError: A reference has no usable name, or `read` has no secret of that name.
    """
    parts = {"params": spec.spec.params, "spark_conf": spec.spec.spark_conf}
    changed = {
        part: {name: resolve(value, read) for name, value in values.items()}
        for part, values in parts.items()
        if references(values.values())
    }
    if not changed:
        return spec
    fields = [f"{part}.{name}" for part in changed for name, value in parts[part].items() if references([value])]
    labels = {**spec.metadata.labels, RESOLVED_LABEL: ",".join(fields)}
    metadata = spec.metadata.model_copy(update={"labels": labels})
    return spec.model_copy(update={"metadata": metadata, "spec": spec.spec.model_copy(update=changed)})


def from_folder(folder: Path, owner: str) -> Callable[[str], str]:
    """A function that reads the secrets of an owner: the files in the folder with the owner's name below `folder`.

    Each file is named like its secret. Without an owner (``""``) the files are in `folder` itself. A line break at the
    end of a file is not part of the secret. The function raises `SpecError` for a missing file.
    """
    own = folder / quote(owner, safe="@+") if owner else folder

    def read(name: str) -> str:
        if owner.startswith("."):
            raise SpecError(f"The owner {owner!r} has no secrets.", hint="create the job with another subject.")
        path = own / name
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
