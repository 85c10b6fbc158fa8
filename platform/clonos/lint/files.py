"""Finds the files that belong to a job: the named files, the files in named folders, and the modules that they
import.
"""

from __future__ import annotations

import io
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from clonos import python_source
from clonos.errors import SpecError
from clonos.lint.names import Imported, Module

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}

LIBRARIES = frozenset({"clonos", "pyspark"})
"""A file that imports one of these is code of a job. A module of the job cannot replace them."""


class Sources:
    """The parsed files of a job: Python files, those in folders, and those that they import.

    Raises:
        SpecError: A path is missing or is not Python.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.modules: dict[Path, Module] = {}  # path → module
        self.named: set[Path] = set()  # the named files, without those found in folders or by imports
        for path in paths:
            resolved = path.resolve()
            if resolved.is_dir():
                files = list(python_files(resolved))
                if not files:
                    raise SpecError(f"{path} holds no Python file.")
                for file in files:
                    self._load(file, resolved)
            elif not resolved.is_file():
                raise SpecError(f"There is no file {path}.")
            elif resolved.suffix != ".py":
                raise SpecError(f"{path} is not a Python file.")
            else:
                self.named.add(resolved)
                self._load(resolved, resolved.parent)

    def find(self, module: Module, imported: Imported) -> Path | None:
        """Return the file or package folder of the job that an import refers to; None: an installed library."""
        if imported.level:
            parents = module.path.parents
            if imported.level > len(parents):
                return None
            start = parents[imported.level - 1]
            return _at(start.joinpath(*imported.name.split("."))) if imported.name else start
        parts = imported.name.split(".")
        if parts[0] in LIBRARIES:
            return None
        for directory in module.directories:
            path = _at(directory.joinpath(*parts))
            if path is not None:
                return path
        return None

    def below(self, package: Path, name: str) -> Path | None:
        """Return the file or folder of the submodule `name` of a package folder; None if there is none."""
        return _at(package / name) if package.is_dir() else None

    def imported(self, module: Module) -> Iterator[Module]:
        """Yield the job's own modules that `module` imports."""
        for path in self._imported(module):
            if path in self.modules:
                yield self.modules[path]

    def _imported(self, module: Module) -> Iterator[Path]:
        """Yield the files of the job that `module` imports; some do not exist."""
        for imported in module.imports:
            target = self.find(module, imported)
            for path in (target, target and imported.member and self.below(target, imported.member)):
                if isinstance(path, Path):
                    yield path / "__init__.py" if path.is_dir() else path

    def _load(self, path: Path, root: Path) -> None:
        pending = [path]
        while pending:
            file = pending.pop()
            if file in self.modules:
                continue
            module = self.modules[file] = read(file, root)
            pending += (source for source in self._imported(module) if source.is_relative_to(root) and source.is_file())


def python_files(folder: Path) -> Iterator[Path]:
    """All Python files below `folder`, sorted, without hidden folders and virtual environments."""
    for directory, folders, files in os.walk(folder):
        here = Path(directory)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(files) if name.endswith(".py") and not name.startswith("."))


def read(path: Path, root: Path) -> Module:
    """Read and parse a Python file, whose absolute imports are searched from `root`; `SpecError` names the line."""
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SpecError(f"{path} is not Python: {error}.") from error
    try:
        tree = python_source.parse(content, str(path))
    except SyntaxError as error:
        raise SpecError(f"{path}, line {error.lineno}: {error.msg}.", hint="fix the line; nothing was run.") from error
    except MemoryError as error:
        raise SpecError(f"{path} is too large to be analysed.", hint="split it into smaller modules.") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not Python: {error}.") from error
    return Module(path, _directories(path, root), tree, text.split("\n"))


def _directories(path: Path, root: Path) -> tuple[Path, ...]:
    """Return the folders where Python finds modules of the job: of its outermost package, and those above."""
    directory = path.parent
    while directory != root and (directory / "__init__.py").exists():
        directory = directory.parent
    between = [directory, *(parent for parent in directory.parents if parent.is_relative_to(root))]
    return tuple(between)


def _at(stem: Path) -> Path | None:
    # A package precedes a module of the same name, and a folder without __init__ follows it.
    if (stem / "__init__.py").is_file():
        return stem
    file = stem.parent / f"{stem.name}.py"
    if file.is_file():
        return file
    # An installed module precedes such a folder, so the folder must contain code.
    if stem.is_dir() and stem.name not in sys.stdlib_module_names and next(stem.rglob("*.py"), None):
        return stem
    return None
