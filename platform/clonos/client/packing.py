"""Packs a job's code for the upload: a file as it is, a folder as a reproducible zip."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from clonos.errors import SpecError
from clonos.jobs.packages import lock_of

# Files of tools, and files that jobs write when they run in their own folder. Hidden files are left out too: caches,
# version control, and files such as `.env`, which hold secrets.
_LEFT_OUT: Final = frozenset({"__pycache__", "venv", "node_modules", "checkpoints", "spark-warehouse", "metastore_db"})
_LEFT_OUT_FILES: Final = (".pyc", ".pyo", ".crc", "~")
# A query's folder of a Spark checkpoint holds these.
_CHECKPOINT: Final = ("offsets", "commits")
_IGNORE: Final = ".clonosignore"
_ANY_TIME: Final = (1980, 1, 1, 0, 0, 0)
_FILE: Final = 0o100644 << 16


@dataclass(frozen=True)
class Packed:
    """Job code as `Artifacts.upload` sends it."""

    name: str  # file name; the suffix is the format: ``.py`` or ``.zip``
    content: bytes
    main: str  # Path of the job file in the archive, or the file's name


def pack_file(path: Path) -> Packed:
    """Pack one Python file for the upload: as it is, or as a zip with the lock of its packages that lies beside it."""
    lock = lock_of(path)
    if lock is None:
        return Packed(path.name, path.read_bytes(), path.name)
    return Packed(f"{path.stem}.zip", _archive(path.parent, [path, lock]), path.name)


def pack_folder(folder: Path, main: str) -> Packed:
    """Pack a folder with the job file `main` as a zip: sorted by name, without times and file modes, code files only.

    The zip is not compressed, because the compressed bytes depend on the version of the library. A ``.clonosignore`` in
    the folder names files to leave out, in the format of a ``.gitignore``.

    Raises:
        SpecError: The folder does not contain `main`, or a link leads out of the folder.
    """
    folder = folder.resolve()
    files = list(_files(folder))
    if main not in {file.relative_to(folder).as_posix() for file in files}:
        raise SpecError(f"The job file {main} is not in {folder}.", hint="name it in `main:` of the job.yaml.")
    return Packed(f"{folder.name}.zip", _archive(folder, files), main)


def _archive(folder: Path, files: Collection[Path]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(files, key=lambda file: file.relative_to(folder).as_posix()):
            info = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _ANY_TIME)
            info.create_system = 3  # Unix, on every platform
            info.external_attr = _FILE
            archive.writestr(info, file.read_bytes())
    return buffer.getvalue()


def largest_files(packed: Packed, count: int = 3) -> list[tuple[str, int]]:
    """Name and size in bytes of the largest files, the largest first."""
    if not packed.name.endswith(".zip"):
        return [(packed.name, len(packed.content))]
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        sizes = [(info.filename, info.file_size) for info in archive.infolist()]
    return sorted(sizes, key=lambda file: -file[1])[:count]


def _ignored(folder: Path) -> GitIgnoreSpec:
    file = folder / _IGNORE
    try:
        return GitIgnoreSpec.from_lines(file.read_text().splitlines() if file.is_file() else [])
    except (OSError, ValueError) as error:  # also of a wrong encoding or pattern
        raise SpecError(f"{file} cannot be read: {error}.", hint="write it in the format of a .gitignore.") from error


def _files(folder: Path) -> Iterator[Path]:
    ignored = _ignored(folder)
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = [name for name in folders if _is_code(name) and not _is_checkpoint(here / name)]
        for name in files:
            file = here / name
            if not _is_code(name) or name.endswith(_LEFT_OUT_FILES) or not file.is_file():
                continue
            if ignored.match_file(file.relative_to(folder).as_posix()):
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
