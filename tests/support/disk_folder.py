"""A folder on the local disk that behaves like one of S3 or of HDFS (`clonos.spark.stored_files`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Self

from clonos.spark.local_folder import LocalFolder


class DiskFolder(LocalFolder):
    """A folder.

    Args:
        path: Its path.
        objects: Whether a rename is to be taken for a copy, as on S3.
        before_copy: Called before each copied file, with its name.
    """

    def __init__(
        self, path: Path | str, *, objects: bool = True, before_copy: Callable[[str], None] = lambda _name: None
    ) -> None:
        super().__init__(str(path))
        self.is_store_of_objects = objects
        self.before_copy = before_copy
        self.copied: list[str] = []

    def at(self, location: str) -> Self:
        return type(self)(location, objects=self.is_store_of_objects)

    @contextlib.contextmanager
    def held(self, names: Collection[str]) -> Iterator[Self]:
        yield self

    def copy(self, target: LocalFolder, names: Collection[str]) -> list[str]:
        missing = []
        for name in names:
            self.before_copy(name)
            missing += super().copy(target, [name])
            self.copied.append(name)
        self.copied = [name for name in self.copied if name not in missing]
        return missing
