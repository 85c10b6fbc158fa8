"""A job's code as one upload: a file as it is, a folder as a zip that is the same whenever its content is."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clonos.errors import SpecError

# What tools leave behind, and what jobs write when they run in their own folder. What is hidden is left out too:
# caches, version control, and files such as `.env`, which hold secrets.
_LEFT_OUT: Final = frozenset({"__pycache__", "venv", "node_modules", "checkpoints", "spark-warehouse", "metastore_db"})
_LEFT_OUT_FILES: Final = (".pyc", ".pyo", ".crc", "~")
# A query's folder of a Spark checkpoint holds these.
_CHECKPOINT: Final = ("offsets", "commits")
_ANY_TIME: Final = (1980, 1, 1, 0, 0, 0)
_FILE: Final = 0o100644 << 16


@dataclass(frozen=True)
class Packed:
    """What is uploaded.

    Attributes:
        name: File name, which says what it is.
        main: Path of the job file inside.
    """

    name: str
    content: bytes
    main: str


def pack_file(path: Path) -> Packed:
    """One Python file."""
    return Packed(path.name, path.read_bytes(), path.name)


def pack_folder(folder: Path, main: str) -> Packed:
    """A folder as a zip: in the order of names, without times, modes and what is no code.

    Nothing is compressed: what compression makes of the same bytes depends on the library's version.

    Raises:
        SpecError: `main` is not in it, or a link leads out of it.
    """
    folder = folder.resolve()
    buffer = io.BytesIO()
    packed: list[str] = []
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(_files(folder), key=lambda one: one.relative_to(folder).as_posix()):
            name = file.relative_to(folder).as_posix()
            info = zipfile.ZipInfo(name, _ANY_TIME)
            info.create_system = 3  # Unix, wherever it is made
            info.external_attr = _FILE
            archive.writestr(info, file.read_bytes())
            packed.append(name)
    if main not in packed:
        raise SpecError(f"The job file {main} is not in {folder}.", hint="name it in `main:` of the job.yaml.")
    return Packed(f"{folder.name}.zip", buffer.getvalue(), main)


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = [name for name in folders if _is_code(name) and not _is_checkpoint(here / name)]
        for name in files:
            file = here / name
            if not _is_code(name) or name.endswith(_LEFT_OUT_FILES) or not file.is_file():
                continue
            if not file.resolve().is_relative_to(folder):
                raise SpecError(
                    f"{file} is a link that leads out of {folder}.", hint="put the file itself there, or remove it."
                )
            yield file


def _is_code(name: str) -> bool:
    return name not in _LEFT_OUT and not name.startswith(".")


def _is_checkpoint(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in _CHECKPOINT)
