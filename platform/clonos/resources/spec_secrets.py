"""The secrets of a specification: which it refers to, and the specification with them, for its driver's eyes only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from clonos.errors import SpecError
from clonos.secret_refs import references, resolve
from clonos.spec import JobSpec

_LONGEST: Final = 65_536


def names(spec: JobSpec) -> list[str]:
    """Names of the secrets that a specification refers to, for `RunOrder.secrets`.

    Raises:
        SpecError: A reference has no usable name.
    """
    return sorted(references([*spec.spec.params.values(), *spec.spec.spark_conf.values()]))


def resolved(spec: JobSpec, read: Callable[[str], str]) -> JobSpec:
    """The specification with the secrets in it: for a file that only the driver can read, never for a log or an answer.

    What was not set stays not set, for there the decorator in the code counts.

    Raises:
        SpecError: A reference has no usable name, or `read` knows none of that name.
    """
    parts = {"params": spec.spec.params, "spark_conf": spec.spec.spark_conf}
    changed = {
        part: {name: resolve(value, read) for name, value in values.items()}
        for part, values in parts.items()
        if references(values.values())
    }
    return spec.model_copy(update={"spec": spec.spec.model_copy(update=changed)}) if changed else spec


def from_folder(folder: Path) -> Callable[[str], str]:
    """Reads secrets from a host's files: one for each, named like it; a last line break does not count."""

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
