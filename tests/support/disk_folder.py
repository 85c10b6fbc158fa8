"""A stored folder (`clonos.spark.stored_files`) on the local disk, that behaves like one of S3 or of HDFS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path


class DiskFolder:
    """A folder.

    Args:
        path: Its path.
        objects: Whether a rename is to be taken for a copy, as on S3.
        before_copy: Called before each copied file, with its name.
    """

    def __init__(
        self, path: Path, *, objects: bool = True, before_copy: Callable[[str], None] = lambda _name: None
    ) -> None:
        self.path = path
        self.is_store_of_objects = objects
        self.before_copy = before_copy
        self.copied: list[str] = []

    @property
    def location(self) -> str:
        return str(self.path)

    def at(self, location: str) -> DiskFolder:
        return DiskFolder(Path(location.removeprefix("file://")), objects=self.is_store_of_objects)

    def siblings(self, suffix: str) -> list[DiskFolder]:
        return [self.at(str(path)) for path in self.path.parent.glob(f"{self.path.name}{suffix}*")]

    def files(self) -> dict[str, int]:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return {str(file.relative_to(self.path)): file.stat().st_size for file in files}

    def exists(self, name: str = "") -> bool:
        return (self.path / name).exists()

    def read_text(self, name: str) -> str | None:
        return (self.path / name).read_text() if (self.path / name).is_file() else None

    def texts_above(self, name: str) -> list[str | None]:
        return [self.at(str(parent)).read_text(name) for parent in self.path.parents]

    def write_text(self, name: str, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def copy(self, target: DiskFolder, names: Collection[str]) -> list[str]:
        missing = []
        for name in names:
            self.before_copy(name)
            if (self.path / name).is_file():
                (target.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.path / name, target.path / name)
                self.copied.append(name)
            else:
                missing.append(name)
        return missing

    def delete(self, name: str = "") -> None:
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, target: DiskFolder) -> None:
        self.path.rename(target.path)
